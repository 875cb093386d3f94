"""Streaming: a corpus larger than memory, read by position and shuffled as a whole; ranks and
worker processes share the work.

An epoch is a permutation of the blocks of the corpus; consecutive blocks of it are a pool, whose
pairs are shuffled and bucketed together. Seed and epoch determine all of this, so a position is two
numbers, epoch and pool, and going on from one reads nothing that comes before it.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, pairwise
from multiprocessing import get_context, parent_process
from multiprocessing.queues import Queue
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from transduce import recipe
from transduce.data.batches.mixing import check_drawn, distinct_names, share_sentences, shares_of
from transduce.data.cache.tokenised import Encoded, PairEncoder, Report
from transduce.data.filters.rules import Dropped, PairRules, hashes_of, rules_of
from transduce.data.index.corpus import PLACES, CorpusIndex, index_stream
from transduce.data.index.files import Say, say_all
from transduce.data.index.filtered import (
    FilteredRows,
    Judged,
    find_filtered,
    make_filtered,
)
from transduce.data.text.pairs import PairColumns, ReadingCounts, corpus_name, is_running, resolved
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError
from transduce.recipe import Corpus, Mixture
from transduce.storage import default_cache_folder

TASK = 8  # blocks that a worker process reads and tokenises at a time
STREAMED = "streamed rows"
AHEAD = 3  # pools that worker processes are given at a time


Arrays = dict[str, NDArray[Any]]
"""Those of `Encoded`, as `narrowed` gives them."""


@dataclass(frozen=True)
class RankShard:
    """Which part of each pool a rank reads, and how it gets the parts of the others."""

    rank: int = 0
    count: int = 1
    exchange: Callable[[bytes], list[bytes]] = lambda own: [own]


@dataclass(frozen=True)
class Reader:
    """Reads and tokenises blocks; the same in this process and in a worker process."""

    index: CorpusIndex
    encode: PairEncoder
    filtered: FilteredRows | None = None

    def read(self, blocks: Sequence[int], first_number: int) -> tuple[Arrays, Report]:
        report = Report()
        self.index.fetch(blocks)
        found = [self._kept(block, report) for block in blocks]
        encoded = self.encode(PairColumns.joined(found), report, first_number)
        return narrowed(encoded), report

    def _kept(self, block: int, report: Report) -> PairColumns:
        pairs = self.index.read(block, report.counts)
        kept = None if self.filtered is None else self.filtered.kept(block, len(pairs))
        return pairs if kept is None else pairs.kept(kept)

    def judge(self, blocks: Sequence[int]) -> Judged:
        """Which pairs of some blocks are left out by rules, and the hashes to find repetitions."""
        assert self.rules is not None
        self.index.fetch(blocks)
        found, dropped = [], Dropped()
        for block in blocks:
            pairs = self.index.read(block, ReadingCounts())
            reasons = self.rules.reasons(pairs)
            dropped.add(reasons, pairs)
            twice = self.rules.filters.duplicates
            found.append((block, reasons, hashes_of(pairs) if twice else np.zeros(0, np.uint64)))
        return found, dropped

    @cached_property
    def rules(self) -> PairRules | None:
        return rules_of(self.encode.data)


class StreamingDataset:
    """A corpus in pools of up to `data.shuffle_buffer` pairs, in another order in every epoch.

    Each rank reads and tokenises its part of a pool and gets the ids of the rest. So all have the
    same pools, and plan the same batches.
    """

    def __init__(
        self,
        corpus: Corpus,
        data: recipe.Data,
        source_tokens: Tokens,
        target_tokens: Tokens,
        shard: RankShard | None = None,
        aligned: bool = False,
        seed: int = 1,
        copied: bool = False,
        cache_folder: Path | None = None,
    ) -> None:
        self.corpus = corpus
        self.seed = seed
        self.report = Report()
        """Of what was read of the epoch so far, by this rank."""
        self.whole_epoch: Report | None = None
        """Of the last epoch that was read from its beginning to its end, by this rank."""
        self._data = data
        self._shard = shard or RankShard()
        self._how = (source_tokens, target_tokens, aligned, is_running(corpus), copied)
        self._cache_folder = cache_folder
        self._reader: Reader | None = None
        self._workers: Executor | None = None
        self._first_answer: Future[Any] | None = None

    def open(self, say: Say = lambda sentence: None) -> None:
        """Index the corpus, or find its index in the cache; `say` takes sentences about it.

        Raises DataError where a file cannot be read.
        """
        cache = self._cache_folder or default_cache_folder()
        index = index_stream(self.corpus, self._data, cache, say)
        self._reader = Reader(index, PairEncoder(self._data, *self._how))
        if (rules := rules_of(self._data)) is not None:
            filtered, said, dropped = find_filtered(index, rules, cache)
            if dropped is None:
                say("data.filters: the training set is read once to see what is left out.")
                judged = chain.from_iterable(self._in_processes("judge", self._all_blocks(index)))
                dropped = make_filtered(filtered, said, judged, cache, say)
                self._end_workers()  # they do not know yet what is left out
            self._reader = replace(self._reader, filtered=filtered)
            dropped.check_some_left(rules)
            say_all(say, dropped.sentences(rules))
        self._passes = self._passes_of(index, say)

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            self.open()
        assert self._reader is not None
        return self._reader

    @property
    def rows(self) -> int:
        """The rows of the corpus, before any is skipped."""
        return int(self.reader.index.rows.sum())

    def _passes_of(self, index: CorpusIndex, say: Say) -> list[float]:
        """How often the blocks of each corpus of a list are read in an epoch. Shares are of pairs
        that filters keep, as in memory."""
        filtered = self.reader.filtered
        sizes = [
            int(index.rows[part.start : part.stop].sum())
            - (0 if filtered is None else filtered.dropped(part))
            for part in index.parts
        ]
        if not self._data.mixes:
            return [1.0] * len(sizes)
        corpus, _ = resolved(self.corpus, self._data.folder)
        limited = self.corpus.limit is not None or corpus.limit is not None
        if not isinstance(corpus, Mixture) or limited or is_running(corpus):
            raise DataError(
                f"weights and data.temperature are for a list of corpora of pairs, without a limit "
                f"of the whole list, but {corpus_name(self.corpus)} is streamed as one; leave them "
                f"out"
            )
        names, weights = distinct_names(corpus.of), [one.weight for one in corpus.of]
        check_drawn(names, sizes)
        shares = shares_of(sizes, weights, self._data.temperature)
        say_all(say, share_sentences(names, sizes, shares))
        return [share * sum(sizes) / size for share, size in zip(shares, sizes, strict=True)]

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The blocks of an epoch, in an order that seed and epoch determine.

        Blocks of running text stay in order within their files, as what is cut from them spans
        several lines.
        """
        index = self.reader.index
        random = _random(self.seed, epoch)
        if self.reader.encode.running:
            files = random.permutation(len(index.sections)).tolist()
            spans = [np.arange(*index.starts[file : file + 2]) for file in files]
            return np.concatenate(spans)
        drawn = [
            self._drawn(np.arange(blocks.start, blocks.stop), passes, part, epoch)
            for part, (blocks, passes) in enumerate(zip(index.parts, self._passes, strict=True))
        ]
        return random.permutation(np.concatenate(drawn))

    def _drawn(
        self, blocks: NDArray[np.int64], passes: float, part: int, epoch: int
    ) -> NDArray[np.int64]:
        """The blocks that an epoch reads of one corpus, which it passes through so many times.

        An epoch goes on in each corpus where the one before has stopped: no block is read again
        before all others were. Each pass has a permutation of its own.
        """
        begin, end = (int(number * passes * len(blocks)) for number in (epoch, epoch + 1))
        found = [np.zeros(0, np.int64)]
        while begin < end:
            number, start = divmod(begin, len(blocks))
            stop = min(len(blocks), start + end - begin)
            order = blocks
            if stop - start < len(blocks):
                order = _random(self.seed, number, part, 1).permutation(blocks)
            found.append(order[start:stop])
            begin += stop - start
        return np.concatenate(found)

    def pools(self, start: int, epoch: int = 0) -> Iterator[tuple[Encoded, bool]]:
        """Pools of an epoch from number `start` on, each with whether it is the last.

        Pools are counted before overlong pairs are skipped. Memory holds the pool in use and those
        being made. `numbers` count the rows in the order in which they come.
        """
        order = self.order(epoch)
        firsts = np.concatenate([[0], np.cumsum(self.reader.index.rows[order])])
        bounds = list(pairwise(_bounds(firsts, self._data.shuffle_buffer)))
        self.report = Report()
        tasks = (self._tasks(order, firsts, *pool) for pool in bounds[start:])
        for number, parts in enumerate(self._in_processes("read", tasks), start=start + 1):
            for _, report in parts:
                self.report.add(report)
            own = joined([part for part, _ in parts])
            last = number == len(bounds)
            if last and not start:
                self.whole_epoch = self.report
            yield self._exchanged(own), last

    def _tasks(
        self, order: NDArray[np.int64], firsts: NDArray[np.int64], begin: int, end: int
    ) -> list[tuple[list[int], int]]:
        """What this rank reads of a pool: some blocks at a time, and the number of their first
        row."""
        shard = self._shard
        first, last = (
            begin + (end - begin) * rank // shard.count for rank in (shard.rank, shard.rank + 1)
        )
        places = range(first, last, TASK)
        return [(order[at : min(at + TASK, last)].tolist(), int(firsts[at])) for at in places]

    def _all_blocks(self, index: CorpusIndex) -> Iterator[list[tuple[list[int]]]]:
        """All blocks in their order, as tasks for several processes at a time."""
        starts = range(0, len(index.rows), TASK)
        tasks = (list(range(at, min(at + TASK, len(index.rows)))) for at in starts)
        while some := [(task,) for task in islice(tasks, PLACES // TASK)]:
            yield some

    def _in_processes(self, what: str, pools: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
        """What a method of the reader gives for the tasks of each pool, here or in worker
        processes; the result is the same."""
        here_does = getattr(self.reader, what)
        waiting: deque[list[Future[Any]]] = deque()
        try:
            for tasks in pools:
                if not self._data.workers or not self._workers_have_begun():
                    yield [here_does(*task) for task in tasks]
                    continue
                waiting.append([self._executor().submit(_do_there, what, *task) for task in tasks])
                if len(waiting) == AHEAD:
                    yield [task.result() for task in waiting.popleft()]
            while waiting:
                yield [task.result() for task in waiting.popleft()]
        except BrokenProcessPool:
            self._workers = self._first_answer = None
            raise DataError(
                "a worker process that reads the training data died, perhaps for lack of memory; "
                "set fewer data.workers, or 0"
            ) from None
        finally:
            for task in chain.from_iterable(waiting):
                task.cancel()

    def _executor(self) -> Executor:
        if self._workers is None:
            # Not forked: threads of torch and of the tokenizers do not survive that.
            spawned = get_context("spawn")
            source, target, *how = self._how
            texts = (source.to_json(), None if target is source else target.to_json())
            given = (self.reader.index, self._data, texts, how, self.reader.filtered)
            # By a queue: as arguments, each process would be waited for until it has loaded its
            # libraries, one after the other.
            queue = spawned.Queue()
            queue.cancel_join_thread()  # there may be more than processes that start
            for _ in range(self._data.workers):
                queue.put(given)
            self._workers = ProcessPoolExecutor(
                self._data.workers,
                mp_context=spawned,
                initializer=_begin_worker,
                initargs=(queue,),
            )
            self._first_answer = self._workers.submit(_answer)
        return self._workers

    def _workers_have_begun(self) -> bool:
        """Whether one has loaded its libraries, which takes seconds: until then, pools are read
        here. Raises BrokenProcessPool."""
        self._executor()
        answer = self._first_answer
        if answer is None or not answer.done():
            return answer is None
        return answer.result() is None

    def _end_workers(self) -> None:
        if self._workers is not None:
            self._workers.shutdown()
            self._workers = self._first_answer = None

    def _exchanged(self, own: Encoded) -> Encoded:
        if self._shard.count == 1:
            return own
        return joined([load(part) for part in self._shard.exchange(save(narrowed(own)))])


_worker: list[Reader] = []
"""In a worker process, what it reads with."""


def _begin_worker(queue: Queue[Any]) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker is one core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that trains
    Thread(target=_end_with_parent, daemon=True).start()
    index, data, texts, how, filtered = queue.get()
    source_tokens = Tokens.from_json(texts[0])
    target_tokens = source_tokens if texts[1] is None else Tokens.from_json(texts[1])
    encode = PairEncoder(data, source_tokens, target_tokens, *how)
    _worker.append(Reader(index, encode, filtered))


def _end_with_parent() -> None:
    """A worker would wait for ever for tasks of a process that was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _answer() -> None:
    """What a worker process does first."""


def _do_there(what: str, *task: Any) -> Any:
    return getattr(_worker[0], what)(*task)


def _random(*entropy: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def _bounds(firsts: NDArray[np.int64], size: int) -> list[int]:
    """Where pools begin in the order of blocks: each of as many whole blocks as fit, or of one."""
    found, count = [0], len(firsts) - 1
    while found[-1] < count:
        fits = int(np.searchsorted(firsts, firsts[found[-1]] + size, side="right")) - 1
        found.append(max(fits, found[-1] + 1))
    return found


OFFSETS = ("source_offsets", "target_offsets")


def narrowed(encoded: Encoded) -> Arrays:
    """A part of a pool in few bytes, for another process: lengths in place of offsets, and of each
    array the smallest integers that can hold it."""
    arrays = dict(vars(encoded))
    arrays |= {name: np.diff(arrays[name]) for name in OFFSETS}
    return {
        name: values.astype(np.min_scalar_type(values.max(initial=0)))
        for name, values in arrays.items()
    }


def joined(parts: Sequence[Arrays]) -> Encoded:
    """Parts of a pool, concatenated."""

    def flat(name: str) -> NDArray[Any]:
        kind = np.int32 if name.endswith("_ids") else np.int64
        values = [np.zeros(int(name in OFFSETS), kind), *(part[name] for part in parts)]
        return np.concatenate(values, dtype=kind, casting="unsafe")

    arrays = {name: flat(name) for name in Encoded.__dataclass_fields__ if name != "whole"}
    for name in OFFSETS:
        np.cumsum(arrays[name], out=arrays[name])
    return Encoded(**arrays)
