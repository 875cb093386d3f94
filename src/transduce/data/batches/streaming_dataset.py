"""Streaming: a corpus larger than memory, read as needed with a shuffle buffer; ranks share the
work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import numpy as np
from safetensors.numpy import load, save

from transduce import recipe
from transduce.data.cache.tokenised import Encoded, Report, encode_pairs
from transduce.data.text.pairs import Pair, corpus_files, is_running, matched_files, read_pairs
from transduce.data.tokens.tokenizer import Tokens
from transduce.recipe import Corpus

DRAWS = 1024  # random numbers drawn at a time


@dataclass(frozen=True)
class RankShard:
    """Which part of each pool a rank tokenises, and how it gets the parts of the others."""

    rank: int = 0
    count: int = 1
    exchange: Callable[[bytes], list[bytes]] = lambda own: [own]


class StreamingDataset:
    """A corpus in pools of `data.shuffle_buffer` pairs, in a different order in every epoch.

    All ranks read all of the text, which costs little; each tokenises its part of a pool and gets
    the ids of the rest. So all have the same pools, and plan the same batches.
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
    ) -> None:
        self.corpus = corpus
        self.seed = seed
        self.report = Report()
        self._data = data
        self._shard = shard or RankShard()
        self._encode = partial(
            encode_pairs,
            data=data,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            aligned=aligned,
            running=is_running(corpus),
            copied=copied,
        )

    def pools(self, start: int, epoch: int = 0) -> Iterator[tuple[Encoded, bool]]:
        """Pools of an epoch from number `start` on, each with whether it is the last.

        Pools are counted before overlong pairs are skipped, so that earlier pools can be skipped
        without tokenising when resuming. Memory holds the pool in use, the one being made, and as
        many pairs as text. `numbers` count the pairs in the order in which they come.
        """
        size = self._data.shuffle_buffer
        self.report = Report()
        pairs = self._pairs(epoch)
        for _ in islice(pairs, start * size):
            pass
        ahead = list(islice(pairs, 1))
        number = start * size
        while ahead:
            encoded = self._pool(chain(ahead, islice(pairs, size - 1)), number)
            ahead = list(islice(pairs, 1))
            number += size
            yield encoded, not ahead

    def _pairs(self, epoch: int) -> Iterator[Pair]:
        """The pairs of an epoch, in an order that seed and epoch determine.

        Files are shuffled each time, and pairs go through a shuffle buffer of the size of a pool.
        Lines of running text stay in order, as a block spans several.
        """
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
        corpus = _files_shuffled(self.corpus, self._data.folder, random)
        pairs = read_pairs(corpus, self._data.folder, self.report.counts)
        return pairs if is_running(corpus) else _drawn(pairs, self._data.shuffle_buffer, random)

    def _pool(self, pairs: Iterator[Pair], number: int) -> Encoded:
        size, shard = self._data.shuffle_buffer, self._shard
        begin, end = (size * rank // shard.count for rank in (shard.rank, shard.rank + 1))
        own = self._encode(
            islice(pairs, begin, end), report=self.report, first_number=number + begin
        )
        if shard.count == 1:
            return own
        deque(pairs, maxlen=0)  # other ranks tokenise the rest of the pool
        return _joined([Encoded(**load(part)) for part in shard.exchange(save(vars(own)))])


def _files_shuffled(corpus: Corpus, folder: str | None, random: np.random.Generator) -> Corpus:
    """The same corpus with its files in another order; one with a limit keeps its first pairs."""
    changed: dict[str, object] = {}
    if corpus.limit is not None:
        return corpus
    if isinstance(corpus, recipe.Mixture):
        changed["of"] = [_files_shuffled(one, folder, random) for one in corpus.of]
    elif isinstance(corpus, recipe.ParallelFiles):
        matched = matched_files(corpus, folder)
        order = random.permutation(len(matched)).tolist()
        changed["source"] = [matched[place][0] for place in order]
        changed["target"] = [matched[place][1] for place in order]
    elif isinstance(corpus, recipe.Columns | recipe.Text):
        files = corpus_files(corpus, folder)
        key = "file" if isinstance(corpus, recipe.Columns) else "text"
        changed[key] = [files[place] for place in random.permutation(len(files)).tolist()]
    return corpus.model_copy(update=changed)


def _drawn(pairs: Iterator[Pair], size: int, random: np.random.Generator) -> Iterator[Pair]:
    """Shuffle buffer: each pair is drawn at random from `size` waiting ones."""
    waiting = list(islice(pairs, size))
    while some := list(islice(pairs, DRAWS)):
        places = random.integers(len(waiting), size=len(some)).tolist()
        for place, pair in zip(places, some, strict=True):
            yield waiting[place]
            waiting[place] = pair
    for place in random.permutation(len(waiting)).tolist():
        yield waiting[place]


def _joined(parts: list[Encoded]) -> Encoded:
    """Parts of a pool, concatenated."""

    def flat(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    def offsets(name: str) -> np.ndarray:
        lengths = [np.diff(getattr(part, name)) for part in parts]
        return np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)

    return Encoded(
        source_ids=flat("source_ids"),
        source_offsets=offsets("source_offsets"),
        target_ids=flat("target_ids"),
        target_offsets=offsets("target_offsets"),
        lines=flat("lines"),
        numbers=flat("numbers"),
    )
