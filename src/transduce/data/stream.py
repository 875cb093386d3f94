"""A corpus read as it is needed, for what memory cannot hold; several processes share the work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import numpy as np
from safetensors.numpy import load, save

from transduce import recipe
from transduce.data.cache import Encoded, Report, encode_pairs
from transduce.data.corpus import Pair, is_running, read_pairs
from transduce.data.tokens import Tokens
from transduce.recipe import Corpus


@dataclass(frozen=True)
class Share:
    """Which part of each pool a process tokenises, and how it gets the others' parts."""

    rank: int = 0
    count: int = 1
    exchange: Callable[[bytes], list[bytes]] = lambda own: [own]


class Stream:
    """A corpus in pools of `data.pool` pairs.

    All processes read all of the text, which costs little; each tokenises its part of a pool and
    gets the ids of the rest. So all have the same pools, and plan the same batches.
    """

    def __init__(
        self,
        corpus: Corpus,
        data: recipe.Data,
        source_tokens: Tokens,
        target_tokens: Tokens,
        share: Share | None = None,
        aligned: bool = False,
    ) -> None:
        self.corpus = corpus
        self.report = Report()
        self._data = data
        self._share = share or Share()
        self._encode = partial(
            encode_pairs,
            data=data,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            aligned=aligned,
            running=is_running(corpus),
        )

    def pools(self, start: int) -> Iterator[tuple[Encoded, bool]]:
        """Pools from number `start` on, each with whether it is the corpus's last.

        A pool is counted before overlong pairs are skipped, so that earlier pools are passed over
        without tokenising them. Memory holds the pool in use and the one being made.
        """
        size = self._data.pool
        self.report = Report()
        pairs = read_pairs(self.corpus, self._data.folder, self.report.tally)
        for _ in islice(pairs, start * size):
            pass
        ahead = list(islice(pairs, 1))
        number = start * size
        while ahead:
            encoded = self._pool(chain(ahead, islice(pairs, size - 1)), number)
            ahead = list(islice(pairs, 1))
            number += size
            yield encoded, not ahead

    def _pool(self, pairs: Iterator[Pair], number: int) -> Encoded:
        size, share = self._data.pool, self._share
        begin, end = (size * rank // share.count for rank in (share.rank, share.rank + 1))
        own = self._encode(
            islice(pairs, begin, end), report=self.report, first_number=number + begin
        )
        if share.count == 1:
            return own
        deque(pairs, maxlen=0)  # the rest of the pool is the others'
        return _joined([Encoded(**load(part)) for part in share.exchange(save(vars(own)))])


def _joined(parts: list[Encoded]) -> Encoded:
    """Parts of a pool, one after the other."""

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
