"""Seconds to published quality, end to end: from the command to the score, with nothing prepared.

    python benchmarks/to_quality.py [RACE...] [--seeds 1,2,3] [--set KEY=VALUE] [--record WHY]

The races are those of benchmarks/to_quality.yaml, the rules are in docs/reference/speedrun.md. Each
seed is a process of its own, one after the other: it starts Python, reads and tokenises the corpus,
trains the recipe to its end, and scores the model once, on the race's test set. The clock runs from
the start of the process to that score. Its caches (tokenised corpora, kernels of Triton, Inductor
and CUDA) are new and empty folders, unless --caches names some. Corpora must be there before
(`transduce corpus get NAME`).

Prints a line for each seed, and what the time went into. --record adds the runs, with the date, the
commit and what brought the gain, to benchmarks/results/to_quality_DEVICE.json, from which
tools/make_tables.py makes the tables of docs/reference/speedrun.md; --out names another file, and
--add FILE adds the runs of such a file: other seeds of the same settings join it. With --jobs,
several seeds run side by side: such runs tell quality, their seconds do not count, and the record
says so. --quick runs the script on a corpus that it makes itself.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
RACES = HERE / "to_quality.yaml"
RESULTS = HERE / "results"
SMALLER_IS_BETTER = ("100 - ", "per", "cer", "wer", "loss", "after_one")
MARK = "to_quality:"
QUICK = "train.steps=4", "validation.every=4", "train.batch_tokens=64", "validation.limit=4"
CACHES = {
    "XDG_CACHE_HOME": "tokenised",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
}
"""Where the caches of a process lie: variable, and folder."""


@dataclass(frozen=True)
class Race:
    """A figure to reach; see to_quality.yaml."""

    name: str
    title: str
    recipe: str
    set: str
    metric: str
    unit: str
    target: float
    goal: float
    overrides: list[str] = field(default_factory=list)

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return not self.metric.removeprefix("mean ").startswith(SMALLER_IS_BETTER)

    def reached(self, score: float) -> bool:
        return score >= self.target if self.higher else score <= self.target


def read_races() -> dict[str, Race]:
    found = yaml.safe_load(RACES.read_text("utf-8"))
    return {name: Race(name, **values) for name, values in found.items()}


def quick() -> dict[str, Race]:
    """A race of seconds, without a corpus: does the script run?"""
    race = Race("copy", "Copying", "copy", "valid", "exact", "%", 0.0, 10.0, list(QUICK))
    return {race.name: race}


# ---------------------------------------------------------------------------- in a fresh process


def race_alone(race: Race, seed: int, device: str) -> None:
    """Train, score once, and print what was found."""
    from transduce.garbage import no_garbage_collection

    with no_garbage_collection():  # as the command does
        from transduce.evaluation.evaluate import evaluate_folder
        from transduce.evaluation.metrics import HIGHER_IS_BETTER as METRICS
        from transduce.recipe import load_recipe
        from transduce.training import train

    _mark("imported")
    overrides = [f"train.device={device}", f"seed={seed}", *race.overrides]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        trained = train(load_recipe(race.recipe, overrides), folder)
        _mark("trained")
        asked_for = _plain(race) if _plain(race) in METRICS else None
        evaluation = evaluate_folder(trained.model, folder, split=race.set, metrics=asked_for)
        score = _score(race, trained.model, evaluation)
        _mark("scored", score=score, updates=trained.state.step, machine=_machine(device))


def _mark(what: str, **metadata: Any) -> None:
    print(MARK, json.dumps({"what": what, **metadata}), file=sys.stderr, flush=True)


def _plain(race: Race) -> str:
    """The metric that is measured."""
    return race.metric.removeprefix("100 - ").removeprefix("mean ")


def _score(race: Race, model: Any, evaluation: Any) -> float:
    name = _plain(race)
    if "mean " in race.metric:
        value = evaluation.mean[name].value
    elif name in evaluation.metrics:
        value = evaluation.metrics[name].value
    else:
        import scores

        value = getattr(scores, name)(model, race.set, evaluation).value
    return float(100 - value if race.metric.startswith("100 - ") else value)


def _machine(device: str) -> dict[str, str]:
    import torch

    from transduce.hardware import describe

    return {
        "device": describe(torch.device(device)),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


# ------------------------------------------------------------------------------------ its clock


class Clock:
    """Reads what a process says, and when it does: the process itself measures nothing."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.times: dict[str, float] = {}
        self.validations: list[dict[str, Any]] = []
        self.metadata: dict[str, Any] = {}
        self.tail: list[str] = []

    def hear(self, line: str) -> None:
        now = round(time.perf_counter() - self.began, 2)
        self.tail = [*self.tail[-20:], line]
        if line.startswith(MARK):
            metadata = json.loads(line.removeprefix(MARK))
            self.times[metadata.pop("what")] = now
            self.metadata |= metadata
        elif line.startswith("Validation: "):
            self.times["read"] = now
        elif line.startswith("step ") and "  valid  " in line:
            self.times["last update"] = now
            self.validations.append({"seconds": now, "said": line.partition("  valid  ")[2]})
        elif line.startswith("step "):
            self.times.setdefault("first update", now)
            self.times["last update"] = now

    def result(self) -> dict[str, Any]:
        return {
            "seconds": self.times["scored"],
            **self.metadata,
            "times": self.times,
            "validations": self.validations,
        }


@contextmanager
def caches(given: Path | None) -> Iterator[dict[str, str]]:
    """The environment of a process whose caches lie in a folder: a new one, unless given."""
    with tempfile.TemporaryDirectory() as new:
        place = (given or Path(new)).resolve()
        folders = {name: str(place / folder) for name, folder in CACHES.items()}
        yield {**os.environ, **folders, "PYTHONUNBUFFERED": "1"}


def compile_modules() -> None:
    """Compile the package's modules to bytecode, as pip does when it installs them: in a checkout
    the first process would do it, or each one where PYTHONDONTWRITEBYTECODE is set."""
    found = importlib.util.find_spec("transduce")
    assert found is not None
    for folder in found.submodule_search_locations or []:
        compileall.compile_dir(folder, quiet=2)


def run(race: Race, seed: int, asked: argparse.Namespace) -> dict[str, Any] | None:
    """One seed in a fresh process; None if it failed."""
    command = [sys.executable, __file__, race.name, "--alone", "--seeds", str(seed)]
    command += ["--device", asked.device, *(["--quick"] if asked.quick else [])]
    command += [f"--set={one}" for one in asked.set]
    with caches(asked.caches) as environment:
        clock = Clock()
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        late = threading.Timer(asked.limit, process.kill)
        late.start()
        assert process.stderr is not None
        for line in process.stderr:
            clock.hear(line.rstrip("\n"))
        late.cancel()
        if process.wait() or "scored" not in clock.times:
            print(f"{race.name}, seed {seed}, failed:", *clock.tail, sep="\n  ", file=sys.stderr)
            return None
    return clock.result()


def reported(race: Race, seed: int, found: dict[str, Any]) -> str:
    times = " ".join(f"{what} {seconds:.1f}" for what, seconds in found["times"].items())
    good = "reached" if race.reached(found["score"]) else "missed"
    return (
        f"{race.name:12} seed {seed}  {found['seconds']:6.1f} s  {found['score']:.4f} "
        f"({good}: {race.target:g})  {times}"
    )


def entry(race: Race, runs: dict[int, dict[str, Any]], asked: argparse.Namespace) -> dict[str, Any]:
    """What is written down of a race."""
    some = next(iter(runs.values()))
    commit = asked.commit or _commit()
    kept = {
        str(seed): {"commit": commit, **{k: v for k, v in found.items() if k != "machine"}}
        for seed, found in runs.items()
    }
    return {
        "race": race.name,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit,
        "gain": asked.record or "",
        "recipe": race.recipe,
        "overrides": race.overrides,
        "target": race.target,
        **summary(race, kept),
        "at_once": asked.jobs,
        "caches": "new" if asked.caches is None else "kept",
        **some["machine"],
        "runs": kept,
    }


def summary(race: Race, runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What counts of the runs of a record: the mean score and the median time."""
    score = statistics.mean(found["score"] for found in runs.values())
    seconds = statistics.median(found["seconds"] for found in runs.values())
    return {"score": score, "reached": race.reached(score), "seconds": seconds}


SETTINGS = ("race", "recipe", "overrides", "target", "at_once", "caches", "device", "torch")
"""What records have in common whose seeds are of one record."""


def add_runs(path: Path, others: Path, races: dict[str, Race]) -> None:
    """Add the records of another file; where there is one of the same settings, their seeds. A seed
    that it has already was run again: that is another record."""
    records = json.loads(path.read_text("utf-8"))["records"] if path.exists() else []
    new = []
    for found in json.loads(others.read_text("utf-8"))["records"]:
        wanted = [found[key] for key in SETTINGS]
        same = [
            one
            for one in [*records, *new]
            if [one[key] for key in SETTINGS] == wanted
            and one["runs"].keys().isdisjoint(found["runs"])
        ]
        if not same:
            new.append(found)
            continue
        runs = same[-1]["runs"] | found["runs"]
        same[-1] |= {**summary(races[found["race"]], runs), "runs": dict(sorted(runs.items()))}
    path.write_text(_text({"records": [*records, *new]}), "utf-8")


def _commit() -> str:
    made = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True
    )
    return made.stdout.strip()


def write(path: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Add to the records of a file."""
    kept = json.loads(path.read_text("utf-8")) if path.exists() else {"records": []}
    kept["records"] += entries
    path.write_text(_text(kept), "utf-8")


def _text(records: dict[str, Any]) -> str:
    return json.dumps(records, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="RACE", help="default: all")
    parser.add_argument("--seeds", default="1", help="with commas between them")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of the recipe")
    parser.add_argument("--caches", type=Path, help="a folder of caches that is kept")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds of a process at most")
    parser.add_argument("--record", metavar="WHY", help="write down, and what brought the gain")
    parser.add_argument("--commit", help="of the record; default: that of this checkout")
    parser.add_argument("--quick", action="store_true", help="seconds, without a corpus")
    parser.add_argument("--out", type=Path, help="where records are written")
    parser.add_argument("--add", type=Path, metavar="FILE", help="runs nothing: adds its records")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    known = quick() if asked.quick else read_races()
    recorded = asked.out or RESULTS / f"to_quality_{asked.device.partition(':')[0]}.json"
    if asked.add:
        add_runs(recorded, asked.add, known)
        return
    if wrong := [name for name in asked.names if name not in known]:
        sys.exit(f"there is no race {wrong[0]}; there are {', '.join(known)}")
    races = [known[name] for name in asked.names] or list(known.values())
    races = [replace(race, overrides=[*race.overrides, *asked.set]) for race in races]
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    if asked.alone:
        race_alone(races[0], seeds[0], asked.device)
        return
    compile_modules()
    good = True
    with ThreadPoolExecutor(asked.jobs) as pool:
        asked_for = [(race, seed) for race in races for seed in seeds]
        running = [pool.submit(run, race, seed, asked) for race, seed in asked_for]
        runs: dict[str, dict[int, dict[str, Any]]] = {}
        for (race, seed), future in zip(asked_for, running, strict=True):
            found = future.result()
            good = good and found is not None
            if found is None:
                continue
            runs.setdefault(race.name, {})[seed] = found
            print(reported(race, seed, found), flush=True)
            if (asked.record is not None or asked.out is not None) and len(runs[race.name]) == len(
                seeds
            ):
                write(recorded, [entry(race, runs[race.name], asked)])
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
