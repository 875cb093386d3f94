"""A streamed corpus: how well it is shuffled, how fast it is resumed and read, in how much memory.

    python benchmarks/stream_order.py [shuffle] [resume] [receive] [speed] [wait] [memory]

- shuffle: the batches of an epoch of 1,000,000 made-up pairs in one sorted file, by the code that
  trains, beside a shuffle buffer of as many pairs as a pool has, and a full shuffle.
- resume: seconds from nothing to the first batch in the middle of an epoch, of 1e6 to 1e9 pairs.
  The index is of that size and lies on the disk; all its blocks are the same lines of a small file,
  which are really read and tokenised.
- receive: pairs per second that the process that trains takes from worker processes and plans
  batches of, where workers have nothing to do but to send: what no number of them can exceed. By
  the clock, and by the seconds of that process, where other programs count little.
- speed: pairs per second that are read, tokenised and bucketed, with so many worker processes
  (--workers), without and with filters (all rules but the language, decided before); and seconds
  from nothing but the index to the first batch.
- wait: how long updates wait for their batches. What trains is made up: an update takes as long as
  its target tokens at --rate a second, 5 ms of it in Python, in which nothing else of that process
  runs, as calls to a GPU; then it sleeps. Of an epoch of 5 million pairs, and of epochs of 100,000,
  where the beginning of an epoch counts. The first batch is not counted; in the second half of the
  time, all worker processes have begun.
- memory: of each process, the peak (VmHWM) and the private memory at the end (Private of
  smaps_rollup), after 300,000 of 1, 10 and 100 million pairs were read for training, with two
  worker processes; of 1 and 10 million, also after a filter of duplicates has read all of them. The
  lines are short, and 50,000 of them are repeated. --written gives other numbers of pairs.

Made-up pairs are those of reading.py: 21 + 21 words, cut by a BPE of 8,000 tokens. Prints all and
writes what was asked for to benchmarks/results/stream_order.json, or to --json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from reading import made_up
from systems import metadata

from transduce import recipe
from transduce.data.batches.bucketing import Batches, Position, RankBatches, prefetched
from transduce.data.batches.streaming_dataset import (
    AHEAD,
    TASK,
    Arrays,
    Reader,
    StreamingDataset,
    narrowed,
)
from transduce.data.cache.tokenised import Encoded, PairEncoder, Report
from transduce.data.index.corpus import CorpusIndex, Section
from transduce.data.index.files import FileIndex
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.tokenizer import Tokens
from transduce.storage import read_tensors, write_tensors
from transduce.storage.positions import Version
from transduce.training.loop import TOKENS_AHEAD

RESULTS = Path(__file__).parent / "results" / "stream_order.json"
FILES = {"source": "source.txt", "target": "target.txt"}
BATCH = 4096  # tokens
MOST_SECONDS = 3  # of a round
UPDATE = 24_576  # tokens, of the part wait
LAUNCH = 0.005  # seconds of an update in Python


class Sizes(NamedTuple):
    """How much is measured."""

    distinct: int = 50_000
    """Pairs that are really made up; longer files repeat them."""
    shuffled: int = 1_000_000
    indexed: tuple[int, ...] = (10**6, 10**7, 10**8, 10**9)
    copies: int = 100
    """Of the file whose reading is timed: an epoch of 5 million pairs."""
    trained: float = 20
    """Seconds of updates, of the part wait."""
    written: tuple[int, ...] = (10**6, 10**7, 10**8)
    filtered: int = 10**7
    """No filter reads more pairs than that."""
    read: int = 300_000


QUICK = Sizes(500, 20_000, (10**6,), 2, 0.1, (1_000, 2_000), 1_000, 800)
RULES = {"min_length": 2, "length_ratio": 4, "copies": True}
FILTERS = {"": None, ", filtered": RULES}


def data_of(folder: Path, **keys: Any) -> recipe.Data:
    values = {"folder": str(folder), "train": FILES, "valid": FILES, "streaming": True, **keys}
    return recipe.Data.model_validate(values)


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


# --------------------------------------------------------------------------------------- shuffle


class MadeUpReader(Reader):
    """Rows with lengths but without a text: only their order counts."""

    def read(self, blocks: Any, first_number: int) -> tuple[Arrays, Report]:
        spans = [self.index.sections[0].files[0].span(block) for block in blocks]
        rows = np.concatenate([np.arange(one.line, one.line + one.lines) for one in spans]) - 1
        lengths = 1 + np.random.default_rng(1).poisson(28, 1 << 16)[rows % (1 << 16)]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ids = np.zeros(offsets[-1], np.int32)
        return narrowed(Encoded(ids, offsets, ids, offsets, rows + 1, rows)), Report()


def made_up_stream(pairs: int, pool: int, block: int) -> StreamingDataset:
    data = data_of(Path("nowhere"), shuffle_buffer=pool)
    tokens = Tokens.train(recipe.Tokens(level="byte"), [])
    stream = StreamingDataset(data.train, data, tokens, tokens)
    places = np.zeros(-(-pairs // block) + 1, np.int64)
    file = FileIndex("made up", Version(0, ""), pairs, places, block)
    index = CorpusIndex([Section((file,), data.train, None, (), (), 0)])  # type: ignore[arg-type]
    stream._reader = MadeUpReader(index, PairEncoder(data, tokens, tokens))
    stream._passes = [1.0]
    return stream


def batches_of(stream: StreamingDataset) -> list[NDArray[np.int64]]:
    """The rows of each batch of an epoch."""
    found = []
    for update in Batches(stream, BATCH).updates(1):
        found.append(np.array(update.batches[0].lines) - 1)
        if update.position.epoch:
            return found
    raise AssertionError("batches are endless")


def shuffle_buffer(pairs: int, size: int) -> NDArray[np.int64]:
    """The order that a shuffle buffer gives the rows of a sorted file."""
    random, waiting, found = np.random.default_rng(1), list(range(min(size, pairs))), []
    for row, place in zip(
        range(size, pairs), random.integers(size, size=max(pairs - size, 0)).tolist(), strict=True
    ):
        found.append(waiting[place])
        waiting[place] = row
    return np.array(found + random.permutation(waiting).tolist())


def quality(batches: list[NDArray[np.int64]]) -> dict[str, float]:
    """How far an order of a sorted file is from a full shuffle."""
    rows = np.concatenate(batches)
    number = np.empty(len(rows), np.int64)
    number[rows] = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    place = np.empty(len(rows), np.int64)
    place[rows] = np.arange(len(rows))
    hundredths = np.stack(
        [np.bincount(part * 100 // len(rows), minlength=100) for part in np.array_split(rows, 50)]
    )
    return {
        # Spearman's: of the place in the file and in the epoch.
        "rank_correlation": float(np.corrcoef(np.arange(len(rows)), place)[0, 1]),
        "neighbours_in_one_batch": float((number[1:] == number[:-1]).mean()),
        "neighbours_within_a_tenth": float((abs(np.diff(place)) < len(rows) / 10).mean()),
        # Of the file's hundredths, how many a fiftieth of the epoch has rows of.
        "hundredths_seen": float((hundredths > 0).sum(1).mean()),
    }


def measure_shuffle(pairs: int) -> dict[str, Any]:
    pool = recipe.Data.model_fields["shuffle_buffer"].default
    found: dict[str, Any] = {"pairs": pairs, "pool": pool}
    streams = {f"blocks of {pool // 256}": pool // 256, "blocks of 1,024": 1024}
    planned = {name: batches_of(made_up_stream(pairs, pool, n)) for name, n in streams.items()}
    count = len(next(iter(planned.values())))
    planned[f"shuffle buffer of {pool:,}"] = np.array_split(shuffle_buffer(pairs, pool), count)
    planned["full shuffle"] = np.array_split(np.random.default_rng(2).permutation(pairs), count)
    for name, batches in planned.items():
        assert sorted(np.concatenate(batches).tolist()) == list(range(pairs))
        found[name] = quality(batches)
        print(name, {key: round(value, 5) for key, value in found[name].items()}, flush=True)
    return found


# --------------------------------------------------------------------------------------- receive

_prepared: list[Arrays] = []
"""In a worker process, what it sends."""


def _prepare() -> None:
    rows, random = TASK * 256, np.random.default_rng(1)
    sides = []
    for _ in range(2):
        offsets = np.concatenate([[0], np.cumsum(1 + random.poisson(28, rows))])
        sides += [random.integers(5, 8000, offsets[-1]).astype(np.int32), offsets]
    _prepared.append(narrowed(Encoded(*sides, np.arange(rows) + 1, np.arange(rows))))


def _send() -> tuple[Arrays, Report]:
    return _prepared[0], Report()


class Senders(ProcessPoolExecutor):
    """Worker processes that answer every task at once."""

    def submit(self, _: Any, /, *task: Any, **more: Any) -> Future[Any]:
        return super().submit(_send)


def measure_receive(rounds: int, senders: int = 2) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"pairs_a_second": [], "pairs_a_second_of_the_processor": []}
    for number in range(rounds):
        stream = made_up_stream(10**8, 65_536, 256)
        stream._data = stream._data.model_copy(update={"workers": senders})
        stream._workers = Senders(senders, get_context("spawn"), _prepare)
        plans = Batches(stream, BATCH, number)._plans(Position())
        deque(islice(plans, 4), maxlen=0)  # until all processes have begun
        began, busy, read = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began < MOST_SECONDS:
            read += len(next(plans)[0])
        found["pairs_a_second"].append(read / (time.perf_counter() - began))
        found["pairs_a_second_of_the_processor"].append(read / (time.process_time() - busy))
        plans.close()  # type: ignore[attr-defined]
        stream._end_workers()
    print("receive:", {key: [f"{rate:,.0f} pairs/s" for rate in found[key]] for key in found})
    return found


# ----------------------------------------------------------------------- resume, speed, memory


def stretched(folder: Path, pairs: int, lines: int) -> None:
    """Make the indexes of two small files those of files of so many pairs: each block the same."""
    for path in (folder / "cache" / "transduce").glob("*.index.safetensors"):
        _, facts = read_tensors(path)
        facts = {**facts, "lines": pairs}
        offsets = np.zeros(-(-pairs // lines) + 1, np.int64)
        write_tensors(path, {"offsets": torch.from_numpy(offsets)}, facts)


def measure_resume(
    folder: Path, tokens: tuple[Tokens, Tokens], rounds: int, sizes: Sizes
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pairs in sizes.indexed:
        data = data_of(folder)
        block = data.shuffle_buffer // 256
        StreamingDataset(data.train, data, *tokens).open()
        stretched(folder, pairs, block)
        ordered, first = [], []
        for number in range(rounds):
            stream = StreamingDataset(data.train, data, *tokens, seed=number)
            pool = pairs // data.shuffle_buffer * 4 // 5
            began = time.perf_counter()
            stream.open()
            stream.order(3)
            ordered.append(time.perf_counter() - began)
            updates = Batches(stream, BATCH, number).updates(1, Position(3, pool, 5))
            next(updates)
            first.append(time.perf_counter() - began)
            updates.close()  # type: ignore[attr-defined]
            assert stream.rows == pairs
        size = sum(path.stat().st_size for path in cache_of(folder).glob("*.index.safetensors"))
        found[f"{pairs:.0e}"] = {"order": ordered, "first_batch": first, "index_bytes": size}
        print(f"{pairs:.0e}", found[f"{pairs:.0e}"], flush=True)
        for path in cache_of(folder).glob("*.index.safetensors"):
            path.unlink()
    return found


def cache_of(folder: Path) -> Path:
    return folder / "cache" / "transduce"


def rows_read(stream: StreamingDataset, pairs: int) -> None:
    read = 0
    for update in Batches(stream, BATCH).updates(1):
        read += len(update.batches[0])
        if read >= pairs:
            return


def wait_for_workers(stream: StreamingDataset) -> None:
    if stream._first_answer is not None:
        stream._first_answer.result()


def lengthened(folder: Path, copies: int) -> dict[str, str]:
    """The files with their lines repeated."""
    for name in FILES.values():
        text = (folder / name).read_bytes()
        with (folder / f"long-{name}").open("wb") as file:
            for _ in range(copies):
                file.write(text)
    return {side: f"long-{name}" for side, name in FILES.items()}


def measure_speed(
    folder: Path,
    tokens: tuple[Tokens, Tokens],
    asked: argparse.Namespace,
    copies: int,
    found: dict[str, Any],
) -> None:
    """Pools after the first, which also starts the processes."""
    files = lengthened(folder, copies)
    plain = data_of(folder, train=files)
    StreamingDataset(plain.train, plain, *tokens).open()
    for filtered, filters in FILTERS.items():
        if filters is not None and asked.without_filters:
            continue
        for count in asked.workers:
            data = data_of(folder, train=files, workers=count, filters=filters)
            kind = f"{count} workers{filtered}"
            stream = StreamingDataset(data.train, data, *tokens)
            decided = seconds_of(stream.open)
            rates, first = [], []
            for number in range(asked.rounds):
                stream = StreamingDataset(data.train, data, *tokens, seed=number)
                began = time.perf_counter()
                plans = Batches(stream, BATCH, number)._plans(Position())
                next(plans)
                first.append(time.perf_counter() - began)
                wait_for_workers(stream)
                deque(islice(plans, 2 * AHEAD), maxlen=0)  # what was read here meanwhile
                began, read = time.perf_counter(), 0
                for encoded, _, _ in plans:
                    read += len(encoded)
                    if time.perf_counter() - began > MOST_SECONDS:
                        break
                rates.append(read / (time.perf_counter() - began))
                plans.close()  # type: ignore[attr-defined]
                stream._end_workers()
            found[kind] = {"pairs_a_second": rates, "first_batch": first, "decided": decided}
            print(f"{kind}: {statistics.median(rates):,.0f} pairs/s", found[kind], flush=True)


def trained(updates: Iterator[RankBatches], rate: float, seconds: float) -> dict[str, float]:
    """Take updates as a GPU of so many target tokens a second would, and count what it waits."""
    next(updates)
    waits, later, tokens, pairs = [], [], 0, 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        asked = time.perf_counter()
        update = next(updates)
        got = time.perf_counter()
        waits.append(got - asked)
        if asked - began > seconds / 2:
            later.append(got - asked)
        tokens, pairs = tokens + update.tokens, pairs + len(update.batches[0])
        while time.perf_counter() - got < LAUNCH:
            pass
        time.sleep(max(0.0, got + update.tokens / rate - time.perf_counter()))
    took = time.perf_counter() - began
    return {
        "share_of_the_time": sum(waits) / took,
        "share_of_the_second_half": sum(later) / took * 2,
        "longest_seconds": max(waits),
        "tokens_a_second": tokens / took,
        "pairs_a_second": pairs / took,
    }


def measure_wait(
    folder: Path, tokens: tuple[Tokens, Tokens], asked: argparse.Namespace, sizes: Sizes
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for copies in (sizes.copies, 2):
        files = lengthened(folder, copies)
        plain = data_of(folder, train=files)
        StreamingDataset(plain.train, plain, *tokens).open()
        for count in asked.workers:
            data = data_of(folder, train=files, workers=count)
            kind = f"epochs of {copies * sizes.distinct:,} pairs, {count} workers"
            found[kind] = []
            for number in range(asked.rounds):
                stream = StreamingDataset(data.train, data, *tokens, seed=number)
                updates = prefetched(
                    Batches(stream, UPDATE, number).updates(1), TOKENS_AHEAD // UPDATE
                )
                found[kind].append(trained(updates, asked.rate, sizes.trained))
                updates.close()  # type: ignore[attr-defined]
                stream._end_workers()
            print(kind, found[kind], flush=True)
    return found


def measure_memory(folder: Path, sizes: Sizes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    distinct = min(sizes.distinct, *sizes.written)
    for side, name in FILES.items():
        lines = (f"{side} {number}\n" for number in range(distinct))
        (folder / name).write_text("".join(lines), "utf-8")
    for pairs in sizes.written:
        lengthened(folder, pairs // distinct)
        said = subprocess.run(
            [
                *(sys.executable, __file__, "--one", str(folder), "--read", str(sizes.read)),
                *(["--filtered"] if pairs <= sizes.filtered else []),
            ],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ,
        ).stdout
        found[f"{pairs:.0e}"] = json.loads(said)
        print(f"{pairs:.0e}", said.strip(), flush=True)
    return found


def memory_of(process: int) -> dict[str, int]:
    """Bytes: the peak of what was resident, and what is not shared with others, by /proc."""
    found = {"peak": 0, "private": 0}
    for line in Path(f"/proc/{process}/status").read_text("utf-8").splitlines():
        if line.startswith("VmHWM"):
            found["peak"] = int(line.split()[1]) * 1024
    for line in Path(f"/proc/{process}/smaps_rollup").read_text("utf-8").splitlines():
        if line.startswith("Private_"):
            found["private"] += int(line.split()[1]) * 1024
    return found


def one_reading(folder: Path, pairs: int, filtered: bool) -> None:
    """What `measure_memory` starts: print the memory of each process, and seconds."""
    files = {side: f"long-{name}" for side, name in FILES.items()}
    data = data_of(folder, train=files, workers=2, filters={"duplicates": True})
    tokens = Tokens.train(recipe.Tokens(level="byte"), [])
    size = sum((folder / name).stat().st_size for name in files.values())
    plain = data_of(folder, train=files)
    indexed = seconds_of(StreamingDataset(plain.train, plain, tokens, tokens).open)
    decided = None
    if filtered:
        decided = seconds_of(StreamingDataset(data.train, data, tokens, tokens).open)
    # The filter leaves little of repeated lines: memory is that of pools without it.
    stream = StreamingDataset(plain.train, plain.model_copy(update={"workers": 2}), tokens, tokens)
    stream.open()
    stream._executor()
    wait_for_workers(stream)
    rows_read(stream, pairs)
    workers = multiprocessing.active_children()
    found = {
        "trains": memory_of(os.getpid()),
        "workers": [memory_of(worker.pid) for worker in workers if worker.pid],
        "file_bytes": size,
        "index_seconds": indexed,
        "filter_seconds": decided,
    }
    print(json.dumps(found))
    stream._end_workers()


def parts() -> Iterator[str]:
    yield from ("shuffle", "resume", "receive", "speed", "wait", "memory")


def measure(
    wanted: list[str], sizes: Sizes, asked: argparse.Namespace, found: dict[str, Any]
) -> None:
    """Each part that is wanted, into `found`."""
    if "shuffle" in wanted:
        found["shuffle"] = measure_shuffle(sizes.shuffled)
    if "receive" in wanted:
        found["receive"] = measure_receive(asked.rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        if set(wanted) - {"shuffle", "receive"}:
            made_up(folder, sizes.distinct)
        if {"resume", "speed", "wait"} & set(wanted):
            tokens = train_tokens(data_of(folder))
        if "resume" in wanted:
            found["resume"] = measure_resume(folder, tokens, asked.rounds, sizes)
        if "speed" in wanted:
            found["speed"] = {}
            measure_speed(folder, tokens, asked, sizes.copies, found["speed"])
        if "wait" in wanted:
            found["wait"] = measure_wait(folder, tokens, asked, sizes)
        if "memory" in wanted:
            found["memory"] = found.get("memory", {}) | measure_memory(folder, sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*parts(), []])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--rate", type=float, default=1e6, help="target tokens a second, of wait")
    parser.add_argument("--without-filters", action="store_true", help="of the part speed")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="in sizes that say nothing")
    parser.add_argument("--written", type=int, nargs="*", help="pairs, of the part memory")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--filtered", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--read", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        one_reading(asked.one, asked.read, asked.filtered)
        return
    sizes = QUICK if asked.quick else Sizes()
    if asked.written:
        sizes = sizes._replace(written=tuple(asked.written))
    wanted = asked.parts or list(parts())
    results = asked.json
    found = json.loads(results.read_text("utf-8")) if results.is_file() else {}
    facts = metadata(torch.device("cpu"))
    found.setdefault("facts", {}).update(dict.fromkeys(wanted, facts))
    try:
        measure(wanted, sizes, asked, found)
    finally:  # also what was measured before Ctrl-C
        results.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
