"""Wishes in words: for all sources or for each, and plain errors before any work."""

from __future__ import annotations

from typing import Any

import pytest

from transduce import recipe
from transduce.data.tokens.tokenizer import Tokens
from transduce.decoding.constraints import read as wishes
from transduce.errors import ModelError


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return Tokens.train(recipe.Tokens(level="word"), ["a dog runs", "the cat sleeps"])


def test_one_for_all_or_one_for_each(tokens: Tokens) -> None:
    dog, cat = tokens.encode("dog"), tokens.encode("the cat")
    assert wishes.prefixes_of(None, 2, tokens) == [[], []]
    assert wishes.prefixes_of("dog", 2, tokens) == [dog, dog]
    assert wishes.prefixes_of(["the cat", ""], 2, tokens) == [cat, []]

    def included(*asked: Any) -> list[list[list[int]]]:
        return [[one for (one,) in of] for of in wishes.included(*asked)]

    for read in (included, wishes.excluded):
        assert read(None, 2, tokens) == [[], []]
        assert read([], 2, tokens) == [[], []]
        assert read("dog", 2, tokens) == [[dog], [dog]]
        assert read(["dog", "the cat"], 2, tokens) == [[dog, cat], [dog, cat]]
        assert read([["dog"], []], 2, tokens) == [[dog], []]
        assert read([None, ("the cat", "dog")], 2, tokens) == [[], [cat, dog]]


def test_a_phrase_asked_for_twice_is_one_phrase(tokens: Tokens) -> None:
    assert wishes.included(["dog", "dog"], 1, tokens) == [[[tokens.encode("dog")]]]


def test_a_phrase_may_have_several_wordings(tokens: Tokens) -> None:
    pets = wishes.AnyOf(("zebra", "cat", "dog", "dog"))
    assert wishes.included([["the", pets]], 1, tokens) == [
        [[tokens.encode("the")], [tokens.encode("cat"), tokens.encode("dog")]]
    ]
    with pytest.raises(ModelError, match="zebra"):
        wishes.included([[wishes.AnyOf(("zebra", "yak"))]], 1, tokens)


def test_what_cannot_be_written_need_not_be_excluded(tokens: Tokens) -> None:
    assert wishes.excluded(["zebra", "dog"], 1, tokens) == [[tokens.encode("dog")]]


def test_only_is_every_token_of_the_texts(tokens: Tokens) -> None:
    assert wishes.allowed(None, tokens) is None
    expected = sorted({*tokens.encode("a dog"), *tokens.encode("cat")})
    assert wishes.allowed(["a dog", "cat zebra"], tokens) == expected


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: wishes.prefixes_of(["dog"], 2, t), "1 entries, but there are 2"),
        (lambda t: wishes.prefixes_of([5], 1, t), "int"),
        (lambda t: wishes.prefixes_of("zebra", 1, t), "zebra"),
        (lambda t: wishes.included([["dog"]], 2, t), "1 entries, but there are 2"),
        (lambda t: wishes.included(["zebra"], 1, t), "zebra"),
        (lambda t: wishes.included([["dog", ""]], 1, t), "empty phrase"),
        (lambda t: wishes.included([[5]], 1, t), "int"),
        (lambda t: wishes.excluded(["  "], 1, t), "empty phrase"),
        (lambda t: wishes.allowed([], t), "only"),
        (lambda t: wishes.allowed(["zebra"], t), "only"),
    ],
)
def test_a_wish_that_cannot_be_is_one_sentence(tokens: Tokens, call: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said) as error:
        call(tokens)
    assert "\n" not in str(error.value)
