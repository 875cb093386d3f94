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
from dataclasses import asdict
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
]
BATCHES = ["unit/data/batches/test_batch.py", "unit/data/batches/test_blocks.py"]
EVALUATION = [f"unit/evaluation/test_{name}.py" for name in ("evaluate", "metrics", "perplexity")]
EVALUATION += ["unit/tasks/test_tag.py", "unit/tasks/test_speech.py"]
JUDGING = [f"unit/evaluation/test_{name}.py" for name in ("slices", "evaluate")]
ABLATION = ["unit/inspection/ablation/test_ablation.py"]
ALIGNMENT = ["unit/inspection/analysis/test_alignment.py"]
ATTRIBUTION = ["unit/inspection/analysis/test_attribution.py"]
LOOK = [f"unit/inspection/look/test_{name}.py" for name in ("beam", "collect", "page")]
SEARCH = ["unit/decoding/search/test_greedy.py", "unit/decoding/constraints/test_constraint.py"]
# What chooses, averages, counts, pairs and draws; the tests of each, the quickest first.
TESTS: dict[str, list[str]] = {
    "training/loop.py": TRAINING,
    "training/validate.py": TRAINING,
    "training/prepare.py": ["unit/training/test_prepare.py", *TRAINING],
    "training/optimizer.py": ["unit/training/test_optimizer.py"],
    "training/log_window.py": ["unit/training/test_log_window.py"],
    "training/memory/auto_batch.py": ["unit/training/memory/test_auto_batch.py"],
    "training/nan_guard.py": ["unit/training/test_nan_guard.py"],
    "training/run_directory/kept_checkpoints.py": [
        "unit/training/run_directory/test_kept_checkpoints.py",
        *TRAINING,
    ],
    "training/run_directory/best_model.py": [
        "unit/training/run_directory/test_best_model.py",
        *TRAINING,
    ],
    "data/batches/batch.py": BATCHES,
    "data/batches/bucketing.py": BATCHES,
    "data/batches/blocks.py": BATCHES,
    "data/batches/stream.py": ["unit/data/batches/test_stream.py", *BATCHES],
    "data/cache/tokenised.py": [
        "unit/data/cache/test_tokenised.py",
        "unit/data/batches/test_batch.py",
    ],
    "data/cache/eviction.py": ["unit/data/cache/test_eviction.py"],
    "data/text/columns.py": ["unit/data/text/test_pairs.py", "unit/data/text/test_conllu.py"],
    "data/text/pairs.py": ["unit/data/text/test_pairs.py", "unit/data/text/test_tags.py"],
    "data/doctor/findings.py": ["unit/data/doctor/test_check.py"],
    "data/doctor/statistics.py": ["unit/data/doctor/test_check.py"],
    "data/audio/corpus.py": ["unit/data/audio/test_corpus.py"],
    "evaluation/evaluate.py": EVALUATION,
    "evaluation/bootstrap.py": ["unit/evaluation/test_bootstrap.py"],
    "evaluation/slices.py": ["unit/evaluation/test_slices.py"],
    "evaluation/items.py": JUDGING,
    "evaluation/item_results.py": JUDGING,
    "evaluation/judge.py": [*JUDGING, "unit/tasks/test_tag.py"],
    "evaluation/compare.py": ["unit/evaluation/test_compare.py"],
    "evaluation/metrics.py": ["unit/evaluation/test_metrics.py"],
    "evaluation/classification.py": ["unit/evaluation/test_classification.py"],
    "evaluation/perplexity.py": ["unit/evaluation/test_perplexity.py"],
    "decoding/search/beam.py": SEARCH,
    "decoding/search/greedy.py": SEARCH,
    "decoding/combine/rerank.py": ["unit/decoding/combine/test_rerank.py"],
    "decoding/batch/decode.py": [
        "unit/decoding/batch/test_decode.py",
        "unit/tasks/test_transduce.py",
    ],
    "inspection/figures.py": ["unit/inspection/test_figures.py"],
    "inspection/ablation/measure.py": ABLATION,
    "inspection/ablation/prune.py": ABLATION,
    "inspection/ablation/show.py": ABLATION,
    "inspection/ablation/trial_data.py": ABLATION,
    "inspection/analysis/alignment.py": ALIGNMENT,
    "inspection/analysis/heads.py": ALIGNMENT,
    "inspection/analysis/attention.py": ["unit/inspection/analysis/test_attention.py"],
    "inspection/analysis/attribution.py": ATTRIBUTION,
    "inspection/analysis/model_attribution.py": ATTRIBUTION,
    "inspection/analysis/subject.py": [*ATTRIBUTION, *ALIGNMENT],
    "inspection/look/beam.py": LOOK,
    "inspection/look/collect.py": LOOK,
    "inspection/look/embedding.py": LOOK,
    "inspection/look/figure.py": LOOK,
}
PICTURES = ("inspection/figures.py", "inspection/ablation/show.py", "inspection/look/figure.py")
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
            archive.extractall(folder, filter="data")

    def fails(self, file: str, limit: float, wanted: set[str] | None = None) -> bool | None:
        """Whether a test of a file fails; None where the time was up.

        Without `wanted` all its tests are run, and which lines they ran is written down. Where
        there is no test at all, that counts as a failure.
        """
        child = os.fork()
        if child == 0:
            self._test(file, wanted)
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

    def lines(self) -> dict[int, set[str]]:
        """By which tests each line was run; by "" where it was run for all, as on import."""
        found = json.loads((self.folder / "lines.json").read_text("utf-8"))
        return {int(line): set(tests) for line, tests in found.items()}

    def _test(self, file: str, wanted: set[str] | None) -> None:
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
        tests = [f"tests/{test}" for test in TESTS[file]]
        tests = [test for test in tests if (self.folder / test.partition("::")[0]).is_file()]
        asked = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
        seen = Seen(str(self.folder / PACKAGE / file))
        plugin: object = seen if wanted is None else Only(wanted)
        code = pytest.main([*asked, f"--basetemp={self.folder / 'tmp'}", *tests], [plugin])
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
    """A plugin of pytest: which lines of a file each test runs."""

    def __init__(self, file: str) -> None:
        self.file, self.test = file, ""
        self.lines: dict[int, set[str]] = {}

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
        return self._note if frame.f_code.co_filename == self.file else None

    def _note(self, frame: FrameType, event: str, value: object) -> Any:
        self.lines.setdefault(frame.f_lineno, set()).add(self.test)
        return self._note

    def write(self, path: Path, wanted: bool) -> None:
        sys.settrace(None)
        if wanted:
            found = {line: sorted(tests) for line, tests in self.lines.items()}
            path.write_text(json.dumps(found), "utf-8")


def _file(test: str) -> str:
    return test.partition("::")[0] + "::"


def survivors(mutants: list[Mutant], project: Copy) -> tuple[list[Mutant], list[str]]:
    """Those that no test fails, and the files whose tests fail without any change.

    Of the latter no mutant is tried: all of them would seem to be noticed.
    """
    alive: list[Mutant] = []
    broken: list[str] = []
    limits: dict[str, float] = {}
    lines: dict[int, set[str]] = {}
    for number, mutant in enumerate(mutants, start=1):
        if mutant.file in broken:
            continue
        if mutant.file not in limits:
            began = time.monotonic()
            if project.fails(mutant.file, 1800) is not False:
                broken.append(mutant.file)
                print(f"{mutant.file}: its tests fail as it is\n", flush=True)
                continue
            limits[mutant.file] = 60 + 2 * (time.monotonic() - began)
            lines = project.lines()
            everything = {test for tests in lines.values() for test in tests}
        own = set().union(*(lines.get(n, ()) for n in range(mutant.line, mutant.last + 1)))
        tests = everything if "" in own else own
        path = project.folder / PACKAGE / mutant.file
        text = path.read_bytes()
        path.write_bytes(mutant.applied(text))
        outcome = bool(tests) and project.fails(mutant.file, limits[mutant.file], tests)
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
    for file in broken:
        print(f"not tried: the tests of {file} fail as it is: {' '.join(TESTS[file])}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
