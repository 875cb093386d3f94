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
    said = sentence(transduce("train", recipe, "--output", tmp_path / "run"))
    assert "train.src" in said
    assert transduce("check", recipe).status == 1


def test_a_folder_that_cannot_be_made(transduce: Transduce, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in sentence(transduce("train", "copy", "--output", tmp_path / "file" / "run"))


def test_nothing_to_resume(transduce: Transduce, folder: Path, tmp_path: Path) -> None:
    """A model without a checkpoint is not trained over."""
    for arguments in ([], ["--resume"]):
        said = sentence(transduce("train", folder, *arguments))
        assert "holds a trained model without a checkpoint" in said


def test_a_folder_with_a_recipe_is_no_run(transduce: Transduce, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(TINY)
    said = sentence(transduce("run", tmp_path, "a"))
    assert "has a recipe but no model; train it" in said


def test_what_a_run_would_replace_is_reported_first(transduce: Transduce, tmp_path: Path) -> None:
    recipe, place = tmp_path / "my.yaml", tmp_path / "place"
    recipe.write_text(TINY)
    place.mkdir()
    for name in ("log.jsonl", "metrics.json", "test.hypotheses.txt", "model.sha256"):
        (place / name).write_text("mine")
        said = sentence(transduce("train", recipe, "--output", place))
        if name == "model.sha256":
            assert "train.src" in said  # what has our sums is ours; it goes on to the data
        else:
            assert f"{place / name} does not belong to a run and would be replaced" in said
        assert (place / name).read_text() == "mine"
        (place / name).unlink()


def test_a_recipe_of_ones_own_is_not_replaced(transduce: Transduce, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(f"# mine\n{TINY}")
    for arguments in ([], ["--overwrite"], ["--resume"]):
        where = ("--output", tmp_path, *arguments)
        said = sentence(transduce("train", tmp_path, "train.steps=7", *where))
        assert f"{tmp_path / 'recipe.yaml'} is your own recipe" in said
    assert (tmp_path / "recipe.yaml").read_text() == f"# mine\n{TINY}"
