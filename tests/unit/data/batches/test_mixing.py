"""Mixing: the shares that are drawn are those asked for, of the right pairs, and resume exactly."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from one_by_one import one_by_one
from transduce.data.batches.bucketing import Batches, Position
from transduce.data.batches.mixing import Mix, _origins, mix_of, shares_of
from transduce.data.cache.tokenised import Encoded
from transduce.data.text.pairs import read_pairs
from transduce.errors import DataError, RecipeError
from transduce.recipe import Data, parse_recipe

SIZES = (7, 40, 300)


def data_of(folder: Path, corpora: list[dict[str, Any]], **more: Any) -> Data:
    for name, size in zip("abc", SIZES, strict=True):
        lines = [f"{name}{i}\tt{i}\n" for i in range(size)]
        lines[3:3] = ["\tno source\n"]  # skipped, and not counted
        (folder / f"{name}.tsv").write_text("".join(lines))
    train = [{"file": f"{name}.tsv", **one} for name, one in zip("abc", corpora, strict=True)]
    valid = {"file": "a.tsv"}
    return Data.model_validate({"train": train, "valid": valid, "folder": str(folder), **more})


def encoded(rows: int) -> Encoded:
    random = np.random.default_rng(1)
    ends = np.cumsum([0, *random.integers(1, 9, rows)])
    ids = np.full(int(ends[-1]), 5, np.int32)
    return Encoded(ids, ends, ids, ends, lines=np.arange(rows) + 1, numbers=np.arange(rows))


def drawn(mix: Mix, batches: Batches, epochs: int) -> Counter[int]:
    """How often each row comes in some epochs."""
    found: Counter[int] = Counter()
    for batch, following in one_by_one(batches):
        found.update(batch.rows)
        if following.epoch == epochs:
            return found
    raise AssertionError("batches are endless")


def test_shares_by_hand() -> None:
    assert shares_of([100, 300], [1, 1], 1).tolist() == pytest.approx([0.25, 0.75])
    assert shares_of([100, 300], [3, 1], 1).tolist() == pytest.approx([0.5, 0.5])
    powers = [100**0.2, 2 * 10_000**0.2]
    assert shares_of([100, 10_000], [1, 2], 5).tolist() == pytest.approx(
        [one / sum(powers) for one in powers]
    )
    assert shares_of([1, 10**9], [1, 1], 1e9).tolist() == pytest.approx([0.5, 0.5])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_the_corpus_of_each_pair_is_known(counts: list[int]) -> None:
    from transduce.data.text.pairs import _interleaved

    parts = [iter([place] * count) for place, count in enumerate(counts)]
    assert _origins(counts).tolist() == list(_interleaved(parts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weights", "temperature"), [((1, 1, 1), 5.0), ((4, 1, 0.5), 1.0), ((1, 3, 1), 2.5)]
)
def test_pairs_are_drawn_as_often_as_asked(
    tmp_path: Path, weights: tuple[float, ...], temperature: float
) -> None:
    corpora = [{"weight": float(weight)} for weight in weights]
    data = data_of(tmp_path, corpora, temperature=temperature)
    pairs = list(read_pairs(data.train, data.folder))
    mix = mix_of(data, np.arange(len(pairs)))
    assert mix is not None
    epochs = 30
    found = drawn(mix, Batches(encoded(len(pairs)), 64, mix=mix), epochs)
    asked = [w * n ** (1 / temperature) for w, n in zip(weights, SIZES, strict=True)]
    for place, name in enumerate("abc"):
        rows = [row for row, pair in enumerate(pairs) if pair.source.startswith(name)]
        counts = [found[row] for row in rows]
        # At most a pair more or less in each epoch, and on average less.
        wanted = epochs * len(pairs) * asked[place] / sum(asked)
        assert abs(sum(counts) - wanted) < 2 * epochs**0.5
        # Within a corpus all come alike: an epoch has a pair at most once more than another.
        assert max(counts) - min(counts) <= epochs
        assert np.mean(counts) == pytest.approx(wanted / len(rows), rel=0.1)


def test_every_pair_comes_before_one_comes_again(tmp_path: Path) -> None:
    data = data_of(tmp_path, [{"weight": 20.0}, {}, {}])
    mix = mix_of(data, np.arange(sum(SIZES)))
    assert mix is not None
    rows = Counter(mix.draw(np.random.default_rng(4)).tolist())
    often = {rows[row] for row in mix.rows[0].tolist()}
    assert len(often) <= 2
    assert max(often) - min(often) <= 1
    assert min(often) > 5


def test_stopping_anywhere_changes_nothing(tmp_path: Path) -> None:
    data = data_of(tmp_path, [{"weight": 9.0}, {}, {}], temperature=3.0)
    mix = mix_of(data, np.arange(sum(SIZES)))
    batches = Batches(encoded(sum(SIZES)), 64, mix=mix)
    whole = list(islice(one_by_one(batches), 90))
    assert whole[-1][1].epoch > 0  # more than one epoch
    for stop in (1, 13, 40, 77):
        again = one_by_one(Batches(encoded(sum(SIZES)), 64, mix=mix), whole[stop - 1][1])
        rest = list(islice(again, 90 - stop))
        assert [batch.rows for batch, _ in rest] == [batch.rows for batch, _ in whole[stop:]]
        assert rest[-1][1] == whole[-1][1]
    assert whole[0][1] == Position(0, 0, 1)


def test_without_weights_nothing_changes(tmp_path: Path) -> None:
    data = data_of(tmp_path, [{}, {"weight": 1.0}, {}])
    assert mix_of(data, np.arange(sum(SIZES))) is None


def test_shares_are_reported(tmp_path: Path) -> None:
    data = data_of(tmp_path, [{"tag": "deu", "weight": 347 / 7}, {}, {}])
    mix = mix_of(data, np.arange(sum(SIZES)))
    assert mix is not None
    first = mix.sentences()[0]
    assert first.startswith("a.tsv (deu): 7 pairs, 2.0% of all, drawn 50.5% of the time")
    assert "each pair 25 times per epoch" in first


def test_a_corpus_that_gives_nothing_is_reported(tmp_path: Path) -> None:
    data = data_of(tmp_path, [{"weight": 2.0}, {}, {}])
    beyond = np.setdiff1d(np.arange(sum(SIZES)), np.arange(0, 21, 3))  # none of the first
    with pytest.raises(DataError, match=r"no pair of a\.tsv is left to draw"):
        mix_of(data, beyond)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("train: {file: a.tsv, weight: 2}", r"data\.train\.weight is 2, but weights are for a"),
        ("train: {file: a.tsv}\n  temperature: 5", r"data\.temperature is 5, but data\.train is"),
        ("train: [{file: a.tsv, weight: 0}]", r"weight is 0"),
    ],
)
def test_mistakes_are_one_sentence(data: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_recipe(f"data:\n  {data}\n  valid: {{file: v.tsv}}\n", "r.yaml", Path())
