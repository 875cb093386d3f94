"""How much of the logic is held by tests: break it in small ways and see whether a test fails.

    python tests/mutants.py                       a sample of mutants, and those that survive
    python tests/mutants.py loop.py beams.py      of these files alone
    python tests/mutants.py --tests v0.1          the tests of another revision, the code of now
    python tests/mutants.py --again survivors.json

A mutant is one change in one place: a comparison, an operator, a constant, a condition, a bound of
a slice, min for max, a statement left out. Each runs in a copy of the project, against the tests of
its file that run its line. Those that no test fails are printed; a person decides whether a user
would notice them. The same seed gives the same sample as long as the code is the same.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from mutations import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/transduce")
RUNS = "integration/test_training_options.py"
TRAINING = [
    "unit/training/test_loop.py",
    f"{RUNS}::test_patience_ends_a_run_that_gets_no_better",
    f"{RUNS}::test_what_the_state_before_the_newest_had_kept_stays",
    "integration/test_guard.py::test_resuming_after_skipped_updates_is_exact",
]
BATCHES = ["unit/data/batches/test_batch.py", "unit/data/batches/test_blocks.py"]
EVALUATION = [f"unit/evaluation/test_{name}.py" for name in ("evaluate", "metrics", "perplexity")]
EVALUATION += ["unit/tasks/test_tag.py", "unit/tasks/test_speech.py"]
SCORING = [f"unit/evaluation/test_{name}.py" for name in ("slices", "evaluate")]
ABLATION = ["unit/inspection/ablation/test_measure.py"]
ALIGNMENT = ["unit/inspection/analysis/test_alignment.py"]
ATTRIBUTION = ["unit/inspection/analysis/test_attribution.py"]
LOOK = [f"unit/inspection/look/test_{name}.py" for name in ("beam", "collect", "show")]
SEARCH = ["unit/decoding/search/test_greedy.py", "unit/decoding/constraints/test_constraint.py"]
# What chooses, averages, counts, pairs and draws; the tests of each, the quickest first.
TESTS: dict[str, list[str]] = {
    "training/loop.py": TRAINING,
    "training/validate.py": TRAINING,
    "training/prepare.py": ["unit/training/test_prepare.py", *TRAINING],
    "training/optimizer.py": ["unit/training/test_optimizer.py"],
    "training/log_window.py": ["unit/training/test_log_window.py"],
    "training/auto_batch.py": ["unit/training/test_auto_batch.py"],
    "training/nan_guard.py": ["unit/training/test_nan_guard.py"],
    "training/own_file/plan.py": ["unit/training/own_file/test_time_left.py"],
    "training/own_file/tags.py": ["unit/training/own_file/test_time_left.py"],
    "training/own_file/time_left.py": ["unit/training/own_file/test_time_left.py"],
    "tasks/members.py": ["unit/tasks/test_members.py"],
    "training/run_directory/best_model.py": [
        "unit/training/run_directory/test_best_model_kept.py",
        "unit/training/run_directory/test_best_model.py",
        *TRAINING,
    ],
    "data/batches/batch.py": [*BATCHES, "unit/data/audio/test_corpus.py"],
    "data/batches/bucketing.py": BATCHES,
    "data/batches/blocks.py": BATCHES,
    "data/batches/streaming_dataset.py": ["unit/data/batches/test_streaming_dataset.py", *BATCHES],
    "data/cache/tokenised.py": [
        "unit/data/cache/test_tokenised.py",
        "unit/data/batches/test_batch.py",
    ],
    "data/cache/eviction.py": ["unit/data/cache/test_eviction.py"],
    "data/text/columns.py": ["unit/data/text/test_pairs.py", "unit/data/text/test_conll.py"],
    "data/text/pairs.py": ["unit/data/text/test_pairs.py", "unit/data/text/test_tags.py"],
    "data/doctor/check.py": ["unit/data/doctor/test_check.py"],
    "data/audio/corpus.py": ["unit/data/audio/test_corpus.py"],
    "evaluation/evaluate.py": EVALUATION,
    "evaluation/bootstrap.py": ["unit/evaluation/test_bootstrap.py"],
    "evaluation/slices.py": SCORING,
    "evaluation/items.py": SCORING,
    "evaluation/results.py": SCORING,
    "evaluation/score.py": [*SCORING, "unit/tasks/test_tag.py"],
    "evaluation/compare.py": ["unit/evaluation/test_compare.py"],
    "evaluation/metrics.py": ["unit/evaluation/test_metrics.py"],
    "evaluation/classification.py": ["unit/evaluation/test_classification.py"],
    "evaluation/perplexity.py": ["unit/evaluation/test_perplexity.py"],
    "decoding/search/beam.py": SEARCH,
    "decoding/search/greedy.py": SEARCH,
    "decoding/search/hypothesis.py": SEARCH,
    "decoding/combine/rerank.py": ["unit/decoding/combine/test_rerank.py"],
    "decoding/batch/decode.py": [
        "unit/decoding/batch/test_decode.py",
        "unit/tasks/test_transduce.py",
    ],
    "inspection/figures.py": ["unit/inspection/test_figures.py"],
    "inspection/ablation/measure.py": [*ABLATION, "unit/cli/commands/test_compare.py"],
    "inspection/ablation/show.py": ABLATION,
    "inspection/analysis/alignment.py": ALIGNMENT,
    "inspection/analysis/heads.py": ALIGNMENT,
    "inspection/analysis/attention.py": ["unit/inspection/analysis/test_attention.py"],
    "inspection/analysis/attribution.py": ATTRIBUTION,
    "inspection/analysis/model_attribution.py": ATTRIBUTION,
    "inspection/analysis/subject.py": [*ATTRIBUTION, *ALIGNMENT],
    "inspection/look/beam.py": LOOK,
    "inspection/look/collect.py": LOOK,
    "inspection/look/show.py": LOOK,
}
PICTURES = ("inspection/figures.py", "inspection/ablation/show.py", "inspection/look/show.py")
"""Sizes and colours are taste: the numbers in these files are left alone."""
MEMORY = 6 * 2**30  # bytes that the tests of a mutant may take


def sample(count: int, seed: int, only: list[str]) -> list[Mutant]:
    """As many mutants of each file as its share of all of them, at least two."""
    files = [f for f in TESTS if not only or any(part in f for part in only)]
    every = {
        f: mutants_of(f, (ROOT / PACKAGE / f).read_text("utf-8"), f in PICTURES) for f in files
    }
    total = sum(map(len, every.values()))
    chosen = []
    for file, some in every.items():
        size = min(len(some), max(2, round(count * len(some) / total)))
        drawn = random.Random(f"{seed} {file}").sample(some, size)
        chosen += sorted(drawn, key=lambda mutant: mutant.start)
    return chosen


@dataclass
class Traced:
    """What the tests of one entry in `TESTS` run as the code is."""

    seconds: float
    lines: dict[str, dict[int, set[str]]]
    """File, line, tests; the test "" where a line is run for all of them, as on import."""


class Copy:
    """A copy of the project in a folder that is thrown away."""

    def __init__(self, folder: Path, tests: str | None) -> None:
        self.folder = folder
        for part in ("src", "pyproject.toml", "docs", "benchmarks", "README.md", "Makefile"):
            there = ROOT / part
            copied = shutil.copytree if there.is_dir() else shutil.copy2
            copied(there, folder / part)
        if tests is None:
            shutil.copytree(ROOT / "tests", folder / "tests")
            return
        packed = subprocess.run(
            ["git", "archive", tests, "tests"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4
            archive.extractall(folder, **safe)

    def traced(self, test: str) -> Traced | None:
        """Which lines a file of tests runs; None where a test of it fails, or it has none."""
        if not (self.folder / "tests" / test.partition("::")[0]).is_file():
            return Traced(0, {})  # a revision that had no such tests yet
        began = time.monotonic()
        if self.fails([test], 1800) is not False:
            return None
        found = json.loads((self.folder / "lines.json").read_text("utf-8"))
        lines = {
            file: {int(line): set(tests) for line, tests in every.items()}
            for file, every in found.items()
        }
        return Traced(time.monotonic() - began, lines)

    def fails(self, tests: list[str], limit: float, wanted: set[str] | None = None) -> bool | None:
        """Whether one of these tests fails; None where the time was up.

        Without `wanted` all of them are run, and which lines they ran is written down. Where
        there is no test at all, that counts as a failure.
        """
        child = os.fork()
        if child == 0:
            self._test(tests, wanted)
        deadline = time.monotonic() + limit
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status) != 0
            if time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            time.sleep(0.02)

    def _test(self, tests: list[str], wanted: set[str] | None) -> None:
        os.setsid()
        with suppress(ImportError, ValueError):  # one that never ends may also take all memory
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        os.chdir(self.folder)
        sink = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(sink, stream)
        for place in ("tests", "src"):
            sys.path.insert(0, str(self.folder / place))
        os.environ |= {
            "PYTHONPATH": str(self.folder / "src"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder / "hypothesis"),
        }
        sys.dont_write_bytecode = True  # a mutant may have the size and date of the one before
        places = [f"tests/{test}" for test in tests]
        asked = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
        seen = Seen(self.folder / PACKAGE)
        plugin: object = seen if wanted is None else Only(wanted)
        code = pytest.main([*asked, f"--basetemp={self.folder / 'tmp'}", *places], [plugin])
        seen.write(self.folder / "lines.json", wanted is None)
        none = wanted is not None and code == pytest.ExitCode.NO_TESTS_COLLECTED
        os._exit(0 if none else int(code))


class Only:
    """A plugin of pytest: of all tests these; a name that ends in "::" is all tests of a file."""

    def __init__(self, wanted: set[str]) -> None:
        self.wanted = wanted

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if {item.nodeid, _file(item.nodeid)} & self.wanted]


class Seen:
    """A plugin of pytest: which lines of the files in `TESTS` each test runs."""

    def __init__(self, package: Path) -> None:
        self.test = ""
        self.names = {str(package / file): file for file in TESTS}
        self.lines: dict[str, dict[int, set[str]]] = {file: {} for file in TESTS}

    def pytest_sessionstart(self) -> None:
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def pytest_runtest_setup(self, item: Any) -> None:
        self.test = item.nodeid

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        """What a fixture that tests share runs is run for each of them."""
        before = self.test
        if fixturedef.scope in ("class", "module"):
            self.test = _file(before)
        elif fixturedef.scope != "function":
            self.test = ""
        try:
            return (yield)
        finally:
            self.test = before

    def _enter(self, frame: FrameType, event: str, value: object) -> Any:
        return self._note if frame.f_code.co_filename in self.names else None

    def _note(self, frame: FrameType, event: str, value: object) -> Any:
        lines = self.lines[self.names[frame.f_code.co_filename]]
        lines.setdefault(frame.f_lineno, set()).add(self.test)
        return self._note

    def write(self, path: Path, wanted: bool) -> None:
        sys.settrace(None)
        if wanted:
            found = {
                file: {line: sorted(tests) for line, tests in lines.items()}
                for file, lines in self.lines.items()
            }
            path.write_text(json.dumps(found), "utf-8")


def _file(test: str) -> str:
    return test.partition("::")[0] + "::"


def _tests_of(mutant: Mutant, traced: dict[str, Traced]) -> tuple[list[str], set[str]]:
    """Those entries of `TESTS` and, in them, those tests that run the line of a mutant."""
    entries, wanted = [], set()
    for entry, run in traced.items():
        lines = run.lines.get(mutant.file, {})
        own = set().union(*(lines.get(n, ()) for n in range(mutant.line, mutant.last + 1)))
        if "" in own:
            own = set().union(*lines.values())
        if own - {""}:
            entries.append(entry)
            wanted |= own
    return entries, wanted


def survivors(mutants: list[Mutant], project: Copy) -> tuple[list[Mutant], dict[str, list[str]]]:
    """Those that no test fails; and of each file whose tests fail as it is, those tests.

    Of the latter no mutant is tried: all of them would seem to be noticed.
    """
    alive: list[Mutant] = []
    broken: dict[str, list[str]] = {}
    traced: dict[str, Traced | None] = {}
    for number, mutant in enumerate(mutants, start=1):
        if mutant.file in broken:
            continue
        own = TESTS[mutant.file]
        for test in own:
            if test not in traced:
                traced[test] = project.traced(test)
        failing = [test for test in own if traced[test] is None]
        if failing:
            broken[mutant.file] = failing
            print(f"{mutant.file}: not tried, {', '.join(failing)} fails as it is\n", flush=True)
            continue
        known = {test: run for test in own if (run := traced[test]) is not None}
        tests, wanted = _tests_of(mutant, known)
        limit = 60 + 2 * sum(known[test].seconds for test in tests)
        path = project.folder / PACKAGE / mutant.file
        text = path.read_bytes()
        path.write_bytes(mutant.applied(text))
        outcome = bool(tests) and project.fails(tests, limit, wanted)
        path.write_bytes(text)
        if outcome is False:
            alive.append(mutant)
            print(mutant, "" if tests else "    (no test runs this)", sep="\n", flush=True)
        print(f"{number} of {len(mutants)}, {len(alive)} survive", file=sys.stderr, flush=True)
    return alive, broken


def _load_libraries() -> None:
    """All that the package imports of others, so that no mutant has to wait for it."""
    listed = (
        "import sys, matplotlib.figure, pytest, hypothesis, transduce.cli.main, transduce.training"
    )
    printed = f"{listed}; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    found = subprocess.run(
        [sys.executable, "-c", printed], env=environment, check=True, capture_output=True, text=True
    ).stdout.split()
    for name in found:
        if name.partition(".")[0] not in ("transduce", "__main__"):
            with suppress(Exception):  # what is loaded in some other way
                importlib.import_module(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("files", nargs="*", help="parts of the names of source files")
    parser.add_argument("--count", type=int, default=200, help="mutants in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", help="a git revision whose tests are run")
    parser.add_argument("--write", type=Path, help="a JSON file for those that survive")
    parser.add_argument("--again", type=Path, help="such a file, whose mutants are run again")
    parser.add_argument("--list", action="store_true", help="run nothing")
    asked = parser.parse_args()
    if asked.again is not None:
        chosen = [Mutant(**values) for values in json.loads(asked.again.read_text("utf-8"))]
    else:
        chosen = sample(asked.count, asked.seed, asked.files)
    if asked.list:
        print("\n".join(map(str, chosen)))
        return
    _load_libraries()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        alive, broken = survivors(chosen, Copy(Path(folder), asked.tests))
    tried = sum(mutant.file not in broken for mutant in chosen)
    print(f"{len(alive)} of {tried} mutants survive ({len(alive) / max(1, tried):.0%})")
    if asked.write is not None:
        asked.write.write_text(json.dumps([asdict(mutant) for mutant in alive], indent=1) + "\n")
    for file, failing in broken.items():
        print(f"{file}: not tried, {', '.join(failing)} fails as it is")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
