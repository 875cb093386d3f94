"""Phones of a group of words, shared out by how each word sounds alone."""

from __future__ import annotations

import pytest

from transduce.synthesis.espeak import assign_to_words


@pytest.mark.parametrize(
    ("said", "words", "owners"),
    [
        ("w ʌ z ð ɪ", ["w ɒ z", "ð ə"], "00011"),
        ("ɒ v ð ə", ["ɒ v", "ð ə"], "0011"),
        ("ð eə w ɒ z", ["ð eə", "w ɒ z"], "00111"),
        ("ɪ n t ə ð ə", ["ɪ n", "t ʊ", "ð ə"], "001122"),
        ("ɒ v ð ə", ["ɒ v", "", "ð ə"], "0022"),  # a dash is not said
        ("ɐ m", ["aɪ", "a m"], "01"),
        ("m", ["aɪ", "a m"], "1"),  # fewer phones than words: it goes to whom it is most like
        ("a b", ["", ""], "00"),
    ],
)
def test_phones_go_to_the_words_they_are_most_like(
    said: str, words: list[str], owners: str
) -> None:
    found = assign_to_words(said.split(), [word.split() for word in words])
    assert "".join(map(str, found)) == owners
