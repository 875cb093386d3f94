"""AdamW and Muon: validation loss after the same computing time.

    python benchmarks/optimizer.py [--corpus shakespeare] [--seconds 30] [--seeds 3]
        [--rates 1e-3 2e-3 4e-3] [--batch-tokens 1024] [--longer 1.25 1.5 2] [--jobs 1]
        [--device cpu]

A Transformer is trained with each optimizer and each peak learning rate, with the first seed. While
the best rate of one is the lowest or the highest tried, both get one more beyond it. The rate with
the lowest loss at the end is then used for the other seeds too. So both have the same number of
trials. Before, some updates of each are timed, in turns, with nothing else running: a run has as
many updates as fit into --seconds, and its schedule ends there. --jobs runs then share the device:
only their losses count. --longer: AdamW at its best rate once more with so many times the updates,
its schedule stretched alike, to see when it reaches Muon's loss.

Time is CPU time on a CPU, so that other work on the machine disturbs it little, and time by the
clock on a GPU. Corpora: shakespeare (a small language model of letters), reviews (a language model
of 29 million parameters on the subwords of IMDb's reviews), cmudict (letters to phones), multi30k
(en-de, with BLEU of the validation set, greedy). Writes results/optimizer_CORPUS_DEVICE.json after
every run and prints a table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
OPTIMIZERS = ("adamw", "muon")
TIMED = {"cpu": 20, "cuda": 240}  # updates, of which the time of one is taken; twice for each
WINDOW = 20  # of them, on a GPU; the later half of the windows counts, as graphs are captured first
POINTS = 4  # validations of a run
MAX_BEYOND = 3  # rates beyond those asked for
SPLITS = ("train", "valid")
CORPORA: dict[str, dict[str, Any]] = {
    "shakespeare": {
        "task": "language_modeling",
        "data": {
            **{split: {"name": "tiny-shakespeare", "split": split} for split in SPLITS},
            "tokens": {"both": {"level": "character"}},
            "max_length": 128,
        },
        "model": {
            "width": 128,
            "dropout": 0.0,
            "decoder": {"layers": 3, "heads": 4, "feed_forward": 512, "activation": "gelu"},
        },
    },
    "reviews": {
        "task": "language_modeling",
        "data": {"tokens": {"both": {"size": 8000, "sample": 10_000}}, "max_length": 256},
        "model": {
            "width": 512,
            "dropout": 0.1,
            "tie_embeddings": "target",
            "decoder": {
                "layers": 8,
                "heads": 8,
                "feed_forward": 2048,
                "activation": "gelu",
                "positions": "rotary",
            },
        },
        "train": {"weight_decay": 0.1},
    },
    "cmudict": {
        "data": {
            **{split: {"name": "cmudict", "split": split} for split in SPLITS},
            "tokens": {"source": {"level": "character"}, "target": {"level": "symbol"}},
        },
        "model": {"preset": "transformer-small", "width": 128, "dropout": 0.1},
    },
    "multi30k": {
        "data": {
            **{split: {"name": "multi30k", "split": split, "pair": "en-de"} for split in SPLITS},
            "tokens": {"both": {"size": 8000}},
            "max_length": 128,
        },
        "model": {"preset": "transformer-small", "dropout": 0.3, "tie_embeddings": "all"},
        "train": {"label_smoothing": 0.1},
        "validation": {"limit": 1014},
        "metrics": ["bleu"],
    },
}


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--corpus", choices=CORPORA, default="shakespeare")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3])
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--longer", type=float, nargs="*", default=[], help="times the updates")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--files", type=Path, nargs=2, help="training and validation text instead")
    parser.add_argument("--tokens", help="vocabulary file; default: one is learnt first")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--each", type=float, nargs=2, help="seconds of an update, timed before")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(measure(json.loads(asked.one))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        found = Study(asked, Path(scratch)).all_runs()
    for line in [*summary(found), *longer_runs(found)]:
        print(line)
    if any("failed" in run for run in found["runs"]):
        sys.exit("Some runs have failed: see above.")


class Study:
    """All runs of one corpus, and the file of results that they are written to."""

    def __init__(self, asked: argparse.Namespace, scratch: Path) -> None:
        from transduce.hardware import describe, pick_device

        device = pick_device(asked.device)
        self.asked, self.parts = asked, CORPORA[asked.corpus]
        files = asked.files or (write_reviews(scratch) if asked.corpus == "reviews" else None)
        self.data = dict(self.parts["data"])
        if files:
            self.data |= {split: {"text": str(f)} for split, f in zip(SPLITS, files, strict=True)}
        self.data["tokens"] = self._learn_tokens(scratch / "tokens")
        self.found: dict[str, Any] = {
            "command": command(asked),
            "device": describe(device),
            "clock": "CPU seconds" if device.type == "cpu" else "seconds",
            "corpus": asked.corpus,
            "seconds": asked.seconds,
            "batch_tokens": asked.batch_tokens,
            "each": dict(zip(OPTIMIZERS, asked.each, strict=True))
            if asked.each
            else self._time_updates(device.type),
            "runs": [],
        }
        self.place = RESULTS / f"optimizer_{asked.corpus}_{device.type}.json"
        print(json.dumps(self.found), flush=True)

    def all_runs(self) -> dict[str, Any]:
        rates = sorted(self.asked.rates)
        self._run([(name, rate, 1, 1.0) for rate in rates for name in OPTIMIZERS])
        for _ in range(MAX_BEYOND):
            chosen = {self._best(name) for name in OPTIMIZERS}
            beyond = [rates[0] / 2] * (rates[0] in chosen) + [rates[-1] * 2] * (rates[-1] in chosen)
            if not beyond:
                break
            rates = sorted([*rates, *beyond])
            self._run([(name, rate, 1, 1.0) for rate in beyond for name in OPTIMIZERS])
        best = {name: self._best(name) for name in OPTIMIZERS}
        last = [("adamw", best["adamw"], 1, times) for times in sorted(self.asked.longer)[::-1]]
        seeds = range(2, self.asked.seeds + 1)
        self._run([*last, *((name, best[name], seed, 1.0) for seed in seeds for name in best)])
        return self.found

    def _run(self, wanted: list[tuple[str, float, int, float]]) -> None:
        with ThreadPoolExecutor(self.asked.jobs) as pool:
            for job in as_completed([pool.submit(self._one, *one) for one in wanted]):
                self.found["runs"].append(job.result())
                print(self.found["runs"][-1], flush=True)
                self.place.write_text(json.dumps(self.found, indent=1) + "\n", "utf-8")

    def _one(self, name: str, rate: float, seed: int, times: float) -> dict[str, Any]:
        steps = max(POINTS, round(times * self.asked.seconds / self.found["each"][name]))
        recipe = self._recipe(name, rate, seed, steps)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, "--one", json.dumps(recipe)],
            capture_output=True,
            text=True,
        )
        metadata = {"optimizer": name, "lr": rate, "seed": seed, "times": times, "steps": steps}
        if done.returncode:
            return metadata | {"failed": (done.stdout + done.stderr)[-500:]}
        measured = json.loads(done.stdout.strip().splitlines()[-1])
        return metadata | {key: measured[key] for key in ("seconds", "valid", "bleu")}

    def _best(self, name: str) -> float:
        return best_rate(self.found["runs"], name)

    def _learn_tokens(self, folder: Path) -> dict[str, Any]:
        """The vocabulary, learnt once for all runs."""
        from transduce.training import train

        if self.asked.tokens:
            return {side: {"file": self.asked.tokens} for side in self.data["tokens"]}
        if any(one.get("level") == "character" for one in self.data["tokens"].values()):
            return dict(self.data["tokens"])  # takes no time
        train(self._recipe("adamw", 1e-3, 1, 1, points=1, decode=False), folder)
        sides = {"both": "target", "source": "source", "target": "target"}
        return {
            side: {"file": str(folder / f"{sides[side]}.tokens.json")}
            for side in self.data["tokens"]
        }

    def _time_updates(self, device: str) -> dict[str, float]:
        """Seconds of one update with each optimizer, the faster of two runs in turns."""
        taken: dict[str, list[float]] = {name: [] for name in OPTIMIZERS}
        for _ in range(2):
            for name in OPTIMIZERS:
                few, many = (
                    self._recipe(name, 1e-3, 1, steps, points=1, decode=False)
                    for steps in (1, 1 + TIMED[device])
                )
                if device == "cpu":  # the log has no CPU time; one validation each, which cancels
                    both = [measure(one)["seconds"] for one in (few, many)]
                    taken[name].append((both[1] - both[0]) / TIMED[device])
                else:
                    many["train"]["log_every"] = WINDOW
                    windows = measure(many)["windows"]
                    taken[name].append(statistics.median(windows[len(windows) // 2 :]) / WINDOW)
        return {name: min(values) for name, values in taken.items()}

    def _recipe(
        self,
        optimizer: str,
        rate: float,
        seed: int,
        steps: int,
        points: int = POINTS,
        decode: bool = True,
    ) -> dict[str, Any]:
        settings = {
            "steps": steps,
            "batch_tokens": self.asked.batch_tokens,
            "lr": rate,
            "warmup": max(1, steps // 10),
            "schedule": "cosine",
            "optimizer": optimizer,
            "device": self.asked.device,
            "log_every": steps,
            "label_smoothing": 0.0,
        }
        recipe = {"name": "optimizer", "decode": {"beam": 1}, "metrics": [], **self.parts}
        recipe |= {"data": self.data, "seed": seed, "train": settings | recipe.get("train", {})}
        validation = {"every": -(-steps // points), "metric": "loss"}
        if recipe.get("task") != "language_modeling":
            validation["limit"] = 1  # outputs; the loss is of the whole set
        recipe["validation"] = validation | recipe.get("validation", {})
        if not decode:
            recipe["metrics"] = []
            recipe["validation"].pop("limit", None)
        return recipe


def measure(recipe: dict[str, Any]) -> dict[str, Any]:
    """A run: its validation losses, the seconds of all of it, and those of each log window."""
    from transduce.hardware import pick_device
    from transduce.training import train
    from transduce.training.log import read_log

    on_cpu = pick_device(recipe["train"]["device"]).type == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    with tempfile.TemporaryDirectory() as scratch:
        start = clock()
        train(recipe, Path(scratch) / "run")
        seconds = clock() - start
        records = read_log(Path(scratch) / "run" / "log.jsonl")
    valid = [one for one in records if one["kind"] == "valid"]
    ends = [0.0, *(one["seconds"] for one in records if one["kind"] == "train")]
    return {
        "seconds": round(seconds, 2),
        "valid": [(one["step"], round(one["loss"], 5)) for one in valid],
        "bleu": round(valid[-1]["bleu"], 2) if "bleu" in valid[-1] else None,
        "windows": [after - before for before, after in pairwise(ends)],
    }


def write_reviews(folder: Path) -> tuple[Path, Path]:
    """IMDb's reviews as running text, one a line: 47,500 to train on, 500 to validate."""
    from transduce.corpora.location import corpora_folder

    parts = {"train": ["train", "test"], "valid": ["valid"]}
    for name, splits in parts.items():
        rows = [
            row.split("\t")[0].replace("<br />", " ")
            for split in splits
            for row in (corpora_folder() / "imdb" / f"{split}.tsv").read_text("utf-8").splitlines()
        ]
        some = rows[:500] if name == "valid" else rows
        text = "\n".join(" ".join(row.split()) for row in some) + "\n"
        (folder / f"{name}.txt").write_text(text, "utf-8")
    return folder / "train.txt", folder / "valid.txt"


def command(asked: argparse.Namespace) -> str:
    parts = [f"--corpus {asked.corpus} --seconds {asked.seconds:g} --seeds {asked.seeds}"]
    parts.append(f"--rates {' '.join(map(str, asked.rates))}")
    if asked.batch_tokens != 1024:
        parts.append(f"--batch-tokens {asked.batch_tokens}")
    if asked.longer:
        parts.append(f"--longer {' '.join(f'{times:g}' for times in asked.longer)}")
    if asked.device != "cpu":
        parts.append(f"--jobs {asked.jobs} --device {asked.device}")
    return f"python benchmarks/optimizer.py {' '.join(parts)}"


def of(runs: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The runs of an optimizer with the usual number of updates that did not fail."""
    own = [run for run in runs if run["optimizer"] == name and "failed" not in run]
    return [run for run in own if run.get("times", 1.0) == 1.0]


def best_rate(runs: list[dict[str, Any]], name: str) -> float:
    first = [run for run in of(runs, name) if run["seed"] == 1]
    return float(min(first, key=lambda run: run["valid"][-1][1])["lr"])


def summary(found: dict[str, Any]) -> list[str]:
    """Markdown: each optimizer at its best rate."""
    runs = found["runs"]
    tried = ", ".join(f"{rate:g}" for rate in sorted({run["lr"] for run in runs}))
    scored = any(run.get("bleu") is not None for run in runs)
    head = ["optimizer", f"{found['clock']} an update", "updates", f"best of {tried}", "loss"]
    rows = [[*head, "BLEU"] if scored else head]
    rows.append(["---"] * len(rows[0]))
    for name in OPTIMIZERS:
        rate = best_rate(runs, name)
        own = [run for run in of(runs, name) if run["lr"] == rate]
        row = [name, f"{found['each'][name]:.4f}", f"{own[0]['steps']:,}", f"{rate:g}"]
        row.append(mean_and_spread([run["valid"][-1][1] for run in own], 2))
        rows.append([*row, mean_and_spread([run["bleu"] for run in own], 1)] if scored else row)
    return ["| " + " | ".join(row) + " |" for row in rows]


def longer_runs(found: dict[str, Any]) -> list[str]:
    """AdamW with more updates, beside Muon's loss."""
    lines = []
    for run in sorted(found["runs"], key=lambda run: run["steps"]):
        if run.get("times", 1.0) != 1.0 and "failed" not in run:
            seconds = run["steps"] * found["each"]["adamw"]
            lines.append(
                f"AdamW with {run['times']:g} times the updates ({run['steps']:,}, "
                f"{seconds:.0f} s): loss {run['valid'][-1][1]:.2f}"
                + ("" if run.get("bleu") is None else f", BLEU {run['bleu']:.1f}")
            )
    return lines


def mean_and_spread(values: list[float], digits: int) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}"


if __name__ == "__main__":
    main()
