"""The order of a streamed corpus: another in every epoch, the same for the same seed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from transduce import recipe
from transduce.data.batches.streaming_dataset import StreamingDataset, _drawn
from transduce.data.text.pairs import Pair
from transduce.data.tokens.tokenizer import Tokens

BYTES = Tokens.train(recipe.Tokens(level="byte"), [])
LINES = 60


def stream(
    folder: Path, corpus: object, shuffle_buffer: int = 10, seed: int = 1
) -> StreamingDataset:
    values = {
        "folder": str(folder),
        "train": corpus,
        "valid": corpus,
        "shuffle_buffer": shuffle_buffer,
    }
    data = recipe.Data.model_validate(values)
    return StreamingDataset(data.train, data, BYTES, BYTES, seed=seed)


def texts(stream: StreamingDataset, epoch: int) -> list[list[tuple[str, str]]]:
    """Source and target of each pair, pool by pool."""
    return [
        [
            (BYTES.decode(pool.source(row).tolist()), BYTES.decode(pool.target(row).tolist()))
            for row in range(len(pool))
        ]
        for pool, _ in stream.pools(0, epoch)
    ]


def order(stream: StreamingDataset, epoch: int) -> list[str]:
    return [target for pool in texts(stream, epoch) for _, target in pool]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The same pairs in four pairs of files, in a table of four files, and as text."""
    for part in "abcd":
        numbers = [f"{part}{n}" for n in range(LINES // 4)]
        (tmp_path / f"{part}.en").write_text("".join(f"source {n}\n" for n in numbers))
        (tmp_path / f"{part}.de").write_text("".join(f"{n}\n" for n in numbers))
        (tmp_path / f"{part}.tsv").write_text("".join(f"source {n}\t{n}\n" for n in numbers))
        (tmp_path / f"{part}.txt").write_text("".join(f"{n}\n" for n in numbers))
    return tmp_path


CORPORA = {
    "parallel": {"source": "*.en", "target": "*.de"},
    "columns": {"file": ["a.tsv", "b.tsv", "c.tsv", "d.tsv"]},
    "mixture": {"of": [{"file": ["a.tsv", "b.tsv"]}, {"source": "[cd].en", "target": "[cd].de"}]},
    "apart": {"text": "*.txt", "lines": "apart"},
}


@pytest.mark.parametrize("kind", CORPORA)
def test_every_epoch_has_every_pair_once_and_another_order(files: Path, kind: str) -> None:
    one = stream(files, CORPORA[kind])
    orders = [order(one, epoch) for epoch in range(4)]
    everything = sorted(f"{part}{n}" for part in "abcd" for n in range(LINES // 4))
    assert all(sorted(found) == everything for found in orders)
    assert len({tuple(found) for found in orders}) == 4
    # Not only within pools: other pairs come together.
    firsts = {frozenset(found[:10]) for found in orders}
    assert len(firsts) == 4
    # And not only nearby: the files change places.
    assert len({found[0][0] for found in orders}) > 1
    assert order(one, 2) == orders[2]
    assert order(stream(files, CORPORA[kind]), 2) == orders[2]
    assert order(stream(files, CORPORA[kind], seed=2), 2) != orders[2]


@pytest.mark.parametrize("kind", ["parallel", "columns", "mixture"])
def test_sources_stay_with_their_targets(files: Path, kind: str) -> None:
    for pool in texts(stream(files, CORPORA[kind]), 3):
        assert all(source == f"source {target}" for source, target in pool)


@pytest.mark.parametrize("start", [1, 2, 5])
def test_later_pools_are_those_of_the_whole_epoch(files: Path, start: int) -> None:
    one = stream(files, CORPORA["parallel"])
    whole = list(one.pools(0, 3))
    for (pool, last), (again, ended) in zip(whole[start:], one.pools(start, 3), strict=True):
        assert last == ended
        for name, array in vars(pool).items():
            np.testing.assert_array_equal(getattr(again, name), array)


def test_a_limit_is_of_the_first_pairs(files: Path) -> None:
    one = stream(files, {**CORPORA["parallel"], "limit": 20})
    first = [f"a{n}" for n in range(15)] + [f"b{n}" for n in range(5)]
    for epoch in range(3):
        assert sorted(order(one, epoch)) == sorted(first)
    assert order(one, 0) != order(one, 1)
    parts = [{"file": ["a.tsv", "b.tsv"], "limit": 3}, {"file": ["c.tsv", "d.tsv"], "limit": 4}]
    mixed = stream(files, {"of": parts})
    assert sorted(order(mixed, 1)) == ["a0", "a1", "a2", "c0", "c1", "c2", "c3"]


def test_running_text_stays_in_order_within_its_files(files: Path) -> None:
    one = stream(files, {"text": "*.txt"})
    starts = set()
    for epoch in range(4):
        found = "".join(order(one, epoch)).splitlines()
        assert len(found) == LINES
        parts = [found[start : start + 15] for start in range(0, LINES, 15)]
        assert all(part == [f"{part[0][0]}{n}" for n in range(15)] for part in parts)
        starts.add("".join(part[0][0] for part in parts))
    assert len(starts) > 1


@pytest.mark.parametrize("size", [1, 7, 400, 3000])
def test_a_buffer_mixes_as_far_as_it_is_large(size: int) -> None:
    pairs = [Pair("s", str(n), "file", n + 1) for n in range(2500)]
    found = [int(pair.target) for pair in _drawn(iter(pairs), size, np.random.default_rng(1))]
    assert sorted(found) == list(range(2500))
    # No pair comes before it was read, or much more than some buffers later.
    assert all(number < place + size + 1 for place, number in enumerate(found))
    if size == 1:
        assert found == list(range(2500))
    else:
        falls = sum(one > other for one, other in pairwise(found))
        assert falls > 600
