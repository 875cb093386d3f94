"""A tiny task that is learned in seconds: short strings of few letters, written backwards."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lives import Command, Lives, made_once
from lives import command as command_of

LETTERS = "abcde"

RECIPE = """
name: tiny
data:
  train: {file: train.tsv}
  valid: {file: valid.tsv}
  test: {file: test.tsv}
  tokens:
    both: {level: character}
model:
  preset: transformer-tiny
  width: 32
  dropout: 0.0
  tie_embeddings: all
  encoder: {feed_forward: 64}
  decoder: {feed_forward: 64}
train: {steps: 400, batch_tokens: 512, lr: 5e-3, schedule: cosine, warmup: 40, label_smoothing: 0.0}
validation: {every: 100, limit: 50, metric: exact}
decode: {beam: 2}
metrics: [exact, cer]
"""


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny.yaml and its three files; no string is in two of them."""
    return made_once(tmp_path_factory, "task", write_task)


def write_task(folder: Path) -> None:
    strings = ["".join(s) for n in (2, 3, 4) for s in itertools.product(LETTERS, repeat=n)]
    random.Random(7).shuffle(strings)
    for name, some in {
        "train": strings[:600],
        "valid": strings[600:650],
        "test": strings[650:],
    }.items():
        lines = "".join(f"{s}\t{s[::-1]}\n" for s in some)
        (folder / f"{name}.tsv").write_text(lines, "utf-8")
    (folder / "tiny.yaml").write_text(RECIPE, "utf-8")


@pytest.fixture(scope="session")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    lives = Lives(tmp_path_factory.mktemp("lives"))
    yield lives
    lives.close()


@pytest.fixture(scope="session")
def command(lives: Lives) -> Command:
    """The real command line, in a process of its own that is forked, not started."""
    return lives.run


@pytest.fixture(scope="session")
def trained_tiny(task: Path, command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned the task; to be copied by whoever writes into its folder."""

    def make(folder: Path) -> None:
        settings = ["train.steps=250", "train.lr=3e-3", "validation.every=125"]
        ended = command("train", task / "tiny.yaml", *settings, "--output", folder / "run")
        assert ended.returncode == 0, ended.stderr
        assert "transduce run" in ended.stdout

    return made_once(tmp_path_factory, "tiny", make) / "run"


@pytest.fixture(scope="session")
def tones_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sounds, their recipe, and in run/ a model that hears them; to be copied to be written to."""
    from tones import write_run

    return made_once(tmp_path_factory, "tones", write_run)


@pytest.fixture(scope="session")
def undisturbed(task: Path, lives: Lives, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the settings in `lives.py` that nobody disturbed."""

    def make(folder: Path) -> None:
        lives.start(*command_of(task, folder / "run"))
        assert lives.end() == 0, lives.reported

    return made_once(tmp_path_factory, "undisturbed", make) / "run"
