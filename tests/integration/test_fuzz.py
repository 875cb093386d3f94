"""Hostile and damaged input of every kind: it ends, in a sentence, and by no signal.

TRANSDUCE_FUZZ is the number of cases, TRANSDUCE_FUZZ_FIRST the first of them: a case is made again
by its number, with TRANSDUCE_FUZZ=1 TRANSDUCE_FUZZ_FIRST=51.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz_cases import make_case
from fuzz_runs import ENDS, PATIENCE, SECONDS, run_cases
from fuzz_world import make_world
from lives import cache_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and limits on memory")

FIRST = int(os.environ.get("TRANSDUCE_FUZZ_FIRST", "0"))
CASES = int(os.environ.get("TRANSDUCE_FUZZ", "10000"))
FEW = 30
ALONE = 100  # one case in so many has a process of its own, from the start


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "world"
    folder.mkdir()
    make_world(folder)
    cache_in(folder.parent)
    return folder


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, world: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(world.parent / "cache"))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


def check(first: int, count: int, world: Path) -> None:
    failures, kinds, slowest = run_cases(range(first, first + count), world)
    reported = ", ".join(f"{number:,} {kind}" for kind, number in sorted(kinds.items()))
    print(f"{count:,} cases ({reported}), the slowest {slowest:.1f} of {SECONDS:.0f} s of work")
    assert not failures, "\n\n".join(map(str, failures[:5])) + f"\n{len(failures)} in all"


def test_some_cases(world: Path) -> None:
    """Others than the many: those are run before a release, these each time."""
    check(1_000_000, FEW, world)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_cases(world: Path) -> None:
    check(FIRST, CASES, world)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_cases_in_processes_of_their_own(world: Path, tmp_path: Path) -> None:
    """As a person starts them: from the import to the exit."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for number in range(FIRST, FIRST + CASES, ALONE):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        case = make_case(number, world, scratch)
        ended = subprocess.run(
            [sys.executable, "-m", "transduce", *case.arguments],
            input=case.stdin,
            capture_output=True,
            cwd=scratch,
            env=environment,
            timeout=PATIENCE,
        )
        reported = ended.stderr.decode("utf-8", "replace")
        assert ended.returncode in ENDS, f"case {number}: {case.arguments}\n{reported}"
        assert "Traceback" not in reported, f"case {number}: {case.arguments}\n{reported}"
