"""Paragraphs into phrases: nothing is lost, and none is longer than it must be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transduce.synthesis.declaration import length, phrases


def test_sentences_and_commas() -> None:
    assert phrases("All are free. They are equal; all of them.") == [
        "All are free.",
        "They are equal;",
        "all of them.",
    ]
    text = "one two three, four five six, seven eight nine, ten"
    assert phrases(text, longest=30) == ["one two three, four five six,", "seven eight nine, ten"]
    assert phrases("（1）人人有权享有生命、自由和人身安全。任何人", longest=40) == [
        "（1）人人有权享有生命、",
        "自由和人身安全。",
        "任何人",
    ]


def test_a_number_is_no_phrase() -> None:
    assert phrases("1. Everyone has a right.") == ["1. Everyone has a right."]


@given(st.text(alphabet="ab,.;  \u2010人、。", max_size=80))
def test_no_letter_is_lost(text: str) -> None:
    joined = "".join(phrases(text, longest=10))
    kept = [sign for sign in joined if sign.isalnum()]
    assert kept == [sign for sign in text if sign.isalnum()]


@given(st.lists(st.sampled_from(["aa", "bbb", "cc,", "dd."]), max_size=30))
def test_phrases_are_short_where_they_can_be(words: list[str]) -> None:
    for phrase in phrases(" ".join(words), longest=12):
        assert length(phrase) <= 12 or "," not in phrase[:-1].rstrip(",.")
