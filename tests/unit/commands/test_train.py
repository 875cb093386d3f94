"""The command train: what keeps a run from starting."""

from __future__ import annotations

from pathlib import Path

from command_line import TINY, Transduce, sentence


def test_several_mistakes_of_a_recipe_are_a_line_each(transduce: Transduce) -> None:
    ended = transduce("train", "pronounce", "train.lr=-1", "model.width=7", "foo=1")
    assert ended.status == 2
    assert all(line.startswith("transduce: on the") for line in ended.err.splitlines())
    assert ended.err.count("\n") == 3


def test_training_data_that_is_not_there(transduce: Transduce, tmp_path: Path) -> None:
    recipe = tmp_path / "my.yaml"
    recipe.write_text(TINY)
    said = sentence(transduce("train", recipe, "--folder", tmp_path / "run"))
    assert "train.src" in said
    assert transduce("check", recipe).status == 1


def test_a_folder_that_cannot_be_made(transduce: Transduce, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in sentence(transduce("train", "copy", "--folder", tmp_path / "file" / "run"))


def test_nothing_to_resume(transduce: Transduce, folder: Path, tmp_path: Path) -> None:
    assert "nothing to resume" in sentence(transduce("train", folder, "--resume"))
