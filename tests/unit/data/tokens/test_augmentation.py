"""Augmentation: tags in another order in each epoch, alone and with hallucinated pairs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from transduce import recipe
from transduce.data.cache.tokenised import encode_corpus
from transduce.data.tokens.augmentation import augmenting
from transduce.data.tokens.sides import train_tokens
from transduce.recipe import Columns, Data, Hallucination, Recipe

ROWS = ["walk\twalked\tV;PST;3;SG", "dog\tdogs\tN;PL", "a b\tab\tX"] * 40


def epochs(folder: Path, count: int = 2, **keys: object) -> list[list[tuple[list[str], str]]]:
    (folder / "forms.tsv").write_text("\n".join(ROWS) + "\n", "utf-8")
    columns = Columns(file="forms.tsv", tags=2)
    both = recipe.TokensOfSides(both=recipe.Tokens(level="character"))
    data = Data(folder=str(folder), train=columns, valid=columns, tokens=both, **keys)
    source, target = train_tokens(data, lambda line: None)
    encoded, _ = encode_corpus(columns, data, source, target, None)
    vary = augmenting(data, source, target)
    assert vary is not None
    made = [vary(encoded, np.random.default_rng(seed)) for seed in range(count)]
    return [
        [
            (source.pieces(one.source(row)), "".join(target.pieces(one.target(row))))
            for row in range(len(one))
        ]
        for one in made
    ]


def test_tags_are_shuffled_and_letters_are_not(tmp_path: Path) -> None:
    first, second = epochs(tmp_path, shuffle_tags=True)
    assert first != second
    heads = {tuple(pieces[:4]) for pieces, _ in first[::3]}
    assert {frozenset(head) for head in heads} == {frozenset(["<V>", "<PST>", "<3>", "<SG>"])}
    assert len(heads) > 10  # of 24 orders, in 40 rows
    assert {("".join(pieces[4:]), form) for pieces, form in first[::3]} == {("walk", "walked")}
    assert {("".join(pieces[1:]), form) for pieces, form in first[2::3]} == {("a▁b", "ab")}


def test_with_hallucinated_pairs(tmp_path: Path) -> None:
    (found,) = epochs(tmp_path, 1, shuffle_tags=True, hallucination=Hallucination(share=1.0))
    assert len({tuple(pieces[:4]) for pieces, _ in found[::3]}) > 10
    for pieces, form in found[::3]:
        assert form == "".join(pieces[4:]) + "ed"
    assert len({form for _, form in found[::3]}) > 10


def test_a_share_of_the_tags_becomes_unknown(tmp_path: Path) -> None:
    first, second = epochs(tmp_path, unknown_tags=0.25)
    assert first != second
    tags = [pieces[:4] for pieces, _ in first[::3]]
    hidden = sum(head.count("<?>") for head in tags)
    assert 20 < hidden < 60  # of 160
    for head in tags:
        for tag, own in zip(head, ["<V>", "<PST>", "<3>", "<SG>"], strict=True):
            assert tag in (own, "<?>")
    assert {("".join(pieces[4:]), form) for pieces, form in first[::3]} == {("walk", "walked")}


def test_copies_have_an_unknown_tag(tmp_path: Path) -> None:
    """Alone, or after the first tag of several: so that unknown features are not a reason to change
    the word."""
    asked = Hallucination(share=0.0, copies=0.5)
    (found,) = epochs(tmp_path, 1, unknown_tags=1e-9, hallucination=asked)
    copies = Counter("".join(pieces) for pieces, form in found[::3] if form == "walk")
    assert set(copies) == {"<?>walk", "<V><?>walk"}
    assert 10 < copies.total() < 30  # of 40
    assert {form for _, form in found[::3]} == {"walk", "walked"}
    assert {"".join(pieces) for pieces, form in found[2::3] if form == "a▁b"} == {"<?>a▁b"}


@pytest.mark.parametrize("asked", [{"shuffle_tags": True}, {"unknown_tags": 0.1}])
def test_there_must_be_tags(asked: dict[str, object]) -> None:
    corpus = {"file": "a.tsv"}
    with pytest.raises(ValidationError, match=f"{next(iter(asked))} is .*have no tags"):
        Recipe.model_validate({"data": {"train": corpus, "valid": corpus, **asked}})


def test_half_of_the_targets_are_turned_around(tmp_path: Path) -> None:
    first, second = epochs(tmp_path, bidirectional=True)
    assert first != second
    for number, (pieces, form) in enumerate(first):
        source, target, _ = ROWS[number].split("\t")
        turned = pieces[-1] == "<s>"
        assert form == (target[::-1] if turned else target)
        assert "".join(pieces[:-1] if turned else pieces).endswith(source.replace(" ", "▁"))
    count = sum(pieces[-1] == "<s>" for pieces, _ in first)
    assert 40 < count < 80  # of 120


def test_other_augmentation_comes_before_the_targets_are_turned(tmp_path: Path) -> None:
    hallucination = Hallucination(share=1.0)
    keys = {"shuffle_tags": True, "hallucination": hallucination, "bidirectional": True}
    (found,) = epochs(tmp_path, 1, **keys)
    stems: dict[bool, set[str]] = {True: set(), False: set()}
    for pieces, form in found[::3]:
        turned = pieces[-1] == "<s>"
        stem = "".join(pieces[4:-1] if turned else pieces[4:])
        assert form == ((stem + "ed")[::-1] if turned else stem + "ed")
        stems[turned].add(stem)
    assert min(map(len, stems.values())) > 5  # invented in both directions
    assert len({tuple(pieces[:4]) for pieces, _ in found[::3]}) > 10
