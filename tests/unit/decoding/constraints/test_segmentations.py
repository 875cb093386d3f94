"""Every way to write a phrase, against all sequences of tokens."""

from __future__ import annotations

from itertools import product

import pytest

from transduce.data.tokens.tokenizer import Tokens
from transduce.decoding.constraints import segmentations
from transduce.decoding.constraints.read import excluded
from transduce.decoding.constraints.segmentations import Segmentations
from transduce.recipe import Tokens as Settings

TEXTS = ["leiter, leiter. leiter", "leiten leite er, weiter leiser", "eile, eil! tee tee"] * 3


def subwords(size: int = 34) -> Tokens:
    return Tokens.train(Settings(level="subword", size=size), TEXTS)


@pytest.mark.parametrize("phrase", ["leiter", "er", "tee tee", "weiter"])
def test_all_ways_are_found(phrase: str) -> None:
    tokens = subwords()
    text = "".join(tokens.pieces(tokens.encode(phrase)))
    fitting = [n for n in range(4, len(tokens)) if tokens.pieces([n])[0].strip(",.!") in text]
    expected = set()
    for length in range(1, 5):
        for ids in product(fitting, repeat=length):
            joined = "".join(tokens.pieces(ids))
            ends = joined.rstrip(",.!") == text and len(joined.rstrip(",.!")) > len(
                "".join(tokens.pieces(ids[:-1]))
            )
            if joined == text or ends:
                expected.add(ids)
    found = [tuple(ids) for ids in Segmentations(tokens).of(tokens.encode(phrase))]
    assert len(set(found)) == len(found)
    assert {ids for ids in found if len(ids) < 5} == expected
    assert len(expected) >= 3


def test_the_shortest_are_found_first_where_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = subwords()
    ids = tokens.encode("leiter")
    every = Segmentations(tokens).of(ids)
    monkeypatch.setattr(segmentations, "MAX_SEGMENTATIONS", 3)
    some = Segmentations(tokens).of(ids)
    assert len(some) == 3
    assert sorted(map(len, some)) == sorted(map(len, every))[:3]


def test_whole_words_have_one_way() -> None:
    tokens = Tokens.train(Settings(level="word"), TEXTS)
    assert excluded(["tee tee"], 1, tokens) == [[tokens.encode("tee tee")]]


def test_a_phrase_is_banned_however_it_is_cut() -> None:
    tokens = subwords()
    (banned,) = excluded(["leiter"], 1, tokens)
    assert len(banned) > 3
    assert {tokens.decode(ids).rstrip(",.!") for ids in banned} == {"leiter"}
