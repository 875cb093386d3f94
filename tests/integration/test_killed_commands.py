"""merge, export and evaluate, killed at many moments: the same command then does its work.

What they write is complete or not there, and nothing of a killed one stays.
"""

from __future__ import annotations

import shutil
import signal
import sys
from itertools import count
from pathlib import Path

import pytest
import torch

from language import language_model
from lives import Lives
from tiny_models import tiny
from transduce.adapters import AdapterState, LowRankWeights, adaptable
from transduce.models.weights import fingerprint_of, weights_of
from transduce.tasks.adapter_folder import base_of, write_adapter

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")

MODELS = Path(__file__).parents[1] / "fixtures" / "models"


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): b"" if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
    }


def adapter_in(folder: Path) -> Path:
    """An adapter and the model beneath it."""
    model = tiny()
    model.save(folder / "base")
    torch.manual_seed(1)
    weights, found = weights_of(model.network), {}
    for name, place in adaptable(model.network).items():
        matrix = place.of(weights)
        found[name] = LowRankWeights(
            torch.randn(2, matrix.shape[1]), torch.randn(len(matrix), 2), 1.5, None
        )
    model.save_definition(folder / "adapter")
    base = base_of(folder / "adapter", folder / "base", fingerprint_of(weights))
    write_adapter(folder / "adapter", AdapterState(found, {}), base)
    return folder / "adapter"


def prepared(name: str, folder: Path) -> tuple[list[str], Path]:
    """The words of a command, and the folder that it writes into."""
    if name == "merge":
        return ["merge", str(adapter_in(folder)), "--output", str(folder / "out/new")], folder
    if name == "evaluate":
        shutil.copytree(MODELS / "translate", folder / "model")
        (folder / "a.txt").write_text("ab\nb\n")
        (folder / "b.txt").write_text("ba\nb\n")
        files = ["--source", str(folder / "a.txt"), "--target", str(folder / "b.txt")]
        more = ["--report", "--items", str(folder / "items.jsonl"), "--workers", "1"]
        return ["evaluate", str(folder / "model"), *files, *more], folder
    part = {"layers": 1, "heads": 2, "feed_forward": 16, "norm": "rms", "positions": "rotary"}
    model = language_model(decoder={**part, "activation": "swiglu"})
    model.network.float()
    model.save(folder / "model")
    command = ["export", str(folder / "model"), "--to", "huggingface"]
    if name == "export":
        return command, folder
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("name", "stride"),
    [
        ("merge", 23),
        ("export", 23),
        ("evaluate", 29),
        pytest.param("merge", 3, marks=pytest.mark.slow),
        pytest.param("export", 3, marks=pytest.mark.slow),
        pytest.param("evaluate", 5, marks=pytest.mark.slow),
    ],
)
def test_a_command_that_is_killed_and_repeated(
    lives: Lives, tmp_path: Path, name: str, stride: int
) -> None:
    command, folder = prepared(name, tmp_path)
    before = content(folder)
    assert lives.run(*command).returncode == 0
    after = content(folder)
    made = {path: data for path, data in after.items() if path not in before}
    kills = 0
    for turn in count(2, stride):
        for path in sorted(made, reverse=True):  # as it was before the command
            place = folder / path
            if place.is_dir():
                place.rmdir()
            else:
                place.unlink(missing_ok=True)
        for path, data in before.items():
            if path in after and after[path] != data:
                (folder / path).write_bytes(data)
        death = {"file": str(folder), "place": "change", "turn": turn, "seed": 0}
        lives.start(*command, death=death)
        status = lives.end()
        if lives.report is None:
            assert status == 0, lives.reported
            break
        assert status == -signal.SIGKILL, lives.reported
        kills += 1
        where = f"killed at change {turn}: {lives.report}"
        whole = {path: data for path, data in content(folder).items() if ".part" not in path}
        assert set(whole) <= {*after, *(p for p in whole if p.endswith(".lock"))}, where
        if not made.keys() <= whole.keys():
            again = lives.run(*command)
            assert again.returncode == 0, (where, again.stderr)
        elif name == "merge":  # it was killed when all was done
            for left in folder.rglob("*.part"):
                shutil.rmtree(left)
        found = content(folder)
        assert found.keys() == after.keys(), where
        if name != "evaluate":  # whose results have times in them
            assert found == after, where
    assert kills >= 3, "the command has fewer changes than it had"
