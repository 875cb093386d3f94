"""The order of a streamed corpus: another in every epoch, the same for the same seed."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import islice
from multiprocessing import spawn
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from one_by_one import one_by_one
from slow_params import some_slow
from transduce import recipe
from transduce.data.batches import streaming_dataset
from transduce.data.batches.bucketing import Batches, Position, RankBatches
from transduce.data.batches.streaming_dataset import (
    TASK,
    RankShard,
    StreamingDataset,
    joined,
    narrowed,
)
from transduce.data.cache.tokenised import Encoded
from transduce.data.index import corpus as index_of_corpus
from transduce.data.index import files as index_files
from transduce.data.index.corpus import CorpusIndex
from transduce.data.text.pairs import ReadingCounts, read_pairs
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError

BYTES = Tokens.train(recipe.Tokens(level="byte"), [])
LINES = 60


def stream(
    folder: Path,
    corpus: object,
    shuffle_buffer: int = 10,
    seed: int = 1,
    shard: RankShard | None = None,
    **keys: object,
) -> StreamingDataset:
    values = {
        "folder": str(folder),
        "train": corpus,
        "valid": {"file": "valid.tsv"},
        "shuffle_buffer": shuffle_buffer,
        **keys,
    }
    data = recipe.Data.model_validate(values)
    return StreamingDataset(data.train, data, BYTES, BYTES, shard, seed=seed)


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


def test_rows_are_numbered_in_the_order_of_the_epoch(files: Path) -> None:
    pools = [pool for pool, _ in stream(files, CORPORA["parallel"], TASK * 2).pools(0)]
    assert [len(pool) for pool in pools] == [2 * TASK, 2 * TASK, 2 * TASK, LINES - 6 * TASK]
    assert np.concatenate([pool.numbers for pool in pools]).tolist() == list(range(LINES))


def test_of_an_epoch_that_is_read_in_part_nothing_is_said(files: Path) -> None:
    one = stream(files, CORPORA["parallel"])
    list(one.pools(3))
    assert one.whole_epoch is None
    list(one.pools(0))
    assert one.whole_epoch is one.report


def test_each_pool_is_shuffled_anew(tmp_path: Path) -> None:
    """Of lines of one length, which bucketing does not order."""
    (tmp_path / "a.tsv").write_text("".join(f"x\t{n}\n" for n in range(100, 160)))
    updates = Batches(stream(tmp_path, {"file": "a.tsv"}, 20), 1000).updates(1)
    pools = [next(updates).batches[0].rows for _ in range(3)]
    assert [sorted(rows) for rows in pools] == [list(range(20))] * 3
    assert len({tuple(rows) for rows in pools}) == 3


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


# ------------------------------------------------------------------------ blocks of several rows


@pytest.fixture
def blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three rows where a pool has twelve."""
    monkeypatch.setattr(index_of_corpus, "PLACES", 4)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """The same 100 pairs, some with an empty side, in files of each format."""
    rows = [(f"source {n}" if n % 17 else "", f"{n} „target“") for n in range(100)]
    (tmp_path / "a.en").write_text("".join(f"{source}\n" for source, _ in rows))
    (tmp_path / "a.de").write_text("\n".join(target for _, target in rows))  # no last break
    table = "".join(f"{source}\t{target}\n" for source, target in rows)
    (tmp_path / "a.tsv").write_text(table)
    (tmp_path / "named.tsv").write_text(f"source\ttarget\n{table}")
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(table.encode()))
    (tmp_path / "a.tsv.xz").write_bytes(lzma.compress(table.encode()))
    records = [{"source": source, "target": target} for source, target in rows]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    with (tmp_path / "a.csv").open("w", newline="") as file:
        broken = [(source.replace(" ", "\n"), target) for source, target in rows]
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(broken)
    words = "".join("".join(f"{word}\tX\n" for word in s.split()) + "\n" for s, _ in rows if s)
    (tmp_path / "a.conll").write_text(words)
    return tmp_path


FORMATS = {
    "parallel": {"source": "a.en", "target": "a.de"},
    "tsv": {"file": "a.tsv"},
    "header": {"file": "named.tsv"},
    "names": {"file": "named.tsv", "source": "target", "target": "source"},
    "gzip": {"file": "a.tsv.gz"},
    "xz": {"file": "a.tsv.xz"},
    "jsonl": {"file": "a.jsonl"},
    "csv": {"file": "a.csv"},
    "conll": {"file": "a.conll"},
    "part": {"file": "a.tsv", "split": "20-70%"},
    "where": {"file": "a.tsv", "where": {"column": 0, "value": ["source 3", "source 90"]}},
    "tagged": {"file": "a.tsv", "tag": "de"},
    "limited": {"source": "a.en", "target": "a.de", "limit": 33},
    "several": {"of": [{"file": "a.tsv", "tag": "x"}, {"file": "a.jsonl", "limit": 9}]},
}


def read(stream: StreamingDataset, epoch: int) -> list[tuple[str, str, int]]:
    """Source, target and line of each pair."""
    return [
        (
            BYTES.decode(pool.source(row).tolist()),
            BYTES.decode(pool.target(row).tolist()),
            int(pool.lines[row]),
        )
        for pool, _ in stream.pools(0, epoch)
        for row in range(len(pool))
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_blocks_hold_what_reading_from_the_start_does(
    many: Path, form: str, blocks_of_rows: None
) -> None:
    one = stream(many, FORMATS[form], 12)
    expected = [(p.source, p.target, p.line) for p in read_pairs(one.corpus, str(many))]
    assert expected
    for epoch in (0, 1):
        found = read(one, epoch)
        assert sorted(found) == sorted(expected)
    assert read(one, 0) != read(one, 1) or len(expected) < 5
    assert found == read(stream(many, FORMATS[form], 12), 1)  # by the index in the cache


def test_tags_of_a_list_of_corpora_come_before_those_of_each(many: Path) -> None:
    """Blocks are read at once, or line by line where one is unusual."""
    files = FORMATS["parallel"] | {"tag": "de"}
    section = replace(stream(many, files).reader.index.sections[0], outer=("all",))
    at_once = section.read(1, ReadingCounts()).sources
    assert at_once == ["<all> <de> source 1"]
    assert [one.source for one in section.pairs(1, ReadingCounts())] == at_once


@pytest.mark.parametrize("group", [7, 60])
def test_row_groups_of_parquet(
    many: Path, group: int, blocks_of_rows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(index_files, "GROUP", 20)
    rows = [json.loads(line) for line in (many / "a.jsonl").read_text().splitlines()]
    parquet.write_table(pyarrow.Table.from_pylist(rows), many / "a.parquet", row_group_size=group)
    one = stream(many, {"file": "a.parquet"}, 12)
    expected = [(p.source, p.target, p.line) for p in read_pairs(one.corpus, str(many))]
    assert sorted(read(one, 3)) == sorted(expected)
    assert bool(list((Path(os.environ["XDG_CACHE_HOME"]) / "transduce").glob("*.blocks"))) == (
        group == 60  # too large to be read for a few rows: copied
    )


def test_small_and_large_row_groups_of_one_corpus(
    many: Path, blocks_of_rows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(index_files, "GROUP", 20)
    rows = [{"source": f"source {n}", "target": f"{n}"} for n in range(60)]
    parquet.write_table(pyarrow.Table.from_pylist(rows[:30]), many / "1.parquet", row_group_size=7)
    parquet.write_table(pyarrow.Table.from_pylist(rows[30:]), many / "2.parquet", row_group_size=30)
    found = read(stream(many, {"file": ["1.parquet", "2.parquet"]}, 12), 0)
    assert sorted(int(target) for _, target, _ in found) == list(range(60))


def test_a_copy_in_the_cache_is_made_again_of_a_changed_file(many: Path) -> None:
    for text in ("a,b\n", "c,d\ne,f\n"):
        (many / "one.csv").write_text(text)
        found = read(stream(many, {"file": "one.csv"}, 12), 0)
        assert [f"{source},{target}" for source, target, _ in sorted(found)] == text.split()


def test_a_copy_that_is_gone_or_truncated_is_made_again(many: Path, own_cache: Path) -> None:
    expected = read(stream(many, FORMATS["csv"], 12), 0)
    (copy,) = own_cache.glob("*.blocks")
    for damage in (copy.unlink, lambda: copy.write_bytes(copy.read_bytes()[:-1])):
        damage()
        assert read(stream(many, FORMATS["csv"], 12), 0) == expected


def test_row_groups_of_parquet_may_be_empty(tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(f"pyarrow{name}") for name in ("", ".parquet"))
    table = pyarrow.table({"source": ["x", "y"], "target": ["X", "Y"]})
    with parquet.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for some in (table.slice(0, 0), table, table.slice(0, 0)):
            writer.write_table(some)
    assert parquet.ParquetFile(tmp_path / "a.parquet").num_row_groups == 3
    assert sorted(order(stream(tmp_path, {"file": "a.parquet"}), 0)) == ["X", "Y"]


def test_a_pool_comes_from_everywhere(tmp_path: Path) -> None:
    """Also of one sorted file: each pool has rows of all its tenths."""
    (tmp_path / "a.tsv").write_text("".join(f"x\t{n}\n" for n in range(10_000)))
    one = stream(tmp_path, {"file": "a.tsv"}, 1000)
    for pool, last in one.pools(0):
        if last:  # the rest
            continue
        tenths = Counter(int(line - 1) // 1000 for line in pool.lines)
        assert len(tenths) == 10
        assert max(tenths.values()) < 200


# -------------------------------------------------------------------- the same order, anywhere


def test_parts_of_a_pool_are_sent_in_few_bytes_and_joined_as_they_were() -> None:
    def part(targets: list[list[int]], lines: list[int]) -> Encoded:
        ids = np.array([one for row in targets for one in row], np.int32)
        offsets = np.cumsum([0, *map(len, targets)])
        some = np.array(lines, np.int64)
        return Encoded(ids[:0], np.zeros_like(offsets), ids, offsets, some, some - 1)

    parts = [
        part([[7, 8, 255], [], [9]], [1, 2, 3]),
        part([], []),
        part([[300, 1], [2]], [400, 2**40]),
        part([[70_000] * 300], [2**31 - 1]),
    ]
    sent = [narrowed(one) for one in parts]
    kinds = [sorted(str(values.dtype) for values in one.values()) for one in sent]
    assert kinds[0] == ["uint8"] * 6
    assert kinds[2] == ["uint16", "uint64", "uint64", *["uint8"] * 3]
    whole = joined(sent)
    assert [str(values.dtype) for values in vars(whole).values()] == [
        *("int32", "int64", "int32", "int64", "int64", "int64")
    ]
    rows = [one.target(row).tolist() for one in parts for row in range(len(one))]
    assert [whole.target(row).tolist() for row in range(len(whole))] == rows
    assert [whole.source(row).tolist() for row in range(len(whole))] == [[]] * 6
    assert whole.lines.tolist() == [1, 2, 3, 400, 2**40, 2**31 - 1]
    assert (whole.lines - whole.numbers).tolist() == [1] * 6


MIXED = {
    "of": [
        {"file": "a.tsv", "weight": 2.5},
        {"source": "a.en", "target": "a.de", "tag": "x"},
        {"file": "a.tsv.gz", "weight": 0.3},
    ]
}


def batches(many: Path, shard: RankShard | None = None, **keys: object) -> Batches:
    one = stream(many, MIXED, 24, 7, shard, temperature=2.0, **keys)
    return Batches(one, 300, 7)


def plan(of: Batches, updates: int) -> list[object]:
    """The rows of each update, and where it ends."""
    return taken(of.updates(6), updates)


def taken(updates: Iterator[RankBatches], count: int) -> list[object]:
    return [
        ([(b.lines, b.target_BT.tolist()) for b in one.batches], one.tokens, one.position)
        for one in islice(updates, count)
    ]


@pytest.mark.parametrize("count", [2, 3])
def test_any_number_of_ranks_has_the_same_updates(
    many: Path, blocks_of_rows: None, count: int
) -> None:
    """Threads stand for the processes."""
    alone = plan(batches(many), 12)
    assert alone[-1][2].epoch >= 1
    meeting, parts = Barrier(count, timeout=100), [b""] * count
    finished = Barrier(count, timeout=100)

    def share_of(rank: int) -> RankShard:
        def exchange(own: bytes) -> list[bytes]:
            parts[rank] = own
            meeting.wait()
            found = list(parts)
            meeting.wait()
            return found

        return RankShard(rank, count, exchange)

    def of_rank(rank: int) -> list[object]:
        updates = batches(many, share_of(rank)).updates(6, None, rank, count)
        try:
            found = taken(updates, 12)
            finished.wait()
            return found
        finally:
            meeting.abort()  # the others may be making pools ahead

    with ThreadPoolExecutor(count) as threads:
        shared = list(threads.map(of_rank, range(count)))
    for number, (whole, tokens, position) in enumerate(alone):
        for rank in range(count):
            assert shared[rank][number] == (whole[rank::count], tokens, position)


def begin(one: StreamingDataset) -> None:
    """Start worker processes, and wait for one."""
    one._executor()
    assert one._first_answer is not None
    one._first_answer.result()


def test_until_worker_processes_have_begun_all_is_read_here(
    many: Path, blocks_of_rows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that has loaded its libraries takes over, and nothing waits for it."""
    one, expected = batches(many, workers=2), plan(batches(many), 12)
    first, tasks = Future[None](), list[object]()

    class Workers(ThreadPoolExecutor):
        def submit(self, *task: Any, **more: Any) -> Future[Any]:
            tasks.append(task)
            return super().submit(*task, **more)

    monkeypatch.setattr(streaming_dataset, "_worker", [one.corpus.reader])
    monkeypatch.setattr(one.corpus, "_workers", Workers(2))
    monkeypatch.setattr(one.corpus, "_first_answer", first)
    updates = one.updates(6)
    assert taken(updates, 3) == expected[:3]
    assert not tasks
    first.set_result(None)
    assert taken(updates, 9) == expected[3:]
    assert tasks


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", some_slow(["threads", "processes"], ["threads"]))
def test_any_number_of_workers_has_the_same_updates(
    many: Path, blocks_of_rows: None, workers: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads stand for processes, which take seconds to start."""
    found = batches(many, workers=workers)
    if kind == "threads":
        monkeypatch.setattr(streaming_dataset, "_worker", [found.corpus.reader])
        monkeypatch.setattr(found.corpus, "_workers", ThreadPoolExecutor(workers))
    else:
        begin(found.corpus)
    assert plan(found, 12) == plan(batches(many), 12)
    assert found.corpus.report.counts.empty_source > 0


def test_resuming_at_every_update_goes_on_exactly(many: Path, blocks_of_rows: None) -> None:
    whole = list(islice(one_by_one(batches(many)), 45))
    assert whole[-1][1].epoch >= 1
    for stop in range(len(whole) - 2):
        kept = Position(**json.loads(json.dumps(asdict(whole[stop][1]))))
        fresh = one_by_one(batches(many), kept)
        for (batch, following), (again, after) in zip(whole[stop + 1 :][:2], fresh, strict=False):
            assert (batch.lines, following) == (again.lines, after)
            assert batch.target_BT.tolist() == again.target_BT.tolist()


def test_resuming_reads_no_block_of_earlier_pools(
    many: Path, blocks_of_rows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = stream(many, FORMATS["tsv"], 12)
    last = len(list(one.pools(0, 5))) - 1
    opened = []
    reading = CorpusIndex.read

    def counted(self: CorpusIndex, block: int, counts: object) -> object:
        opened.append(block)
        return reading(self, block, counts)

    monkeypatch.setattr(CorpusIndex, "read", counted)
    next(stream(many, FORMATS["tsv"], 12).pools(last - 1, 5))
    assert 0 < len(opened) <= 4
    assert last > 5


# ------------------------------------------------------------------------------ mixing corpora


def test_corpora_are_mixed_by_weight_each_with_its_own_position(
    tmp_path: Path, blocks_of_rows: None
) -> None:
    for name, rows in (("small", 20), ("large", 200)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"x\t{name}{n}\n" for n in range(rows)))
    parts = [{"file": "small.tsv", "weight": 3.0}, {"file": "large.tsv"}]
    one = stream(tmp_path, {"of": parts}, 8, temperature=1.0)  # blocks of two rows
    seen = [order(one, epoch) for epoch in range(13)]
    shares = [sum(text.startswith("small") for text in epoch) / len(epoch) for epoch in seen]
    assert shares == pytest.approx([60 / 260] * 13, abs=0.02)
    large = Counter(text for epoch in seen[:13] for text in epoch if text.startswith("large"))
    # 200 rows of 260 go to it at 169 an epoch: after 13 epochs each was read 10 or 11 times.
    assert set(large.values()) <= {10, 11, 12}
    assert len(large) == 200
    assert order(stream(tmp_path, {"of": parts}, 8, temperature=1.0), 9) == seen[9]


def test_part_of_a_corpus_is_from_everywhere_in_it(tmp_path: Path, blocks_of_rows: None) -> None:
    """And of two corpora of the same size, not the same rows."""
    for name in ("left", "right", "often"):
        (tmp_path / f"{name}.tsv").write_text("".join(f"x\t{name}{n}\n" for n in range(200)))
    parts = [{"file": "left.tsv"}, {"file": "right.tsv"}, {"file": "often.tsv", "weight": 2.0}]
    drawn = order(stream(tmp_path, {"of": parts}, 8, temperature=1.0), 0)
    left, right = (
        {int(text.removeprefix(name)) for text in drawn if text.startswith(name)}
        for name in ("left", "right")
    )
    assert 148 <= len(left) == len(right) <= 150
    assert left != right
    assert all(40 < sum(row < 100 for row in rows) < 110 for rows in (left, right))
    assert max(left) > 180
    assert max(right) > 180


# ----------------------------------------------------------------------- files that go wrong


def test_a_file_that_changes_while_it_is_read_is_one_sentence(
    many: Path, blocks_of_rows: None
) -> None:
    one = stream(many, FORMATS["tsv"], 12)
    pools = one.pools(0)
    next(pools)
    with (many / "a.tsv").open("a") as file:
        file.write("more\trows\n")
    with pytest.raises(DataError, match=r"a\.tsv has changed since this run began to read it"):
        list(pools)


def test_files_of_different_lengths_are_found_before_training(many: Path) -> None:
    (many / "a.de").write_text("one\ntwo\n")
    with pytest.raises(DataError, match=r"a\.en has 100 lines and a\.de has 2"):
        stream(many, FORMATS["parallel"]).open()
    (many / "a.en").write_text("one\n")
    with pytest.raises(DataError, match=r"a\.en has 1 line.? and a\.de has 2"):
        stream(many, FORMATS["parallel"]).open()


@pytest.mark.skipif(sys.platform == "win32", reason="processes are killed otherwise there")
@pytest.mark.slow
def test_a_worker_that_dies_is_one_sentence(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = stream(many, FORMATS["tsv"], 12, workers=1)
    begin(one)
    pools = one.pools(0)
    next(pools)
    for process in one._executor()._processes.values():
        process.kill()
    with pytest.raises(DataError, match="a worker process that reads the training data died"):
        list(pools)


@pytest.mark.slow
def test_worker_processes_start_side_by_side(many: Path, tmp_path: Path) -> None:
    """Python takes seconds to begin here; what workers are given is more than a pipe holds."""
    slow = tmp_path / "slow-python"
    slow.write_text(f'#!/bin/sh\nsleep 3\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    one = stream(many, MIXED, 24, 7, workers=3)
    one.reader.index.starts = np.zeros(100_000, np.int64)
    spawn.set_executable(str(slow))
    try:
        began = time.monotonic()
        answers = [one._executor().submit(os.getpid) for _ in range(3)]
        assert time.monotonic() - began < 5
        assert all(answer.result() != os.getpid() for answer in answers)
    finally:
        spawn.set_executable(sys.executable)
        one._end_workers()
