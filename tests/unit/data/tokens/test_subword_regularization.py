"""Subwords taken apart: the same text in other pieces, the same for the same seed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from one_by_one import one_by_one
from transduce import recipe
from transduce.data.batches.bucketing import Batches
from transduce.data.cache.tokenised import encode_corpus
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.subword_regularization import split_subwords, splitting
from transduce.data.tokens.tokenizer import Tokens
from transduce.recipe import Recipe

TEXTS = ["the thing thinks", "a thin thing", "nothing is there", "think of this"] * 4
TOKENS = Tokens.train(recipe.Tokens(size=60), TEXTS)


def flat(texts: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    rows = TOKENS.encode_batch(texts)
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return np.concatenate([np.array(row, np.int32) for row in rows]), offsets


def apart(share: float, longest: int = 99, seed: int = 1) -> list[list[int]]:
    random = np.random.default_rng(seed)
    ids, offsets = split_subwords(*flat(TEXTS), TOKENS.halves(), share, random, longest)
    assert offsets[-1] == len(ids)
    return [ids[a:b].tolist() for a, b in pairwise(offsets)]


def test_it_is_the_same_text_in_more_pieces() -> None:
    whole = TOKENS.encode_batch(TEXTS)
    found = apart(0.3)
    assert [TOKENS.decode(row) for row in found] == TEXTS
    assert len({len(row) for row in found}) > 3
    assert sum(map(len, found)) > sum(map(len, whole))
    assert apart(0.0) == whole


def test_all_the_way_down_there_are_letters() -> None:
    letters = [TOKENS.pieces(row) for row in apart(1.0)]
    assert ["".join(row) for row in letters] == ["▁" + text.replace(" ", "▁") for text in TEXTS]
    assert {len(piece) for row in letters for piece in row} == {1}


def test_a_share_of_the_tokens_comes_apart() -> None:
    """One step down: of tokens whose halves are letters, as many as were asked for."""
    halves = np.full((10, 2), -1, np.int32)
    halves[9] = 5, 6
    random = np.random.default_rng(1)
    ids = np.full(20_000, 9, np.int32)
    found, _ = split_subwords(ids, np.array([0, 20_000]), halves, 0.1, random, 10**6)
    assert (found == 5).sum() == (found == 6).sum()
    assert abs((found == 5).mean() * len(found) / 20_000 - 0.1) < 0.01


def test_too_long_a_row_stays_whole() -> None:
    whole = TOKENS.encode_batch(TEXTS)
    found = apart(1.0, longest=14)
    for row, before in zip(found, whole, strict=True):
        assert row == before or len(row) <= 14
    assert any(row == before for row, before in zip(found, whole, strict=True))
    assert any(row != before for row, before in zip(found, whole, strict=True))


def test_the_seed_decides() -> None:
    assert apart(0.3, seed=4) == apart(0.3, seed=4) != apart(0.3, seed=5)


def test_batches_see_other_pieces_each_epoch_and_after_a_break_the_same(tmp_path: Path) -> None:
    lines = "".join(f"{text}\t{text[::-1]}\n" for text in TEXTS)
    (tmp_path / "pairs.tsv").write_text(lines, "utf-8")
    side = {"size": 60, "bpe_dropout": 0.3}
    corpus = {"file": str(tmp_path / "pairs.tsv")}
    keys = {"train": corpus, "valid": corpus, "tokens": {"source": side, "target": {"size": 60}}}
    data = Recipe.model_validate({"data": keys}).data
    tokens = train_tokens(data)
    encoded, _ = encode_corpus(data.train, data, *tokens, None)
    batches = Batches(encoded, 64, vary=splitting(data, *tokens))
    seen: dict[int, list[tuple[str, str]]] = {}
    epochs: dict[int, set[int]] = {}
    start = None
    going = one_by_one(batches)
    for number in range(60):
        batch, following = next(going)
        if number == 20:
            start = following
        epochs.setdefault(following.epoch, set()).add(int(batch.source_lengths_B.sum()))
        assert batch.target_BT is not None
        texts = zip(batch.source_BS, batch.target_BT, strict=True)
        seen[number] = [(tokens[0].decode(s), tokens[1].decode(t)) for s, t in texts]
        assert all(source == target[::-1] for source, target in seen[number])
    assert len({frozenset(sums) for sums in epochs.values()}) > 1
    again = one_by_one(batches, start)
    for number in range(21, 30):
        batch, _ = next(again)
        assert [tokens[0].decode(s) for s in batch.source_BS] == [s for s, _ in seen[number]]


@pytest.mark.parametrize("level", ["character", "word"])
def test_what_is_not_made_of_others(level: str) -> None:
    assert (Tokens.train(recipe.Tokens(level=level), TEXTS).halves() == -1).all()
    with pytest.raises(ValueError, match="it needs level: subword and algorithm: bpe"):
        recipe.Tokens(level=level, bpe_dropout=0.1)
