"""Datasets of the hub, through a stand-in for the package; and through it, where it is there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from transduce import recipe
from transduce.data.cache.tokenised import encode_corpus
from transduce.data.text import hub
from transduce.data.text.pairs import check_files, read_pairs
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError, RecipeError
from transduce.recipe import Hub, parse_recipe

ROWS: list[dict[str, Any]] = [
    {"translation": {"de": f"{n} Hunde", "en": f"{n} dogs"}, "text": f"t{n}", "label": n % 2}
    for n in range(5)
]


class Labels:
    names = ("neg", "pos")


class Dataset:
    """As much of a dataset as is used."""

    def __init__(self, rows: list[dict[str, Any]], columns: list[str]) -> None:
        self.rows, self.column_names = rows, columns
        self.features = {name: Labels() if name == "label" else object() for name in columns}

    def select_columns(self, names: list[str]) -> Dataset:
        return Dataset([{name: row[name] for name in names} for row in self.rows], names)

    def iter(self, batch_size: int) -> Iterator[dict[str, list[Any]]]:
        for start in range(0, len(self.rows), batch_size):
            some = self.rows[start : start + batch_size]
            yield {name: [row[name] for row in some] for name in self.column_names}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the stand-in was asked to load."""
    package, asked = ModuleType("datasets"), []

    def load_dataset(name: str, config: str | None, *, split: str) -> Dataset:
        asked.append((name, config, split))
        if split == "trian":
            raise ValueError('Unknown split "trian".\nShould be one of\n  [train].')
        return Dataset(ROWS, ["translation", "text", "label"])

    package.load_dataset = load_dataset  # type: ignore[attr-defined]
    package.__spec__ = ModuleSpec("datasets", None)
    monkeypatch.setitem(sys.modules, "datasets", package)
    monkeypatch.setattr(hub, "AT_ONCE", 2)
    return asked


def texts(**keys: Any) -> list[tuple[str, str]]:
    corpus = Hub(**({"hub": "wmt14", "split": "train"} | keys))
    return [(pair.source, pair.target) for pair in read_pairs(corpus, None)]


def test_columns_within_columns(asked: list[Any]) -> None:
    found = texts(config="de-en", source="translation.de", target="translation.en")
    assert found == [(f"{n} Hunde", f"{n} dogs") for n in range(5)]
    assert asked == [("wmt14", "de-en", "train")]


def test_classes_have_names(asked: list[Any]) -> None:
    found = texts(hub="imdb", source="text", target="label", limit=3)
    assert found == [("t0", "neg"), ("t1", "pos"), ("t2", "neg")]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"source": "txt", "target": "label"},
         "wmt14 (train) has no column txt; there are: translation, text, label"),
        ({"source": "translation", "target": "label"},
         "wmt14 (train): row 1: translation is {'de': '0 Hunde', 'en': '0 dogs'}, not text"),
        ({"source": "translation.fr", "target": "label"},
         "wmt14 (train): row 1: translation.fr is None, not text"),
        ({"source": "text", "target": "label", "split": "trian"},
         'wmt14 (trian) cannot be loaded from the hub: Unknown split "trian". Should be one of '
         "[train]."),
    ],
)  # fmt: skip
def test_what_is_not_there(keys: dict[str, str], said: str) -> None:
    with pytest.raises(DataError) as caught:
        texts(**keys)
    assert str(caught.value) == said


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    corpus = Hub(hub="wmt14", split="train", source="a", target="b")
    for use in (check_files, lambda c, f: list(read_pairs(c, f))):
        with pytest.raises(DataError, match=r"not installed: pip install '\.\[hub\]'$"):
            use(corpus, None)


@pytest.mark.usefixtures("asked")
def test_it_is_tokenised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Hub(hub="imdb", split="train", source="text", target="label")
    data = recipe.Data(train=corpus, valid=corpus)
    tokens = Tokens.train(recipe.Tokens(level="character"), ["t0123negpos"])
    for _ in range(2):
        encoded, _ = encode_corpus(corpus, data, tokens, tokens, tmp_path)
        assert len(encoded) == 5
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setitem(ROWS[0], "text", "t00")
    changed, _ = encode_corpus(corpus, data, tokens, tokens, tmp_path)
    assert len(changed.source(0)) == 3


def test_recipes_name_them(tmp_path: Path) -> None:
    text = "data:\n  train: {hub: wmt14, config: de-en, split: train, source: a, target: b}\n"
    text += "  valid: {name: copy, split: valid}\n"
    assert isinstance(parse_recipe(text, "my.yaml", tmp_path).data.train, Hub)
    with pytest.raises(RecipeError, match=r"my\.yaml:2: unknown key data\.train\.sorce; did you"):
        parse_recipe(text.replace("source", "sorce"), "my.yaml", tmp_path)


def test_the_package_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="needs the extra: pip install '.[hub]'")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "mine"
    folder.mkdir()
    words = [("Hund", "dog"), ("Katze", "cat")]
    rows = [{"translation": {"de": german, "en": english}} for german, english in words]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = texts(hub=str(folder), source="translation.de", target="translation.en")
    assert found == words
    with pytest.raises(DataError, match="cannot be loaded from the hub: "):
        texts(hub=str(folder), split="test", source="translation.de", target="translation.en")
