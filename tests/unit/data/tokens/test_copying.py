"""Ids of what can be copied: unknown tokens keep a number, and their spelling comes back."""

from __future__ import annotations

import pytest

from transduce import recipe
from transduce.data.tokens.copying import NOT_COPIED, CopiedTokens
from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.errors import ModelError


def tokens(
    *texts: str, level: str = "character", tags: tuple[str, ...] = (), **keys: object
) -> Tokens:
    return Tokens.train(recipe.Tokens.model_validate({"level": level, **keys}), texts, tags)


def pair(copied: CopiedTokens, source: str, target: str) -> tuple[list[int], list[int]]:
    read = copied.source_ids(source, copied.source.encode(source))
    return read, copied.target_ids(target, copied.target.encode(target), source, read)


def test_unknown_letters_are_numbered_by_where_they_stand_first() -> None:
    copied = CopiedTokens(tokens("abc"), tokens("abcd"))
    V, W = len(copied.source), len(copied.target)
    read, written = pair(copied, "axbxd", "xbdy")
    a, b = copied.source.encode("ab")
    # d is unknown to the source alone: its number is that of the target.
    (d,) = copied.target.encode("d")
    assert read == [a, V + W + 1, b, V + W + 1, V + d]
    assert written == [W + 1, *copied.target.encode("bd"), UNKNOWN]
    assert copied.target.decode(written, copied.source.spelt("axbxd", read)) == "xbd"


def test_a_letter_of_the_source_alone_can_be_copied() -> None:
    copied = CopiedTokens(tokens("abc"), tokens("ab"))
    read, written = pair(copied, "abcc", "bc")
    assert read == copied.source.encode("abcc")  # the network numbers it
    assert written == [*copied.target.encode("b"), len(copied.target) + 2]
    numbers = dict(zip(copied.source.names(), copied.copied_as(), strict=True))
    assert numbers["a"] == copied.target.encode("a")[0]
    assert numbers["c"] == len(copied.target)


def test_tags_and_special_tokens_are_never_copied() -> None:
    copied = CopiedTokens(tokens("ab", tags=("PL",)), tokens("ab"))
    numbers = dict(zip(copied.source.names(), copied.copied_as(), strict=True))
    assert {numbers[name] for name in ("<pad>", "<unk>", "<s>", "</s>", "<PL>")} == {NOT_COPIED}
    read, written = pair(copied, "<PL> axb", "x")
    assert read[2] == len(copied.source) + len(copied.target) + 2
    assert copied.target.decode(written, copied.source.spelt("<PL> axb", read)) == "x"


@pytest.mark.parametrize(
    ("level", "text", "keys"),
    [
        ("character", "A Żx b", {}),
        ("character", "a żx b", {"normalize": "nfd"}),
        ("word", "a 1957 b , 2024", {}),
        ("symbol", "a X:1 b y|z", {}),
        ("subword", "a ж bжж ab", {"size": 60}),
        ("subword", "a ж bжж ab", {"size": 60, "algorithm": "unigram"}),
        ("byte", "ab żж", {}),
    ],
)
def test_what_stands_in_a_source_is_written_as_it_stands(
    level: str, text: str, keys: dict[str, object]
) -> None:
    known = tokens(*["a b ab ba , b a c x é"] * 3, level=level, **keys)
    copied = CopiedTokens(known, known)
    read, written = pair(copied, text, text)
    assert UNKNOWN not in written
    assert known.decode(written, known.spelt(text, read)) == text


def test_tokens_of_different_levels_are_refused() -> None:
    with pytest.raises(ModelError, match="level character and the target of level symbol"):
        CopiedTokens(tokens("ab"), tokens("a b", level="symbol"))
