"""`transduce train FILE` beside the shipped recipes, on the corpora that these were tuned on.

    python benchmarks/one_command.py NAME... [--minutes 2 10] [--seed 1] [--jobs 1] [--out FILE]
    python benchmarks/one_command.py --table [--out FILE]

NAMEs: cmudict multi30k imdb ewt mboshi asterisk digits digits-letters, and for a core of a CPU
cmudict-small, multi30k-small, ewt-small, asterisk-small. The command gets the files
of the corpus in $TRANSDUCE_DATA as a person would give them, and nothing else; each training is a
process of its own, --jobs at a time. Its test score is kept beside that of the recipe, which is in
benchmarks/results/recipes_*.json. The loss is relative, of what is wrong where the metric is an
error rate. `hungarian` has no recipe: it shows what more minutes bring (g2p-hun-1000 of
`choices.py --prepare`, as $TRANSDUCE_DATA/hungarian-1000).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

RESULTS = Path(__file__).parent / "results"
COMMAND = "python benchmarks/one_command.py NAME... --minutes M --jobs N"


@dataclass(frozen=True)
class Case:
    """Files of a corpus, the metric, and the experiment of the recipe, if there is one."""

    files: tuple[str, ...]
    group: str
    experiment: str
    metric: str
    overrides: tuple[str, ...] = ()


CASES = {
    "cmudict": Case(("cmudict-0.7b/train.tsv",), "cmudict", "cmudict", "per"),
    "multi30k": Case(
        ("multi30k/train.en", "multi30k/train.de"), "multi30k", "multi30k-en-de", "bleu"
    ),
    "imdb": Case(("imdb/train.tsv",), "imdb", "imdb-pairs", "accuracy"),
    "ewt": Case(("ewt/train.tsv",), "ewt", "ewt-tagger", "accuracy"),
    # The table has Mboshi and French; which of them is meant nobody can guess.
    "mboshi": Case(
        ("mboshi/train.tsv",), "mboshi", "mboshi-conformer", "cer", ("data.train.target=mb",)
    ),
    "asterisk": Case(("asterisk/train.tsv",), "asterisk", "asterisk", "cer"),
    "digits": Case(("spoken-digits/train.tsv",), "digits", "digits", "accuracy"),
    # Ten words are labels; they may be written in letters too.
    "digits-letters": Case(
        ("spoken-digits/train.tsv",), "digits", "digits-letters", "wer", ("task=transduce",)
    ),
    # Recipes for one core of a CPU, on the same files.
    "cmudict-small": Case(("cmudict-0.7b/train.tsv",), "cmudict", "cmudict-small", "per"),
    "multi30k-small": Case(
        ("multi30k/train.en", "multi30k/train.de"), "multi30k", "multi30k-en-de-small", "bleu"
    ),
    "ewt-small": Case(("ewt/train.tsv",), "ewt", "ewt-small", "accuracy"),
    "asterisk-small": Case(("asterisk/train.tsv",), "asterisk", "asterisk-small", "cer"),
    "hungarian": Case(("hungarian-1000/train.tsv",), "", "", "exact"),
}


def run_one(name: str, seed: int, minutes: float, more: list[str]) -> dict[str, Any]:
    """Train by the one command and return its test scores."""
    case = CASES[name]
    corpora = Path(os.environ["TRANSDUCE_DATA"])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        command = [sys.executable, "-m", "transduce", "train"]
        command += [str(corpora / file) for file in case.files]
        command += ["--minutes", f"{minutes:g}", "--output", str(folder), f"seed={seed}"]
        began = time.perf_counter()
        done = subprocess.run(
            [*command, *case.overrides, *more], capture_output=True, text=True, check=False
        )
        spent = time.perf_counter() - began
        print(f"--- {name} {seed}\n{done.stdout}{done.stderr[-2000:]}", flush=True)
        if done.returncode:
            raise RuntimeError(f"{name}: the command ended with {done.returncode}")
        kept = json.loads((folder / "metrics.json").read_text("utf-8"))
    scored = next(entry for key, entry in kept.items() if key.startswith("test"))
    metrics = {key: one["value"] for key, one in scored["metrics"].items()}
    training = kept["training"]
    facts = {key: training.get(key) for key in ("steps", "best_step", "device", "torch")}
    models = scored.get("models", 1)
    return {
        "minutes": minutes,
        "seconds": round(spent, 1),
        "models": models,
        **facts,
        "metrics": metrics,
    }


def table(rows: dict[str, Any]) -> list[str]:
    """Corpus and minutes: the mean of the seeds, and of the recipe's."""
    lines = [
        "| corpus | minutes | models | metric | one command | recipe | loss |",
        "| --- " * 7 + "|",
    ]
    for (name, minutes), of in sorted(_by_corpus(rows).items()):
        case = CASES[name]
        ours = mean(row["metrics"][case.metric] for row in of)
        theirs = loss = ""
        if case.experiment:
            values, rises = shipped(case)
            theirs = f"{mean(values):.2f} ({len(values)})"
            loss = f"{100 * (1 - ours / mean(values)) * (1 if rises else -1):.1f} %"
        models = "/".join(sorted({str(row["models"]) for row in of}))
        lines.append(
            f"| {name} | {minutes:g} | {models} | {case.metric} | {ours:.2f} ({len(of)}) | "
            f"{theirs} | {loss} |"
        )
    return lines


def _by_corpus(rows: dict[str, Any]) -> dict[tuple[str, float], list[dict[str, Any]]]:
    found: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for key, row in rows.items():
        found.setdefault((key.split()[0], row["minutes"]), []).append(row)
    return found


def shipped(case: Case) -> tuple[list[float], bool]:
    """Test scores of the recipe's seeds, and whether higher is better."""
    kept = json.loads((RESULTS / f"recipes_{case.group}.json").read_text("utf-8"))
    runs = kept["experiments"][case.experiment]["runs"]
    found = [
        run["scores"]["test"]["metrics"][case.metric]
        for seed, run in runs.items()
        if seed.isdecimal()
    ]
    return [one["value"] for one in found], found[0]["higher_is_better"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*CASES, []])
    parser.add_argument("--minutes", type=float, nargs="+", default=[2.0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--table", action="store_true", help="print what was kept")
    parser.add_argument("--out", type=Path, default=RESULTS / "one_command.json")
    arguments = parser.parse_args()
    kept = json.loads(arguments.out.read_text("utf-8")) if arguments.out.exists() else {}
    rows: dict[str, Any] = kept.get("rows", {})
    names = [] if arguments.table else arguments.names
    with ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = {
            pool.submit(
                run_one, name, arguments.seed, minutes, arguments.override
            ): f"{name} {arguments.seed} {minutes:g}"
            for name in names
            for minutes in arguments.minutes
        }
        for done in as_completed(waiting):
            try:
                rows[waiting[done]] = {"at_once": arguments.jobs, **done.result()}
            except RuntimeError as error:  # one that fails must not cost the others
                print(error, flush=True)
                continue
            text = json.dumps({"command": COMMAND, "rows": rows}, indent=1)
            arguments.out.write_text(f"{text}\n", encoding="utf-8")
    for line in table(rows):
        print(line)


if __name__ == "__main__":
    main()
