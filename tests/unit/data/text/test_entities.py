"""Entities from the tags of words, in the ways that are in use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.data.text.entities import Entity, entities, mark_entities

TAGS = {
    # Ada Lovelace met Bell Labs New York
    "IOB2": "B-PER I-PER O B-ORG I-ORG B-LOC I-LOC",
    "IOB1": "I-PER I-PER O I-ORG I-ORG I-LOC I-LOC",
    "BIOES": "B-PER E-PER O B-ORG E-ORG B-LOC E-LOC",
    "BILOU": "B-PER L-PER O B-ORG L-ORG B-LOC L-LOC",
    "without prefixes": "PER PER O ORG ORG LOC LOC",
    "without a beginning": "I-PER I-PER O B-ORG I-ORG I-LOC I-LOC",
}


@pytest.mark.parametrize("scheme", TAGS)
def test_one_sentence_in_all_schemes(scheme: str) -> None:
    expected = {Entity(0, 2, "PER"), Entity(3, 5, "ORG"), Entity(5, 7, "LOC")}
    assert entities(TAGS[scheme].split()) == expected


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("", []),
        ("B-PER B-PER", [(0, 1, "PER"), (1, 2, "PER")]),  # neighbours
        ("S-PER S-PER I-PER", [(0, 1, "PER"), (1, 2, "PER"), (2, 3, "PER")]),
        ("U-PER U-LOC", [(0, 1, "PER"), (1, 2, "LOC")]),
        ("B-PER I-LOC", [(0, 1, "PER"), (1, 2, "LOC")]),  # another kind begins another
        ("O I-PER", [(1, 2, "PER")]),
        ("E-PER E-PER", [(0, 1, "PER"), (1, 2, "PER")]),
        ("B-PER I-PER", [(0, 2, "PER")]),  # to the end of the sentence
        ("B-a-b I-a-b O", [(0, 2, "a-b")]),
    ],
)
def test_where_they_begin_and_end(tags: str, expected: list[tuple[int, int, str]]) -> None:
    assert entities(tags.split()) == {Entity(*one) for one in expected}


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["", "PER", "LOC"])), max_size=6))
def test_what_is_written_is_read(spans: list[tuple[int, str]]) -> None:
    tags: list[str] = []
    expected = set()
    for length, kind in spans:
        if kind:
            expected.add(Entity(len(tags), len(tags) + length, kind))
        tags += [f"B-{kind}", *[f"I-{kind}"] * (length - 1)] if kind else ["O"] * length
    assert entities(tags) == expected


def test_tags_that_mark_entities() -> None:
    assert mark_entities(["O", "B-PER", "I-PER"])
    assert not mark_entities(["O"])
    assert not mark_entities(["O", "B-PER", "NOUN"])
    assert not mark_entities(["NOUN", "VERB"])
    assert not mark_entities(["X-PER", "B-"])
