"""Corpora that are always there: sizes, disjoint splits, and that they never change."""

from __future__ import annotations

import re
from hashlib import sha256
from itertools import groupby

import pytest

from transduce.corpora.generated import MADE

SPLITS = ("train", "valid", "test")


@pytest.mark.parametrize("name", ["copy", "reverse"])
def test_letters(name: str) -> None:
    splits = {split: list(MADE[name](split)) for split in SPLITS}
    assert {split: len(pairs) for split, pairs in splits.items()} == {
        "train": 20_000,
        "valid": 500,
        "test": 1_000,
    }
    everything = [source for pairs in splits.values() for source, _ in pairs]
    assert len(set(everything)) == 21_500
    assert all(re.fullmatch("[a-z]{1,12}", source) for source in everything)
    assert {len(source) for source, _ in splits["test"]} >= set(range(2, 13))
    turn = 1 if name == "copy" else -1
    assert all(target == source[::turn] for source, target in splits["train"])


def test_letters_are_the_same_for_ever() -> None:
    digest = sha256("\n".join(source for source, _ in MADE["copy"]("train")).encode())
    assert digest.hexdigest()[:16] == "09c77fe1e3a09892"


def test_cmudict() -> None:
    splits = {split: list(MADE["cmudict"](split)) for split in SPLITS}
    words = {split: {word for word, _ in pairs} for split, pairs in splits.items()}
    total = sum(map(len, words.values()))
    assert total > 110_000
    assert 0.045 < len(words["test"]) / total < 0.055
    assert 0.017 < len(words["valid"]) / total < 0.023
    assert not words["train"] & words["test"]
    assert not words["train"] & words["valid"]
    assert not words["valid"] & words["test"]
    pairs = [pair for split in SPLITS for pair in splits[split]]
    assert len(set(pairs)) == len(pairs)
    assert len({phone for _, phones in pairs for phone in phones.split(" ")}) == 39
    assert all(re.fullmatch("[a-z']+", word) for word, _ in pairs)
    assert {p for w, p in pairs if w == "tomato"} == {"T AH M EY T OW", "T AH M AA T OW"}
    for split in SPLITS:  # all pronunciations of a word follow each other
        assert len([word for word, _ in groupby(w for w, _ in splits[split])]) == len(words[split])
    first_letters = {word[0] for word, _ in splits["valid"][:200]}
    assert len(first_letters) > 10
