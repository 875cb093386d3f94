"""The command tune: what it says, and one small search for real."""

from __future__ import annotations

import importlib
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from command_line import Transduce, sentence
from optional import skip_without
from transduce.automatic import Machine
from transduce.errors import CheckpointError
from transduce.recipe import load_recipe
from transduce.tuning import files, search
from transduce.tuning.segment import Outcome, Segment, train_segment
from transduce.tuning.space import named
from transduce.tuning.study import begin_study, open_study
from tuning_study import RECIPE, WORDS

skip_without("optuna")


class AtOnce:
    """A segment that is trained in this process."""

    def __init__(self, segment: Segment) -> None:
        self.result = train_segment(segment)

    def outcome(self) -> Outcome:
        return self.result


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe, in the current folder, and no other processes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(search, "SegmentProcess", AtOnce)
    monkeypatch.setattr(search, "POLL", 0.0)
    # It takes a while, and is looked at elsewhere.
    monkeypatch.setattr(files, "draw", lambda results, path: path.write_text(results.title))
    for name, words in (("train", WORDS[:9]), ("valid", WORDS[9:]), ("test", WORDS[9:])):
        lines = "".join(f"{word}\t{word[::-1]}\n" for word in words)
        (tmp_path / f"{name}.tsv").write_text(lines, "utf-8")
    text = RECIPE.replace("  tokens:", "  test: {file: test.tsv}\n  tokens:")
    (tmp_path / "my.yaml").write_text(text, "utf-8")
    return tmp_path / "my.yaml"


def test_a_search_from_beginning_to_end(transduce: Transduce) -> None:
    typed = ["tune", "my.yaml", "--trials", 3, "--search", "train.lr=1e-4..0.1", "model.dropout=0"]
    ended = transduce(*typed)
    assert ended.status == 0, ended.err
    assert ended.lines[0] == (
        "Searching 1 key of backwards for the best loss on the validation set: "
        "up to 3 trials in 1 h 0 min."
    )
    assert ended.out.count("  1/9  update 1 ") == 3
    assert ended.out.count("  in full  update 9 ") == 1
    assert "On the test set it has:" in ended.out
    assert "exact match" in ended.out
    folder = Path("runs/backwards-tune")
    study = open_study(folder)
    assert study is not None
    best = min(study.trials(), key=lambda trial: trial.best or 0)
    model = load_recipe(folder / "best.yaml")
    assert (model.train.lr, model.model.dropout) == (best.values["train.lr"], 0.0)
    assert (folder / "tune.svg").read_text("utf-8") == "loss"
    # Again: nothing is trained, and all is said as before.
    again = transduce(*typed)
    assert again.out.partition("\n\n")[2] == ended.out.partition("\n\n")[2]
    assert "goes on: it has 3 trials" in again.out


def test_a_file_of_ones_own(transduce: Transduce, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def machine(device: str = "auto") -> Machine:
        asked.append(1.0 + len(asked))  # another speed each time: another recipe
        return Machine("cpu", asked[-1])

    monkeypatch.setattr("transduce.automatic.this_machine", machine)
    words = ["".join(letters) for letters in product("abcd", repeat=3)]
    rows = "".join(f"{word}\t{word[::-1]}\n" for word in words)
    Path("pairs.tsv").write_text(rows, "utf-8")
    small = ["model.width=8", "train.batch_tokens=64", "train.steps=2", "validation.every=2"]
    typed = ["tune", "pairs.tsv", *small, "--search", "train.lr=0.001,0.01", "--trials", 1]
    ended = transduce(*typed)
    assert ended.status == 0, ended.err
    assert ended.lines[0] == "pairs.tsv: TSV with 2 columns: column 0 → column 1."
    study = open_study(Path("runs/pairs-tune"))
    assert study is not None
    # One trial in the sixty minutes: all of them are its own.
    assert study.recipe.train.minutes == 60
    again = transduce(*typed[:-1], 2)
    assert again.status == 0, again.err
    assert len(study.trials()) == 2
    assert "pairs.tsv: TSV" not in again.out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["my.yaml", "--trials", "0"], "'--trials': it must be greater than or equal to 1"),
        (["my.yaml", "--search", "train.rate=1..2"], "unknown key train.rate"),
        (["my.yaml", "--search", "train.schedule=a..b"], "a number at each end"),
        (["my.yaml", "--search", "train.lr=1..2", "train.lr=1"], "is searched and set at once"),
        (["nothing.yaml"], "there is no recipe file nothing.yaml"),
        (["nothing.tsv"], "there is no file nothing.tsv"),
        (["my.yaml", "data.valid=null"], "data.valid is empty; give it keys"),
    ],
)
def test_mistakes_are_a_sentence(transduce: Transduce, typed: list[str], said: str) -> None:
    assert said in sentence(transduce("tune", *typed))
    assert not Path("runs").exists()


def test_another_recipe_in_the_folder(transduce: Transduce, recipe: Path) -> None:
    before = load_recipe(recipe)
    begin_study(Path("runs/backwards-tune"), before, named(before, ["train.lr=0.01,0.1"], []), {})
    typed = ["tune", "my.yaml", "--search", "train.lr=0.01,0.1"]
    said = sentence(transduce(*typed, "train.steps=12"))
    assert "holds another search: train.steps is 9 there, and 12 now" in said


def test_without_optuna(transduce: Transduce, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = importlib.import_module

    def missing(name: str, package: str | None = None) -> Any:
        if name == "optuna":
            raise ModuleNotFoundError("No module named 'optuna'")
        return usual(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    said = sentence(transduce("tune", "my.yaml"))
    assert said.startswith("`transduce tune` needs the package optuna")
    assert said.endswith("pip install '.[tune]'")


def test_a_full_disk_and_trials_that_fail(
    transduce: Transduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["tune", "my.yaml", "--trials", 2, "--search", "train.lr=1e14,1e15"]
    typed += ["train.clip_norm=0", "train.warmup=0", "train.steps=40", "validation.every=30"]
    ended = transduce(*typed)
    assert ended.status == 2
    assert ended.out.count("failed: the loss or its gradient was NaN") == 2
    assert "all 2 trials failed, the last, trial 1, as the loss" in ended.err

    def full(*_: object, **__: object) -> None:
        raise CheckpointError("state could not be written (No space left on device): free some")

    training = importlib.import_module("transduce.training.train")
    monkeypatch.setattr(training, "train_recipe", full)
    ended = transduce(*typed, "--output", "runs/other")
    assert ended.status == 2
    assert (
        ended.err == "transduce: state could not be written (No space left on device): free some\n"
    )
