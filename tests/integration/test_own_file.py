"""`transduce train FILE` is killed again and again, and goes on wherever it was."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from lives import Lives
from transduce.storage import read_tensor_metadata
from transduce.tasks.transduce import load
from transduce.training.log import read_log

# Long enough for the time of a tag's model, which is that of the first one, not to end it.
SMALL = ["train.steps=120", "model.width=8", "train.batch_tokens=64", "validation.every=60"]
SMALL += ["validation.limit=40", "validation.decoding=fixed", "decode.beam=1", "train.device=cpu"]
STATE = "state/training.safetensors"
RUNS = [".", "fine-tuned/ka", "fine-tuned/lo", "by-tag/ka", "by-tag/lo"]
RUNS += ["seed-2", "seed-3", "seed-4", "seed-5", "distilled"]
# What each life dies of: which file, at which of its writes, and where in it.
DEATHS = [
    ("training.safetensors", "written", 2),  # in the first model, after its first validation
    ("metrics.json", "written", 1),  # after its last update
    ("training.safetensors", "renamed", 1),  # in the first model for a tag
    ("metrics.json", "renamed", 3),
    ("recipe.yaml", "renamed", 2),  # a run that has only begun
    ("model.safetensors", "written", 3),
    ("training.safetensors", "between", 2),
    ("compared.json", "written", 1),  # all runs are done, and compared
    ("compared.json", "renamed", 1),
    ("compared.json", "written", 1),  # scored
]


def two_languages(path: Path) -> None:
    words = [f"{a}{b}{c}{d}" for a in "bdfgkl" for b in "aeiou" for c in "mnprst" for d in "aeiou"]
    rows = [f"ka\t{word}\t{word[::-1]}" for word in words[::2]]
    rows += [f"lo\t{word}\t{word.upper()}" for word in words[1::2]]
    path.write_text("\n".join(["language\tsource\ttarget", *rows]), "utf-8")


def finished(folder: Path) -> dict[str, bytes]:
    """The weights of the runs that have come to their end, by their places."""
    found = {}
    for run in RUNS:
        metrics = folder / run / "metrics.json"
        if metrics.is_file() and "training" in json.loads(metrics.read_bytes()):
            found[run] = (folder / run / "model.safetensors").read_bytes()
    return found


@pytest.mark.slow
def test_a_file_of_two_languages_outlives_ten_deaths(lives: Lives, tmp_path: Path) -> None:
    two_languages(tmp_path / "two.tsv")
    folder = tmp_path / "run"
    arguments = ["train", str(tmp_path / "two.tsv"), *SMALL, "--minutes", "30"]
    arguments += ["--output", str(folder)]
    before: dict[str, bytes] = {}
    for file, place, turn in DEATHS:
        death = {"file": file, "place": place, "turn": turn, "seed": 0}
        lives.start(*arguments, death=death)
        assert lives.end() == -signal.SIGKILL, (death, lives.reported)
        now = finished(folder)
        assert before.items() <= now.items()  # what had ended is as it was
        before = now
        arguments = ["train", str(folder), "--resume"]
    assert list(before) == RUNS
    lives.start(*arguments)
    assert lives.end() == 0, lives.reported
    assert "Kept, as compared before" in lives.reported
    assert finished(folder) == before
    for run in RUNS:
        steps = [one["step"] for one in read_log(folder / run / "log.jsonl") if "lr" in one]
        assert steps == sorted(set(steps))  # no update is there twice
        last = read_tensor_metadata(folder / run / STATE)["standing"]["step"]
        assert steps[-1] <= last
    assert len(load(folder).run(["<ka> bama"])) == 1
    lives.start(*arguments)
    assert lives.end() == 0, lives.reported
    assert "It was scored before" in lives.reported
