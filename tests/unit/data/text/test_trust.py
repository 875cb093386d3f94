"""The recipe of a model folder makes nobody read files that it should not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from transduce.data.text.trust import check_reads, record_training_data
from transduce.errors import DataError
from transduce.recipe import Columns, Data, Recipe
from transduce.storage.remote import RemotePath


def recipe(folder: Path, test: Any, **more: Any) -> Recipe:
    named = {"name": "copy", "split": "train"}
    data = {"folder": str(folder), "train": named, "valid": named, "test": test, **more}
    model = {"width": 16, "encoder": {"heads": 2}, "decoder": {"heads": 2}}
    return Recipe.model_validate({"data": data, "model": model})


@pytest.fixture(autouse=True)
def own_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "notes"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "test.tsv").write_text("a\tb\n")
    (tmp_path / "secret.tsv").write_text("a\tb\n")
    return tmp_path / "model"


def check(model: Path, data: Data, **given: Any) -> None:
    asked = data.model_copy(update=given)
    assert asked.test is not None
    check_reads(model, data, asked, asked.test)


def refused(model: Path, data: Data, **given: Any) -> None:
    with pytest.raises(DataError, match=r"data\.folder=FOLDER") as error:
        check(model, data, **given)
    assert "\n" not in str(error.value)


REMOTE = [
    {"file": "s3://bucket/test.tsv"},
    {"file": "https://example.org/test.tsv"},
    {"source": "test.tsv", "target": "s3://bucket/test.tsv"},
]


@pytest.mark.parametrize("corpus", REMOTE)
def test_addresses_in_the_recipe_of_a_stranger_are_not_asked(
    model: Path, corpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemotePath, "info", lambda path: pytest.fail(f"{path} is asked"))
    data = recipe(model, corpus).data
    refused(model, data)
    refused(model, data, folder="s3://mine")
    theirs = {"folder": "s3://theirs"}
    inside = recipe(model, {"file": "test.tsv"}).data.model_copy(update=theirs)
    refused(model, inside)
    check(model, inside, folder="s3://mine/copy")
    outside = recipe(model, {"file": "../test.tsv"}).data.model_copy(update=theirs)
    refused(model, outside, folder="s3://mine/copy")
    both = {"source": "/etc/hosts", "target": "s3://mine/copy/a"}
    refused(model, recipe(model, both).data, folder="s3://mine/copy")


OUTSIDE = [
    {"file": "../secret.tsv"},
    {"source": "test.tsv", "target": "../secret.tsv"},
    {"source": ["test.tsv", "../*.tsv"], "target": ["test.tsv", "test.tsv"]},
    {"hub": "somebody/something", "split": "test", "source": "a", "target": "b"},
    [{"name": "copy", "split": "test"}, {"file": "../secret.tsv"}],
    {"file": "link.tsv"},
    {"file": "../nowhere.tsv"},
]


@pytest.mark.parametrize("corpus", OUTSIDE)
def test_a_model_folder_from_elsewhere(model: Path, corpus: Any) -> None:
    (model / "link.tsv").symlink_to(model.parent / "secret.tsv")
    stored = recipe(model, corpus).data
    if corpus == {"file": "../nowhere.tsv"}:
        with pytest.raises(DataError, match="there is no file"):
            check(model, stored)
        return
    refused(model, stored)
    if isinstance(stored.test, Columns):  # a limit on the command line names no other file
        refused(model, stored, test=stored.test.model_copy(update={"limit": 3}))


def test_a_data_folder_elsewhere(model: Path) -> None:
    for folder in ("/etc", str(model.parent)):
        refused(model, recipe(Path(folder), {"file": "passwd"}).data)
        refused(model, recipe(Path(folder), {"file": "secret.tsv"}).data)


def test_a_table_of_recordings_names_more_files(model: Path) -> None:
    (model / "test.tsv").write_text("audio\ttext\n/home/me/private.wav\ta\n")
    audio = {"file": "test.tsv", "audio": "audio"}
    named = {"train": audio, "valid": audio}
    stored = Recipe.model_validate(
        {
            "data": {"folder": str(model), "test": audio, **named},
            "audio": {},
            "model": {"width": 16},
        }
    ).data
    refused(model, stored)
    elsewhere = stored.model_copy(update={"folder": "/elsewhere"})
    check(model, elsewhere, folder=str(model))  # whoever gives the folder answers for the table


def test_what_may_be_read(model: Path) -> None:
    check(model, recipe(model, {"file": "test.tsv"}).data)
    check(model, recipe(model, {"name": "copy", "split": "test"}).data)
    stored = recipe(Path("/elsewhere"), {"file": "secret.tsv"}).data
    refused(model, stored)
    check(model, stored, folder=str(model.parent))  # said on the command line
    check(model, stored, test=Columns(file="/any/other.tsv"))


def test_another_folder_that_is_given_is_not_left(model: Path) -> None:
    stored = recipe(Path("/elsewhere"), {"file": "../secret.tsv"}).data
    refused(model, stored, folder=str(model))


def test_what_one_has_trained_with_is_known(model: Path) -> None:
    trained = recipe(model.parent, {"file": "secret.tsv"})
    refused(model, trained.data)
    record_training_data(trained, pytest.fail)
    check(model, trained.data)
    check(model / "moved", trained.data)
    refused(model, recipe(model.parent, {"file": "model/../secret.tsv"}).data)
    refused(model, recipe(Path("/etc"), {"file": "secret.tsv"}).data)


def test_where_no_note_can_be_left_it_is_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(model / "file"))
    said: list[str] = []
    record_training_data(recipe(model.parent, {"file": "secret.tsv"}), said.append)
    (sentence,) = said
    assert "will ask for the location of the data" in sentence
