"""Vocabularies extended by the tokens of another corpus."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise

import pytest

from transduce import recipe
from transduce.data.tokens.extend import extended, old_pieces
from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.errors import TokensError

OLD = ["the cat sat on the mat", "a cat and a dog"] * 3
NEW = ["zebra zebra crossing über", "zebra cats überall zebra"] * 4
LEVELS = [("character", "bpe"), ("word", "bpe"), ("symbol", "bpe"), ("label", "bpe")]
LEVELS += [("subword", "bpe"), ("subword", "unigram"), ("byte", "bpe")]


def settings(level: str, algorithm: str, size: int, **more: int) -> recipe.Tokens:
    values = {"level": level, "algorithm": algorithm, "size": size, **more}
    return recipe.Tokens.model_validate(values)


@pytest.mark.parametrize(("level", "algorithm"), LEVELS)
def test_old_tokens_keep_their_ids_and_nothing_is_unknown(level: str, algorithm: str) -> None:
    old = Tokens.train(settings(level, algorithm, 300 if level == "byte" else 60), OLD)
    new = extended(old, settings(level, algorithm, 120), NEW)
    assert new.names()[: len(old)] == old.names()
    assert (len(new) > len(old)) == (level != "byte")
    assert not any(UNKNOWN in new.encode(text) for text in NEW)
    assert [new.decode(new.encode(text)) for text in NEW] == NEW
    assert Tokens.from_json(new.to_json()).names() == new.names()
    if algorithm == "bpe":  # texts of before are cut as before
        assert [new.encode(text) for text in OLD] == [old.encode(text) for text in OLD]


def test_bpe_goes_on_merging_the_most_frequent_pair() -> None:
    """Also where the halves of a token are tokens of the old vocabulary."""
    old = Tokens.train(settings("subword", "bpe", 60), OLD)
    new = extended(old, settings("subword", "bpe", len(old) + 3), ["the the cat the"] * 3)
    assert new.names() == old.names()  # "▁the" and "▁cat" are tokens: no pair is left
    more = extended(old, settings("subword", "bpe", len(old) + 1), ["thecat thecat dog"] * 3)
    assert len(more.encode("thecat")) == len(old.encode("thecat")) - 1


@pytest.mark.parametrize("seed", range(4))
def test_merges_are_those_of_counting_anew_each_time(seed: int) -> None:
    draw = random.Random(seed)
    texts = [" ".join("".join(draw.choices("abc", k=draw.randint(1, 7))) for _ in range(9))
             for _ in range(6)]  # fmt: skip
    old = Tokens.train(settings("subword", "bpe", 60), ["a b c", "ab"])
    new = extended(old, settings("subword", "bpe", len(old) + 25), texts)
    words = [
        [f"▁{word}"[n] for n in range(len(word) + 1)] for text in texts for word in text.split()
    ]
    known, merges = set(old.names()), []
    for one, other in json.loads(old.to_json())["model"]["merges"]:
        words = [joined(word, (one, other)) for word in words]
    while len(merges) < 25:
        counts = Counter(pair for word in words for pair in pairwise(word))
        usable = [pair for pair in counts if counts[pair] > 1 and "".join(pair) not in known]
        if not usable:
            break
        best = min(usable, key=lambda pair: (-counts[pair], pair))
        words = [joined(word, best) for word in words]
        known.add("".join(best))
        merges.append("".join(best))
    assert len(merges) > 15
    assert new.names()[len(old) :] == merges


def joined(word: list[str], pair: tuple[str, str]) -> list[str]:
    found: list[str] = []
    for piece in word:
        if found and (found[-1], piece) == pair:
            found[-1] += piece
        else:
            found.append(piece)
    return found


def test_size_and_frequency_are_limits() -> None:
    old = Tokens.train(settings("word", "bpe", 60), OLD)
    assert extended(old, settings("word", "bpe", len(old) + 1), NEW).names()[-1] == "zebra"
    often = extended(old, settings("word", "bpe", 100, min_count=5), NEW)
    assert often.names()[len(old) :] == ["zebra"]


def test_tags_keep_their_ids() -> None:
    old = Tokens.train(settings("subword", "bpe", 60), OLD, ["fr", "de"])
    new = extended(old, settings("subword", "bpe", 120), NEW)
    assert new.tags == old.tags
    assert new.encode("<fr> zebra")[0] == old.tags["fr"]
    symbols = Tokens.train(settings("symbol", "bpe", 60), OLD, ["fr"])
    with pytest.raises(TokensError, match="with tags cannot be extended"):
        extended(symbols, settings("symbol", "bpe", 120), NEW)


def test_the_pieces_of_a_new_token() -> None:
    old = Tokens.train(settings("subword", "bpe", 60), OLD)
    new = extended(old, settings("subword", "bpe", 120), ["thecat thecat"] * 3)
    number = new.names().index("▁thecat")
    pieces = old_pieces(old, new)(number)
    assert "".join(old.names()[piece] for piece in pieces) == "▁thecat"
    words = Tokens.train(settings("word", "bpe", 60), ["cat zz"])
    found = old_pieces(old, words)(words.names().index("cat"))
    assert [old.names()[piece] for piece in found] == ["▁cat"]
    letters = Tokens.train(settings("character", "bpe", 60), OLD)
    assert old_pieces(letters, words)(words.names().index("zz")) == []  # unknown ones are left out
