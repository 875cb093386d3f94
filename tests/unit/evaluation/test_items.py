"""What a model is evaluated on: the split or the files, and the items of their pairs."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transduce import recipe
from transduce.data.text.pairs import Pair, read_pairs
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError
from transduce.evaluation.items import (
    are_of_training,
    given_files,
    items_of,
    measurable,
    split_of,
    unknown_labels,
)
from transduce.recipe import Columns, Mixture, Named, ParallelFiles, Recordings, Text
from transduce.recipe.corpus import Conditions, Where
from transduce.tasks import LanguageModel

LINES = ParallelFiles(source="train.en", target="train.de")


def trained(kind: type | None = None, audio: object = None, **parts: Any) -> Any:
    """A model with nothing but the parts of its recipe."""
    data = SimpleNamespace(**{"train": LINES, "valid": None, "test": None, **parts})
    model: Any = SimpleNamespace() if kind is None else object.__new__(kind)
    model.recipe = SimpleNamespace(data=data, audio=audio)
    return model


def texts(model: Any, source: Path, target: Path | None = None) -> list[tuple[str, str]]:
    corpus, _ = given_files(model, source, target)
    return [pair[:2] for pair in read_pairs(corpus, None)]


def test_an_item_has_the_place_and_the_groups_of_its_pair() -> None:
    pairs = [
        Pair("<x> a", "1", "file", 7, ("x",), group="town"),
        Pair("b", "2", "file", 8, group="town"),
    ]
    for alternatives in (True, False):
        one, other = items_of(pairs, alternatives)
        assert (one.place, one.group, one.column, one.tags) == (("file", 7), "x", "town", ("x",))
        assert (other.place, other.group, other.column) == (("file", 8), "town", "town")


@pytest.mark.parametrize(
    ("task", "level", "targets", "said"),
    [
        ("classify", "label", ["good", "so so", "bad", "so so"], "2 of 4 labels are wrong"),
        ("tag", "symbol", ["good bad", "ugly bad"], "1 of 4 labels are wrong"),
        ("classify", "label", ["good", "bad"], ""),
        ("transduce", "symbol", ["ugly"], ""),
    ],
)
def test_labels_that_the_model_does_not_have_are_said(
    task: Any, level: Any, targets: list[str], said: str
) -> None:
    model: Any = SimpleNamespace(recipe=SimpleNamespace(task=task))
    model.target_tokens = Tokens.train(recipe.Tokens(level=level), ["good", "bad"])
    items = items_of([Pair("x", target, "file", 1) for target in targets], alternatives=False)
    found = unknown_labels(items, model)
    assert found.startswith(said)
    if said:
        strange = "so so" if level == "label" else "ugly"
        assert found.endswith(f"as it does not have them: {strange}; its own are bad, good")
    else:
        assert not found


@pytest.mark.parametrize(("target", "right"), [("A", False), ("A B", True), ("A B C", False)])
def test_tags_that_are_as_many_as_the_words_are_measured(target: str, right: bool) -> None:
    tokens = Tokens.train(recipe.Tokens(level="word"), ["a b c"])
    pairs = [Pair("a b", target, "file", 1)]
    assert measurable(pairs, "tag", tokens) == (pairs if right else [])
    assert measurable(pairs, "transduce", tokens) == pairs


def test_all_rows_of_a_table_are_meant(tmp_path: Path) -> None:
    """Neither the part, nor the limit, nor the rows of training alone; its columns are."""
    where: Conditions = Where(column="split", value="test")
    part: dict[str, Any] = {"split": "90-100%", "limit": 1, "where": where}
    model = trained(test=Columns(file="x.tsv", source="en", target="de", header=True, **part))
    table = tmp_path / "new.tsv"
    table.write_text("de\ten\nein\tone\nzwei\ttwo\ndrei\tthree\n", "utf-8")
    pairs = [("one", "ein"), ("two", "zwei"), ("three", "drei")]
    assert texts(model, table) == pairs
    corpus, named = given_files(model, table, None)
    assert named == table
    assert isinstance(corpus, Columns)
    assert (corpus.split, corpus.limit, corpus.where) == (None, None, None)
    # A column that says of each row which part it is in is there again.
    table.write_text("de\ten\tsplit\nein\tone\ttrain\nzwei\ttwo\ttest\n", "utf-8")
    assert texts(model, table) == [("two", "zwei")]


@pytest.mark.parametrize("sign", ["\t", ",", ";"])
@pytest.mark.parametrize("header", [True, False])
def test_a_header_is_no_pair_whatever_training_had(tmp_path: Path, sign: str, header: bool) -> None:
    """As for `run` and `score`."""
    model = trained(train=Columns(file="x.tsv", source=0, target=1, header=False))
    table = tmp_path / ("new.tsv" if sign == "\t" else "new.csv")
    first = f"source{sign}target\n" if header else ""
    table.write_text(f"{first}one{sign}ein\ntwo{sign}zwei\n", "utf-8")
    with warnings.catch_warnings(record=True):
        assert texts(model, table) == [("one", "ein"), ("two", "zwei")]


def test_a_table_that_was_written_has_a_header_of_its_own(tmp_path: Path) -> None:
    model = trained(train=Columns(file="x.tsv", source="source", target="target", header=True))
    pairs = tmp_path / "new.json"
    pairs.write_text('[{"source": "one", "target": "ein"}]', "utf-8")
    assert texts(model, pairs) == [("one", "ein")]
    corpus, _ = given_files(model, pairs, None)
    assert isinstance(corpus, Columns)
    assert corpus.header is None


def test_sentences_of_conll_are_in_columns_with_numbers(tmp_path: Path) -> None:
    words = tmp_path / "new.conll"
    words.write_text("the DT\ndog NN\n\na DT\n\n", "utf-8")
    expected = [("the dog", "DT NN"), ("a", "DT")]
    parts: dict[str, Any] = {"limit": 1, "split": "0-50%"}
    for like in (
        Columns(file="x.conll", **parts),
        Columns(file="x.conllu", source="form", target="upos", **parts),
        Columns(file="x.data", format="conllu", source="form", target="upos"),
        LINES,
    ):
        assert texts(trained(train=like), words) == expected


def test_other_recordings_have_no_group_nor_tags_of_another_corpus(tmp_path: Path) -> None:
    table = tmp_path / "new.tsv"
    table.write_text("path\ttext\na.wav\tone\nb.wav\ttwo\n", "utf-8")
    one = Recordings(file="x.tsv", audio="path", group="speaker", limit=1, tag="de", tags="kind")
    corpus, _ = given_files(trained(train=one), table, None)
    assert isinstance(corpus, Recordings)
    assert (corpus.group, corpus.limit, corpus.tag, corpus.tags) == (None, None, "de", "kind")
    both = Mixture(of=[one, one.model_copy(update={"tag": "fr"})])
    corpus, _ = given_files(trained(train=both), table, None)
    assert isinstance(corpus, Recordings)
    assert (corpus.tag, corpus.tags) == (None, None)
    # An imported model names no recordings.
    corpus, _ = given_files(trained(audio=object()), table, None)
    assert isinstance(corpus, Recordings)
    assert (corpus.audio, corpus.target) == ("path", "text")
    with pytest.raises(DataError, match="as a table, with --source alone"):
        given_files(trained(train=one), table, table)


def test_the_text_of_a_language_model(tmp_path: Path) -> None:
    text = tmp_path / "new.txt"
    text.write_text("one\n", "utf-8")
    for joined in ("joined", "apart"):
        model = trained(LanguageModel, train=Text(text="x.txt", lines=joined))
        corpus, named = given_files(model, text, None)
        assert isinstance(corpus, Text)
        assert (corpus.text, corpus.lines, named) == (str(text), joined, text)
        with pytest.raises(DataError, match=r"for a language model, .* with --source alone"):
            given_files(model, text, text)
        with pytest.raises(DataError, match=r"give --split valid, or --source$"):
            split_of(model, tmp_path, "test")


def test_splits_of_a_recipe_and_those_of_its_corpus(tmp_path: Path) -> None:
    valid = Named(name="multi30k", split="valid", pair="en-de", limit=3)
    model = trained(train=valid, valid=valid, test=LINES)
    assert split_of(model, tmp_path, "test") == LINES
    assert split_of(model, tmp_path, "valid") == valid
    with pytest.raises(DataError, match=r"there is no split vali; did you mean valid"):
        split_of(model, tmp_path, "vali")
    model.recipe.data.test = None
    for split in ("test", "test-2017"):  # all of it
        found = split_of(model, tmp_path, split)
        assert found == valid.model_copy(update={"split": split, "limit": None})
    # A split that the corpus does not have either: reading it says which there are.
    with pytest.raises(DataError, match="test-coco"):
        list(read_pairs(split_of(model, tmp_path, "test-articles"), None))
    model.recipe.data.valid = Mixture(of=[valid, valid.model_copy(update={"tag": "x"})])
    found = split_of(model, tmp_path, "test")
    assert isinstance(found, Mixture)
    assert [getattr(one, "split", None) for one in found.of] == ["test", "test"]
    assert [getattr(one, "tag", None) for one in found.of] == [None, "x"]
    # One of several that has no such split: what there is of it would be another set.
    model.recipe.data.valid = Mixture(of=[valid, LINES])
    with pytest.raises(DataError, match="has no test set; give --split valid, or --source and"):
        split_of(model, tmp_path, "test")


def test_files_of_training_are_known_by_their_names(tmp_path: Path) -> None:
    tables = Columns(file=["a.tsv", "b.tsv"], split="0-80%")
    lines = ParallelFiles(source="train.en", target="train.de")
    folder = str(tmp_path)
    for train, given, is_own in (
        (tables, Columns(file=f"{tmp_path}/b.tsv"), True),
        (tables, Columns(file=f"{tmp_path}/c.tsv"), False),
        (tables, Columns(file="/elsewhere/b.tsv"), False),
        (lines, ParallelFiles(source=f"{tmp_path}/train.en", target=f"{tmp_path}/train.de"), True),
        (lines, ParallelFiles(source=f"{tmp_path}/new.en", target=f"{tmp_path}/train.de"), False),
        (Text(text="a.txt"), Text(text=f"{tmp_path}/a.txt"), True),
        (Mixture(of=[tables, tables]), Columns(file=f"{tmp_path}/a.tsv"), False),
    ):
        data: Any = SimpleNamespace(train=train, folder=folder)
        assert are_of_training(given, data) is is_own
