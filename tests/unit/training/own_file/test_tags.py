"""Models for the tags of a file: which files have them, and their recipes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transduce.recipe import Columns, Recipe, read_recipe
from transduce.recipe.corpus import Where
from transduce.training.own_file import tags
from transduce.training.own_file.tags import folders_of, recipe_of_tag, shares_of_tags

COLUMNS = {"tags": 0, "source": 1, "target": 2, "header": False}


def recipe_of(folder: Path, rows: dict[str, int], held: dict[str, int], **data: Any) -> Recipe:
    """A recipe for files with so many rows of each tag."""
    for name, counts in (("train", rows), ("valid", held), ("test", held)):
        lines = [f"{tag}\tw{n}\tx{n}" for tag, count in counts.items() for n in range(count)]
        (folder / f"{name}.tsv").write_text("\n".join(lines), "utf-8")
    parts = {name: {"file": f"{name}.tsv", **COLUMNS} for name in ("train", "valid", "test")}
    settings = {"steps": 1000, "warmup": 100, "log_every": 40}
    made = {"data": {"folder": str(folder), **parts, **data}, "train": settings}
    return read_recipe({**made, "validation": {"every": 200}})


def test_shares_are_those_of_the_training_rows(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, {"de": 600, "fr": 200}, {"de": 20, "fr": 20})
    assert shares_of_tags(recipe) == {"de": 0.75, "fr": 0.25}


@pytest.mark.parametrize(
    ("train", "valid"),
    [
        ({"de": 600}, {"de": 20}),
        ({"de": 600, "fr": 199}, {"de": 20, "fr": 20}),
        ({"de": 600, "fr": 200}, {"de": 20, "fr": 19}),
        ({f"l{n}": 200 for n in range(21)}, {f"l{n}": 20 for n in range(21)}),
    ],
    ids=["one tag", "few rows", "few validation pairs", "many tags"],
)
def test_where_there_are_none(tmp_path: Path, train: dict[str, int], valid: dict[str, int]) -> None:
    assert not shares_of_tags(recipe_of(tmp_path, train, valid))


def test_streamed_rows_and_files_without_a_column_of_tags_have_none(tmp_path: Path) -> None:
    counts = ({"de": 300, "fr": 300}, {"de": 20, "fr": 20})
    assert shares_of_tags(recipe_of(tmp_path, *counts))
    assert not shares_of_tags(recipe_of(tmp_path, *counts, streaming=True))
    plain = {"file": "valid.tsv", "source": 1, "target": 2, "tag": "de", "header": False}
    assert not shares_of_tags(recipe_of(tmp_path, *counts, valid=plain))


def test_recordings_have_none(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, {"de": 300, "fr": 300}, {"de": 20, "fr": 20})
    assert not shares_of_tags(recipe.model_copy(update={"audio": object()}))


def test_folders_that_differ_only_in_capitals_are_told_apart() -> None:
    assert folders_of(["de", "DE"]) == {"de": "1-de", "DE": "2-DE"}


@pytest.mark.parametrize(("share", "factor"), [(0.75, 0.75), (0.05, 0.25), (1e-9, 0.25)])
def test_the_updates_are_those_of_the_share(tmp_path: Path, share: float, factor: float) -> None:
    """A tag with few rows has a quarter of them."""
    recipe = recipe_of(tmp_path, {"de": 600, "fr": 200}, {"de": 20, "fr": 20})
    first: Any = SimpleNamespace(folder=tmp_path / "run")
    made = recipe_of_tag(recipe, first, "de", share, "by-tag")
    assert made["train"]["steps"] == round(1000 * factor)
    assert made["train"]["warmup"] == round(100 * factor)
    assert made["train"]["log_every"] == round(40 * factor)
    assert made["validation"]["every"] == round(200 * factor)


def test_no_model_has_fewer_updates_than_can_be_measured(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, {"de": 600, "fr": 200}, {"de": 20, "fr": 20})
    few = recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": 30})})
    first: Any = SimpleNamespace(folder=tmp_path / "run")
    assert recipe_of_tag(few, first, "fr", 0.25, "by-tag")["train"]["steps"] == tags.MIN_UPDATES


def test_all_parts_are_of_the_tag_beside_what_they_were_before(tmp_path: Path) -> None:
    before = {"column": 1, "value": "w1"}
    train = {"file": "train.tsv", **COLUMNS, "where": before}
    recipe = recipe_of(tmp_path, {"de": 600, "fr": 200}, {"de": 20, "fr": 20}, train=train)
    first: Any = SimpleNamespace(folder=tmp_path / "run")
    data = read_recipe(recipe_of_tag(recipe, first, "fr", 0.25, "fine-tuned")).data
    of_tag = Where(column=0, value="fr")
    for corpus, where in (
        (data.train, [Where(column=1, value="w1"), of_tag]),
        (data.valid, [of_tag]),
        (data.test, [of_tag]),
    ):
        assert isinstance(corpus, Columns)
        assert corpus.where == where
