"""Damaged files are told of, and a run goes on from the last state that is whole."""

from __future__ import annotations

import pickle
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lives import STEPS, Lives, check_same, command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")

STATE = "state/training.safetensors"
PREVIOUS = "state/training.previous.safetensors"


def flip(where: Callable[[int, int], int]) -> Callable[[Path], None]:
    """One bit of a byte, at a place by the length of the header and of the file."""

    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        header = 8 + int.from_bytes(data[:8], "little")
        data[where(header, len(data))] ^= 0x10
        path.write_bytes(data)

    return damage


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


CHANCE = random.Random(5)
DAMAGES: dict[str, Callable[[Path], object]] = {
    "length": flip(lambda header, size: 1),
    "header": flip(lambda header, size: CHANCE.randrange(8, header - 100)),
    "middle": flip(lambda header, size: CHANCE.randrange(header, size)),
    "end": flip(lambda header, size: size - 1),
    "cut": cut,
    "empty": lambda path: path.write_bytes(b""),
    "pickle": lambda path: path.write_bytes(pickle.dumps({"weights": [0.0] * 1000})),
    "missing": Path.unlink,
}


def refused(lives: Lives, *arguments: str) -> str:
    lives.start(*arguments)
    assert lives.end() == 2, lives.reported
    assert "Traceback" not in lives.reported
    last = lives.reported.splitlines()[-1]
    assert last.startswith("transduce: ")
    return last


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state(
    task: Path, undisturbed: Path, lives: Lives, tmp_path: Path, damage: str
) -> None:
    """The best weights, the log and the card are of later than the state that it goes back to."""
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    DAMAGES[damage](folder / STATE)
    lives.start(*command(task, folder))
    assert lives.end() == 0, lives.reported
    warnings = [line for line in lives.reported.splitlines() if line.startswith("warning: ")]
    (reported,) = [line for line in warnings if str(folder / STATE) in line]
    assert ("missing" if damage == "missing" else "damaged") in reported
    assert f"resuming from the checkpoint before it, of update {STEPS - 10}" in reported
    assert lives.reported.count(f"step {STEPS - 9}/{STEPS}") == 1
    check_same(folder, undisturbed)


def test_a_state_damaged_twice_over(
    task: Path, undisturbed: Path, lives: Lives, tmp_path: Path
) -> None:
    """A damaged state never takes the place of the whole one before it."""
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    cut(folder / STATE)
    # Putting the state before it in its place is the first renaming of each start.
    for place, turn in (("written", 1), ("written", 2), ("between", 1), ("renamed", 2)):
        death = {"file": "training.safetensors", "place": place, "turn": turn, "seed": 1}
        lives.start(*command(task, folder), death=death)
        assert lives.end() < 0, lives.reported
    cut(folder / STATE)
    lives.start(*command(task, folder))
    assert lives.end() == 0, lives.reported
    check_same(folder, undisturbed)


def test_no_state_is_whole(task: Path, undisturbed: Path, lives: Lives, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    cut(folder / STATE)
    cut(folder / PREVIOUS)
    reported = refused(lives, *command(task, folder))
    assert f"{folder / STATE} is damaged or truncated" in reported
    assert "restore it from a copy" in reported


def test_a_folder_in_the_place_of_the_state(
    task: Path, undisturbed: Path, lives: Lives, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    (folder / STATE).unlink()
    (folder / STATE).mkdir()
    reported = refused(lives, *command(task, folder))
    assert str(folder / STATE) in reported
    assert "move it away" in reported
    (folder / STATE).rmdir()
    lives.start(*command(task, folder))
    assert lives.end() == 0, lives.reported
    check_same(folder, undisturbed)


@pytest.mark.parametrize("damage", ["header", "middle", "cut", "pickle"])
def test_damaged_weights_are_not_used(
    undisturbed: Path, lives: Lives, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    DAMAGES[damage](folder / "model.safetensors")
    reported = refused(lives, "run", str(folder), "abc")
    assert f"{folder / 'model.safetensors'} is damaged" in reported
