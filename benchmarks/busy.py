"""How busy a GPU is while shipped recipes train: tokens a second, and its share of busy time.

    python benchmarks/busy.py [RECIPE...] [--device cuda] [--seconds 15] [--before SRC] [--together]

Each recipe trains in a process of its own, with its own batches and without validation, for
`--warm` seconds (and `--updates` updates), in which kernels are compiled and graphs captured, and
then for `--seconds`.
`busy` is the share of that time in which a kernel ran, as nvidia-smi samples it. `first` is from
the start of the process to its first update, reading and tokenising included (the second process
finds the tokenised corpus). `loss` is the mean over the first `--updates` updates, which must not
change. --kernels profiles some more updates: which kernels ran, and how long. With --before, the
same is measured with another checkout's package, in turns: SRC is its folder `src`. With --together
all recipes start and warm up side by side, then wait, and are measured one after the other, each
alone on the GPU, after SETTLE more seconds; `first` is then no time of a process alone. Prints a
table and writes benchmarks/results/busy_DEVICE.json after each recipe.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()
RESULTS = Path(__file__).parent / "results"
RECIPES = [
    "multi30k-en-de",
    "multi30k-en-de-lstm",
    "multi30k-en-de-conv",
    "sigmorphon",
    "cmudict",
    "cmudict-lstm",
    "shakespeare",
    "ewt-tagger",
    "asterisk-small",
]


MOST_KERNELS, MOST_LETTERS = 20, 90
SETTLE = 1.5  # seconds of a recipe whose turn has come, before its time is taken
READY = "ready"


class Ended(Exception):
    """The measurement is complete."""


class Clock:
    """Takes the place of a run's progress: counts, and ends it."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.first: float | None = None
        self.began: float | None = None
        self.tokens = self.updates = 0
        self.losses: list[float] = []
        self.sampler: subprocess.Popen[str] | None = None
        self.ended = math.inf
        self.settling: float | None = None
        self.profile: Any = None
        self.last = 0

    def step(self, record: Any) -> None:
        import torch

        on_gpu = self.asked.device != "cpu"
        now = time.perf_counter()
        if self.first is None:
            if on_gpu:
                torch.cuda.synchronize()
            self.first = time.perf_counter()
        elif self.began is None:
            if self._is_warm(now, record.step):
                if on_gpu:
                    torch.cuda.synchronize()
                    self.sampler = sampler()
                self.began = time.perf_counter()
        elif self.profile is not None:
            if record.step >= self.last:
                torch.cuda.synchronize()
                self.profile.stop()
                raise Ended
        else:
            self.tokens += record.tokens
            self.updates += 1
            if now - self.began >= self.asked.seconds:
                if on_gpu:
                    torch.cuda.synchronize()
                self.ended = time.perf_counter()
                if not (on_gpu and self.asked.kernels):
                    raise Ended
                self.last = record.step + self.asked.kernels
                only = [torch.profiler.ProfilerActivity.CUDA]
                self.profile = torch.profiler.profile(activities=only)
                self.profile.start()

    def _is_warm(self, now: float, step: int) -> bool:
        """Whether the measurement may begin; with --in-turn only when the parent says so."""
        assert self.first is not None
        if self.settling is not None:
            return now - self.settling >= SETTLE
        if now - self.first < self.asked.warm or step < self.asked.updates:
            return False
        if not self.asked.in_turn:
            return True
        print(READY, flush=True)
        sys.stdin.readline()
        self.settling = time.perf_counter()
        return False

    def log(self, record: Mapping[str, Any]) -> None:
        if record["step"] <= self.asked.updates:
            self.losses.append(record["loss"])

    def print_line(self, sentence: str) -> None:
        print(sentence, file=sys.stderr)

    def result(self) -> dict[str, Any]:
        assert self.first is not None
        assert self.began is not None
        seconds = self.ended - self.began
        busy = None
        if self.sampler is not None:
            self.sampler.terminate()
            said = self.sampler.communicate()[0].split()
            samples = [int(number) for number in said if number.isdigit()]
            busy = statistics.mean(samples) / 100 if samples else None
        return {
            "tokens_per_second": self.tokens / seconds,
            "updates_per_second": self.updates / seconds,
            "busy": busy,
            "first": self.first - BEGAN,
            "loss": statistics.mean(self.losses) if self.losses else math.nan,
            **({} if self.profile is None else kernels(self.profile, self.asked.kernels)),
        }


def kernels(profile: Any, updates: int) -> dict[str, Any]:
    """How long kernels ran in an update, together and the longest of them; microseconds."""
    import torch

    ran = [one for one in profile.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    spans = sorted((one.time_range.start, one.time_range.end) for one in ran)
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    by_name: dict[str, list[float]] = {}
    for one in ran:
        by_name.setdefault(one.name[:MOST_LETTERS], []).append(one.time_range.elapsed_us())
    longest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:MOST_KERNELS]
    return {
        "kernels": {
            "update": (reached - spans[0][0]) / updates,
            "busy": busy / updates,
            "count": len(ran) / updates,
            "longest": {
                name: {"microseconds": sum(times) / updates, "count": len(times) / updates}
                for name, times in longest
            },
        }
    }


def sampler() -> subprocess.Popen[str]:
    """Prints how busy the GPU was, several times a second."""
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    return subprocess.Popen([*query, "-lms", "200"], stdout=subprocess.PIPE, text=True)


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own: one recipe."""
    from transduce.recipe import load_recipe
    from transduce.training.distributed.processes import Processes
    from transduce.training.loop import Run
    from transduce.training.prepare import prepare

    never = 10**9
    overrides = [f"train.device={asked.device}", f"train.steps={never}", "train.log_every=50"]
    overrides += [f"validation.every={never}", "train.minutes=null", "validation.patience=null"]
    overrides += [f"train.save_every={never}", "train.schedule=constant", *asked.override]
    recipe = load_recipe(asked.recipes[0], overrides)
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(recipe, None, lambda sentence: None, Processes())
        run = Run(recipe, Path(folder), prepared)
        for sentence in run.about():
            print(sentence, file=sys.stderr)
        clock = Clock(asked)
        with suppress(Ended):
            run.run(clock)  # type: ignore[arg-type]
    found = clock.result()
    found["shapes"] = len(getattr(run.update, "_graphs", {}))
    return found


class Child:
    """One recipe in a process of its own."""

    def __init__(self, asked: argparse.Namespace, name: str, source: Path | None) -> None:
        self.name = name
        environment = dict(os.environ)
        if source is not None:
            environment["PYTHONPATH"] = str(source.resolve())
        options = [name, "--alone", "--device", asked.device]
        for key in ("seconds", "warm", "updates", "kernels"):
            options += [f"--{key}", str(getattr(asked, key))]
        for one in asked.override:
            options += ["--override", one]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *options, *(["--in-turn"] if asked.together else [])],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        """Warm; or it has failed, which its result shows."""
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def result(self) -> dict[str, Any] | None:
        """Of one that may begin now; None where it failed."""
        said, _ = self.process.communicate("now\n" if self.process.poll() is None else None)
        if self.process.returncode:
            print(f"{self.name} failed", file=sys.stderr)
            return None
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--warm", type=float, default=15.0)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--kernels", type=int, default=0, help="profile so many updates, too")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--override", action="append", default=[])
    parser.add_argument("--together", action="store_true", help="warm up side by side")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--in-turn", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.alone:
        print(json.dumps(measure(asked)))
        return
    rows: dict[str, Any] = {}
    missing: dict[str, str] = {}
    print(f"{'recipe':24} {'':6} {'tokens/s':>10} {'updates/s':>9} {'busy':>5} {'first':>6} loss")
    out = asked.out or RESULTS / f"busy_{asked.device}.json"
    sources = {"before": asked.before, "now": None}
    kinds = [
        (name, when)
        for name in asked.recipes
        for when in (("before", "now") if asked.before else ("now",))
    ]
    started = {}
    if asked.together:
        started = {kind: Child(asked, kind[0], sources[kind[1]]) for kind in kinds}
        for one in started.values():
            one.wait_until_ready()
    for name, when in kinds:
        one = started.get((name, when)) or Child(asked, name, sources[when])
        found = one.result()
        rows.setdefault(name, {})[when] = found
        if found is None:
            missing[f"{name}, {when}"] = "its process failed"
        else:
            busy = "" if found["busy"] is None else f"{found['busy']:.0%}"
            print(
                f"{name:24} {when:6} {found['tokens_per_second']:10,.0f} "
                f"{found['updates_per_second']:9.1f} {busy:>5} {found['first']:5.1f}s "
                f"{found['loss']:.4f}",
                flush=True,
            )
        out.write_text(json.dumps({"seconds": asked.seconds, "recipes": rows}, indent=1) + "\n")
    if missing:
        sys.exit(f"Not measured: {missing}")


if __name__ == "__main__":
    main()
