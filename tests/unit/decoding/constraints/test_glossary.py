"""Glossaries: which terms a text has, in which words they are required, and files of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import transduce
from tiny_models import tiny
from transduce import recipe
from transduce.data.tokens.tokenizer import Tokens
from transduce.decoding.constraints.glossary import Glossary
from transduce.errors import DataError, ModelError

FIXTURE = Path(__file__).parents[3] / "fixtures" / "models" / "translate"
TERMS: dict[str, Any] = {
    "tea": "Tee",
    "tea cup": "Teetasse",
    "run": ["laufen", "rennen"],
    "US": "USA",
    "us": "uns",
    "Apple": "Apple",
}


def wanted(text: str, terms: dict[str, Any] = TERMS) -> list[tuple[str, ...]]:
    return [phrase.wordings for phrase in Glossary(terms).phrases(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a tea cup and tea", [("Teetasse",), ("Tee",)]),  # the longest first
        ("tea, tea; (tea)", [("Tee",)]),
        ("teacup team steam", []),  # whole words
        ("Tea-time: the tea\ncup", [("Tee",), ("Teetasse",)]),
        ("they run", [("laufen", "rennen", "Laufen", "Rennen")]),
        ("RUN", [("laufen", "rennen", "Laufen", "Rennen", "LAUFEN", "RENNEN")]),
        ("the US and us", [("USA",), ("uns", "Uns")]),
        ("apple APPLE Apple", [("Apple", "APPLE"), ("Apple",)]),
        ("", []),
    ],
)
def test_terms_are_found_by_words_and_case(text: str, found: list[tuple[str, ...]]) -> None:
    assert wanted(text) == found


def test_scripts_without_blanks_and_accents() -> None:
    assert wanted("我喝绿茶和茶", {"茶": "tea", "绿茶": "green tea"}) == [
        ("green tea", "Green tea"),
        ("tea", "Tea"),
    ]
    assert wanted("un cafe\u0301", {"caf\u00e9": "coffee"}) == [("coffee", "Coffee")]
    assert wanted("हिन्दी", {"ह": "h"}) == []


def test_a_long_text_with_many_terms_takes_no_time() -> None:
    terms = {" ".join(["a"] * n): f"t{n}" for n in range(1, 500)} | {"a " * 499 + "b": "x"}
    glossary, start = Glossary(terms), time.perf_counter()
    glossary.phrases("a " * 10_000)
    assert time.perf_counter() - start < 5


def test_outputs_have_the_translations_of_the_terms_that_are_there() -> None:
    model = tiny(banned=True)
    plain = model.run(["zuko", "a cup"])
    found = model.run(["zuko", "a cup", "Cup"], glossary={"cup": ["tea", "uncle"], "iroh": "of"})
    assert found[0].text == plain[0].text
    assert found[0].score == plain[0].score
    assert all("tea" in output.text or "uncle" in output.text for output in found[1:])
    (both,) = model.run(["a cup"], glossary={"cup": "zuko"}, include=[["made"]])
    assert "zuko" in both.text
    assert "made" in both.text
    (sampled,) = model.run(["cup"], glossary={"cup": "zuko"}, sample=True)
    assert "zuko" in sampled.text


def test_the_tags_of_a_source_are_no_words_of_it() -> None:
    tokens = Tokens.train(recipe.Tokens(level="character"), ["abc of"], tags=["de"])
    model = tiny()
    model.source_tokens = tokens
    plain, given = (model.run(["<de> abc"], glossary=terms)[0] for terms in ({}, {"de": "of"}))
    assert given.text == plain.text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("tea\tTee\n\nrun\tlaufen\nrun\trennen\n", None),
        ("tea", ":1: 1 column instead of two"),
        ("tea\tTee\tdrink", ":1: 3 columns instead of two"),
        ("tea\t \n", ":1 has an empty term"),
        ("\n", "is empty"),
        ("tea\tT\x07ee", "control character"),
        ("t" * 1001 + "\tTee", "1,001 characters"),
    ],
)
def test_files(tmp_path: Path, content: str, words: str | None) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(content, "utf-8")
    if words is None:
        assert Glossary.of(str(path)).entries == {"tea": ("Tee",), "run": ("laufen", "rennen")}
        return
    with pytest.raises(DataError, match=words) as caught:
        Glossary.of(path)
    assert "terms.tsv" in str(caught.value)


def test_csv_and_what_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "terms.csv"
    path.write_text('"a, b",c,en,de\n', "utf-8")
    assert Glossary.read(path).entries == {"a, b": ("c",)}
    path.write_text('"a, b"x,c\n', "utf-8")
    with pytest.raises(DataError, match=":1: not valid CSV"):
        Glossary.read(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        Glossary.read(path)
    with pytest.raises(DataError, match="cannot be read"):
        Glossary.read(tmp_path / "none.tsv")


def test_what_cannot_be_used_is_said_before_any_work() -> None:
    model = tiny()
    with pytest.raises(DataError, match="'Straße' has tokens that are not"):
        model.run([], glossary={"street": "Straße"})
    with pytest.raises(ModelError, match="cannot be combined"):
        model.run(["tea"], glossary={"tea": "cup"}, groups=2, beam=2)
    with pytest.raises(DataError, match="has no translation"):
        model.run(["tea"], glossary={"tea": []})
    with pytest.raises(DataError, match="is not text"):
        model.run(["tea"], glossary={"tea": 5})  # type: ignore[dict-item]


def test_a_glossary_gives_way_to_what_is_excluded() -> None:
    model = transduce.load(FIXTURE)
    (free,) = model.run(["ab"], glossary={"ab": "dd"})
    assert "dd" in free.text
    (found,) = model.run(["ab"], glossary={"ab": ["dd", "cc"]}, exclude=["dd"])
    assert "dd" not in found.text
    assert "cc" in found.text
