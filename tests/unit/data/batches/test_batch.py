"""Batches: padding and specials, the budget, every pair once, and resuming to the letter."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from one_by_one import one_by_one
from transduce import recipe
from transduce.data.batches import bucketing
from transduce.data.batches.batch import Batch, collate
from transduce.data.batches.bucketing import Batches, Position, ordered, prefetched
from transduce.data.batches.streaming_dataset import RankShard, StreamingDataset
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.errors import DataError


def corpus_of(lengths: list[tuple[int, int]]) -> Encoded:
    sources, targets = ([pair[side] for pair in lengths] for side in (0, 1))
    random = np.random.default_rng(0)

    def side(sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
        ids = random.integers(4, 100, sum(sizes)).astype(np.int32)
        return ids, np.cumsum([0, *sizes], dtype=np.int64)

    rows = np.arange(len(lengths))
    return Encoded(*side(sources), *side(targets), lines=rows + 1, numbers=rows)


def some_corpus(count: int = 500, seed: int = 3) -> Encoded:
    random = np.random.default_rng(seed)
    sources = random.integers(1, 40, count)
    targets = np.maximum(1, sources + random.integers(-3, 6, count))
    return corpus_of([(int(s), int(t)) for s, t in zip(sources, targets, strict=True)])


def epoch(batches: Batches, number: int = 0) -> list[Batch]:
    found = []
    for batch, following in one_by_one(batches, Position(number)):
        found.append(batch)
        if following.epoch > number:
            return found
    raise AssertionError("batches are endless")


def same(one: Batch, other: Batch) -> bool:
    return (
        torch.equal(one.source_BS, other.source_BS)
        and torch.equal(one.target_BT, other.target_BT)
        and one.lines == other.lines
    )


def test_collate_adds_specials_and_pads() -> None:
    batch = collate([[5, 6], [7]], [[8], np.array([9, 10, 11], np.int32)], lines=[3, 9])
    assert batch.source_BS.tolist() == [[5, 6, END], [7, END, PAD]]
    assert batch.target_BT is not None
    assert batch.target_BT.tolist() == [
        [BEGIN, 8, END, PAD, PAD],
        [BEGIN, 9, 10, 11, END],
    ]
    assert batch.source_BS.dtype == batch.target_BT.dtype == torch.int64
    assert batch.source_lengths_B.tolist() == [3, 2]
    assert batch.target_lengths_B.tolist() == [2, 4]
    assert (batch.lines, batch.rows, batch.target_tokens, len(batch)) == ([3, 9], [0, 1], 6, 2)
    assert batch.padding_fraction == pytest.approx(3 / 14)


def test_collate_without_targets_and_of_empty_sources() -> None:
    batch = collate([[5], []], None)
    assert batch.source_BS.tolist() == [[5, END], [END, PAD]]
    assert (batch.target_BT, batch.target_lengths_B, batch.target_tokens) == (None, None, 0)
    assert batch.to("cpu").source_BS.tolist() == batch.source_BS.tolist()
    assert collate([[], []], [[], []]).target_BT.tolist() == [[BEGIN, END]] * 2


def test_ids_move_and_lengths_stay() -> None:
    moved = collate([[5]], [[6]]).to(torch.device("meta"))
    assert moved.source_BS.device.type == "meta"
    assert moved.target_BT is not None
    assert moved.target_BT.device.type == "meta"
    assert moved.source_lengths_B.tolist() == [2]


@given(
    lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60),
    budget=st.integers(1, 120),
    seed=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_every_pair_once_within_the_budget(lengths, budget: int, seed: int) -> None:
    corpus = corpus_of(lengths)
    for batches in (epoch(Batches(corpus, budget, seed)), list(ordered(corpus, budget))):
        assert sorted(row for batch in batches for row in batch.rows) == list(range(len(corpus)))
        for batch in batches:
            places = max(batch.source_BS.numel(), batch.target_BT.numel())
            assert places <= budget or len(batch) == 1
            for place, row in enumerate(batch.rows):
                source = [*corpus.source(row).tolist(), END]
                target = [BEGIN, *corpus.target(row).tolist(), END]
                assert batch.source_BS[place, : len(source)].tolist() == source
                assert (batch.source_BS[place, len(source) :] == PAD).all()
                assert batch.target_BT[place, : len(target)].tolist() == target
                assert (batch.target_BT[place, len(target) :] == PAD).all()
                assert batch.source_lengths_B[place] == len(source)
                assert batch.target_lengths_B[place] == len(target) - 1


@given(
    lengths=st.lists(st.integers(1, 40), max_size=60),
    budget=st.integers(1, 120),
)
@settings(max_examples=50, deadline=None)
def test_batches_are_the_same_with_and_without_the_c_library(lengths, budget: int) -> None:
    expected, end = [0], 0
    while end < len(lengths):
        start, end = end, end + 1
        while end < len(lengths) and max(lengths[start : end + 1]) * (end + 1 - start) <= budget:
            end += 1
        expected.append(end)
    given = np.array(lengths, np.int32)
    with pytest.MonkeyPatch.context() as patch:
        for used in ("1", "0"):
            patch.setenv("TRANSDUCE_NATIVE", used)
            assert bucketing._bounds(given, budget) == expected


def test_similar_lengths_stand_together() -> None:
    corpus = some_corpus(20_000)
    batches = epoch(Batches(corpus, 4096))
    places = sum(b.source_BS.numel() + b.target_BT[:, 1:].numel() for b in batches)
    real = sum(int(b.source_lengths_B.sum()) + b.target_tokens for b in batches)
    assert real / places > 0.95
    assert 1 - real / places == pytest.approx(
        sum(
            b.padding_fraction * (b.source_BS.numel() + b.target_BT[:, 1:].numel()) for b in batches
        )
        / places
    )


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, number: int) -> list[list[int]]:
        return [batch.rows for batch in epoch(Batches(some_corpus(), 200, seed), number)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(2, 0)
    assert order(1, 0) != order(1, 1)
    # Not the batches' order alone: pairs of equal lengths meet others, too.
    assert set(map(frozenset, order(1, 0))) != set(map(frozenset, order(1, 1)))


def test_the_order_is_the_same_on_every_machine() -> None:
    first = next(one_by_one(Batches(some_corpus(), 400, seed=1)))[0]
    assert first.rows == FIRST_ROWS


FIRST_ROWS = [112, 458, 394, 191, 101, 408, 454, 23, 446, 337, 457, 356, 256, 233, 486, 150, 262]


def stream_of(
    folder: Path,
    shuffle_buffer: int,
    count: int = 100,
    share: RankShard | None = None,
    **keys: object,
) -> StreamingDataset:
    random = np.random.default_rng(5)
    lines = ["x" * int(n) + f" {i}" for i, n in enumerate(random.integers(1, 30, count))]
    (folder / "a.en").write_text("\n".join(lines))
    (folder / "a.de").write_text("\n".join(line[::-1] for line in lines))
    corpus = recipe.ParallelFiles(source="a.en", target="a.de")
    tokens = recipe.TokensOfSides(both=recipe.Tokens(level="character"))
    data = recipe.Data(
        folder=str(folder),
        train=corpus,
        valid=corpus,
        tokens=tokens,
        shuffle_buffer=shuffle_buffer,
        **keys,
    )
    return StreamingDataset(corpus, data, *train_tokens(data), share)


@pytest.mark.parametrize("kind", ["whole", "stream"])
def test_resuming_anywhere_goes_on_exactly(kind: str, tmp_path: Path) -> None:
    corpus = some_corpus(60) if kind == "whole" else stream_of(tmp_path, shuffle_buffer=33)
    whole = list(islice(one_by_one(Batches(corpus, 150, seed=4)), 45))
    assert whole[-1][1].epoch >= 2
    for stop in range(len(whole) - 1):
        kept = Position(**json.loads(json.dumps(asdict(whole[stop][1]))))
        fresh = one_by_one(Batches(corpus, 150, seed=4), kept)
        for (batch, following), (again, after) in zip(whole[stop + 1 :][:4], fresh, strict=False):
            assert same(batch, again)
            assert following == after


@pytest.mark.parametrize("shuffle_buffer", [1, 7, 50, 99, 100, 101])
def test_a_stream_gives_every_pair_once_an_epoch(tmp_path: Path, shuffle_buffer: int) -> None:
    stream = stream_of(tmp_path, shuffle_buffer)
    batches = Batches(stream, 200)
    for number in (0, 1):
        lines = [line for batch in epoch(batches, number) for line in batch.lines]
        assert sorted(lines) == list(range(1, 101))
    pools = list(stream.pools(0))
    assert max(len(encoded) for encoded, _ in pools) <= shuffle_buffer
    assert [last for _, last in pools] == [False] * (len(pools) - 1) + [True]
    assert np.concatenate([e.numbers for e, _ in pools]).tolist() == list(range(100))
    if shuffle_buffer >= 50:  # fewer may be one batch, in order of length
        orders = [[batch.lines for batch in epoch(batches, number)] for number in (0, 1)]
        assert orders[0] != orders[1]


def test_a_stream_passes_over_pools_of_overlong_pairs(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, shuffle_buffer=5, max_length=12)
    lines = [line for batch in epoch(Batches(stream, 200)) for line in batch.lines]
    assert 0 < len(lines) < 60
    assert len(lines) + stream.report.overlong == 100
    empty = stream_of(tmp_path, shuffle_buffer=5, max_length=1)
    with pytest.raises(
        DataError, match=r"no pair of a\.en and a\.de is left to use: 100 pairs longer than 1"
    ):
        next(one_by_one(Batches(empty, 200)))


@pytest.mark.parametrize("count", [2, 3, 7])
def test_processes_that_share_a_stream_have_the_same_pools(tmp_path: Path, count: int) -> None:
    """Each tokenises its part; threads stand for the processes."""
    whole = stream_of(tmp_path, shuffle_buffer=33, max_length=20)
    expected = list(whole.pools(1))
    assert sum(len(encoded) for encoded, _ in expected) < 67
    meeting, parts = Barrier(count, timeout=100), [b""] * count

    def share_of(rank: int) -> RankShard:
        def exchange(own: bytes) -> list[bytes]:
            parts[rank] = own
            meeting.wait()
            found = list(parts)
            meeting.wait()
            return found

        return RankShard(rank, count, exchange)

    shared = [
        stream_of(tmp_path, shuffle_buffer=33, share=share_of(rank), max_length=20)
        for rank in range(count)
    ]
    with ThreadPoolExecutor(count) as threads:
        for found in threads.map(lambda stream: list(stream.pools(1)), shared):
            for (mine, last), (theirs, theirs_last) in zip(found, expected, strict=True):
                assert last == theirs_last
                for name, array in vars(theirs).items():
                    assert getattr(mine, name).dtype == array.dtype
                    assert getattr(mine, name).tolist() == array.tolist(), name
    tokenised = [stream.report.source_tokens for stream in shared]
    assert sum(tokenised) == whole.report.source_tokens
    assert max(tokenised) < whole.report.source_tokens


@pytest.mark.parametrize(("size", "count"), [(1, 1), (6, 3), (5, 3), (4, 2)])
def test_processes_share_the_batches_of_an_update(size: int, count: int) -> None:
    whole = list(islice(one_by_one(Batches(some_corpus(60), 150)), 4 * size))
    shares = [
        list(islice(Batches(some_corpus(60), 150).updates(size, None, rank, count), 4))
        for rank in range(count)
    ]
    for number, portions in enumerate(zip(*shares, strict=True)):
        update = whole[number * size : (number + 1) * size]
        for rank, portion in enumerate(portions):
            assert portion.tokens == sum(batch.target_tokens for batch, _ in update)
            assert portion.position == update[-1][1]
            own = update[rank::count]
            assert len(portion.batches) == len(own)
            assert all(same(b, other) for b, (other, _) in zip(portion.batches, own, strict=True))


def test_an_error_in_a_stream_reaches_the_trainer(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, shuffle_buffer=10)
    with (tmp_path / "a.en").open("ab") as file:
        file.write(b"\n\xff")
    with (tmp_path / "a.de").open("ab") as file:
        file.write(b"\nx")
    with pytest.raises(DataError, match=r"a\.en:101: byte 1"):
        epoch(Batches(stream, 200))


def test_an_empty_corpus_does_not_go_round_for_ever() -> None:
    with pytest.raises(DataError, match="no pair"):
        next(one_by_one(Batches(corpus_of([]))))


def test_a_position_past_the_end_starts_the_next_epoch() -> None:
    batches = Batches(some_corpus(30), 100)
    for odd in (Position(0, 0, 9999), Position(0, 3, 0)):
        assert same(next(one_by_one(batches, odd))[0], next(one_by_one(batches, Position(1)))[0])


def test_ordered_is_sorted_and_repeats() -> None:
    corpus = some_corpus()
    once, again = list(ordered(corpus, 300)), list(ordered(corpus, 300))
    assert all(same(a, b) for a, b in zip(once, again, strict=True))
    longest = [max(batch.source_BS.shape[1], batch.target_BT.shape[1]) for batch in once]
    assert longest[0] < longest[-1]


@pytest.mark.parametrize("rows", [slice(0, 2), slice(2, None), slice(1, 2)])
def test_a_part_of_a_batch_is_the_batch_of_those_rows(rows: slice) -> None:
    pairs = [([5, 6, 7], [8, 9]), ([6], [7, 8, 9, 10]), ([9, 9], [4]), ([], [5, 6, 7])]
    sources, targets = [p[0] for p in pairs], [p[1] for p in pairs]
    part = collate(sources, targets, [11, 12, 13, 14]).part(rows)
    alone = collate(sources[rows], targets[rows], [11, 12, 13, 14][rows])
    assert part.rows == list(range(4))[rows]
    for name, mine in vars(part).items():
        theirs = getattr(alone, name)
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs), name
            assert mine.is_contiguous()
        elif name != "rows":
            assert mine == pytest.approx(theirs), name


def test_a_part_of_sources_alone() -> None:
    part = collate([[5, 6, 7], [6], [9, 9]], None).part(slice(1, 3))
    assert part.target_BT is None
    assert part.source_BS.tolist() == collate([[6], [9, 9]], None).source_BS.tolist()


def test_labels_have_no_end() -> None:
    batch = collate([[5, 6], [7]], [[8, 9], [10]], ends=False)
    assert batch.source_BS.tolist() == [[5, 6], [7, PAD]]
    assert batch.target_BT.tolist() == [[BEGIN, 8, 9], [BEGIN, 10, PAD]]
    assert batch.source_lengths_B.tolist() == batch.target_lengths_B.tolist() == [2, 1]
    assert (batch.target_tokens, batch.padding_fraction) == (3, pytest.approx(2 / 8))
    part = batch.part(slice(1, 2))
    assert (part.source_BS.tolist(), part.target_BT.tolist()) == ([[7]], [[BEGIN, 10]])
    assert collate([[], []], None, ends=False).source_BS.tolist() == [[PAD], [PAD]]


def test_updates_count_labels_as_their_batches_do() -> None:
    corpus = corpus_of([(n % 7 + 1, n % 7 + 1) for n in range(50)])
    for ends in (True, False):
        batches = Batches(corpus, 40, ends=ends)
        assert batches.ends == ends
        portion = next(batches.updates(3))
        total = sum(batch.target_tokens for batch in portion.batches)
        assert portion.tokens == total
        rows = [row for batch in portion.batches for row in batch.rows]
        assert total == sum(len(corpus.target(row)) + ends for row in rows)
    assert sum(b.target_tokens for b in ordered(corpus, 40, ends=False)) == len(corpus.target_ids)


# ------------------------------------------------------------------------------------- ahead


@pytest.mark.parametrize("ahead", [1, 3])
def test_what_is_made_ahead_comes_in_order_and_no_further(ahead: int) -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(6):
            made.append(number)
            yield number

    coming = prefetched(items(), ahead)
    assert next(coming) == 0
    assert len(made) <= 1 + ahead
    assert list(coming) == [1, 2, 3, 4, 5]


def test_what_nobody_wants_any_more_is_not_made() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            time.sleep(0.02)
            yield number

    coming = prefetched(items(), 50)
    assert next(coming) == 0
    assert isinstance(coming, Generator)
    coming.close()
    assert len(made) < 10


def test_what_fails_ahead_fails_where_it_is_used() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    coming = prefetched(items(), 2)
    assert next(coming) == 1
    with pytest.raises(ValueError, match="broken"):
        next(coming)
