"""A disk that fills up stops a run in one sentence; with space made, the run goes on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lives import Lives, check_same, command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork, tmpfs and limits")

STATE, WEIGHTS = "training.safetensors", "model.safetensors"
PAGE = 4096


def sentence(lives: Lives, status: int, mend: str = "free some space") -> str:
    """The one line in which a run that could not write has ended."""
    assert status == 2, lives.reported
    assert "Traceback" not in lives.reported
    last = lives.reported.splitlines()[-1]
    assert lives.reported.count("transduce: ") == 1
    assert last.startswith("transduce: ")
    assert "could not be written (" in last
    assert mend in last
    return last


def left_behind(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if ".part" in p.name or p.name.startswith(".tmp")]


def stop(lives: Lives, task: Path, folder: Path, turn: int = 4) -> None:
    """A run that has been killed after some states."""
    death = {"file": STATE, "place": "renamed", "turn": turn, "seed": 1}
    lives.start(*command(task, folder), death=death)
    assert lives.end() < 0, lives.reported


WRITES: list[dict[str, Any]] = [
    {"file": "recipe.yaml", "place": "written"},
    {"file": "source.tokens.json", "place": "middle"},
    {"file": "log.jsonl", "place": "middle"},
    {"file": "log.jsonl", "place": "line", "kind": "train"},
    {"file": WEIGHTS, "place": "middle"},
    {"file": "kept-*.safetensors", "place": "middle"},
    {"file": "log.jsonl", "place": "line", "kind": "valid"},
    {"file": STATE, "place": "middle"},
]


def test_no_space_in_mid_write(task: Path, undisturbed: Path, lives: Lives, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stop(lives, task, folder, turn=2)
    before = (folder / "state" / STATE).read_bytes()
    for write in WRITES:
        lives.start(*command(task, folder), death={**write, "seed": 3, "full": True})
        reported = sentence(lives, lives.end())
        assert lives.report is not None
        assert str(lives.report["name"]) in reported
        assert "No space left on device" in reported
        assert not left_behind(folder)
        assert (folder / "state" / STATE).read_bytes() == before
    lives.start(*command(task, folder))
    assert lives.end() == 0, lives.reported
    check_same(folder, undisturbed)


@pytest.mark.parametrize("name", ["metrics.json", "README.md"])
def test_no_space_for_metrics_or_card(
    task: Path, undisturbed: Path, lives: Lives, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    before = (folder / name).read_bytes()
    death = {"file": name, "place": "middle", "seed": 3, "full": True}
    lives.start(*command(task, folder), death=death)
    assert f"{folder / name} could not be written" in sentence(lives, lives.end())
    assert (folder / name).read_bytes() == before
    assert not left_behind(folder)
    lives.start(*command(task, folder))
    assert lives.end() == 0, lives.reported
    check_same(folder, undisturbed)


@pytest.mark.parametrize("largest", [1_000, 12_000, 60_000])
def test_a_limit_on_the_size_of_files(
    task: Path, lives: Lives, tmp_path: Path, largest: int
) -> None:
    folder = tmp_path / "run"
    lives.start(*command(task, folder), largest=largest)
    reported = sentence(lives, lives.end(), "raise the limit on the size of files")
    assert "File too large" in reported
    assert not left_behind(folder)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk, and not everywhere")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def fill(disk: Path, pages: int) -> Path:
    """All of a disk but some pages."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    with ballast.open("wb") as file:
        file.write(bytes((free.f_bavail - pages) * PAGE))
    assert os.statvfs(disk).f_bavail == pages
    return ballast


@pytest.mark.slow  # no space in the middle of each write is tried each time
def test_a_disk_that_is_really_full(
    task: Path, undisturbed: Path, lives: Lives, disk: Path
) -> None:
    """With ever more pages free it gets further before it must stop; then it ends as any other."""
    folder = disk / "run"
    stop(lives, task, folder)
    unwritten = set()
    for pages in (0, 1, 2, 3, 8, 12, 16, 24, 40, 56):
        ballast = fill(disk, pages)
        lives.start(*command(task, folder))
        reported = sentence(lives, lives.end())
        ballast.unlink()
        assert "No space left on device" in reported
        found = re.search(r"run/(\S+) could not be written", reported)
        assert found, reported
        unwritten.add(found[1])
        assert not left_behind(folder)
    assert {"log.jsonl", "model.safetensors", "state/training.safetensors"} <= unwritten
    lives.start(*command(task, folder))
    assert lives.end() == 0, lives.reported
    check_same(folder, undisturbed)
