"""Continuous batching: what sentences need to take slots, and the sizes and settings of slots.

Each sentence in a slot is at a step of its own, so others enter while it goes on: with CUDA graphs
(cuda/slots.py), or in C on a CPU (cpu/slots.py).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from transduce.decoding.search.beam import finished_at_most
from transduce.models import EncoderDecoder
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.positions import Learned


@dataclass(frozen=True)
class Job:
    """A source and the maximum length of its output, including END."""

    source: Sequence[int]
    limit: int


@dataclass(frozen=True)
class Shape:
    """The shape of a pool of slots: sentences, hypotheses of each, lengths."""

    slots: int
    beam: int
    source: int
    target: int
    nbest: int = 1
    length_penalty: float = 1.0
    least: int = 0
    most: int | None = None
    """Finished hypotheses after which beam search stops; None: not by their number."""


@dataclass(frozen=True)
class Search:
    """Settings of a search by slots."""

    beam: int = 1
    nbest: int = 1
    length_penalty: float = 1.0
    least: int = 0
    """The minimum length, END included."""
    patience: float | None = None


def shape_of(settings: Search, slots: int, size: tuple[int, int]) -> Shape:
    """The shape of a pool for these settings. size: lengths of source and target."""
    rows = max(settings.beam, settings.nbest)
    ended = None if rows == 1 else finished_at_most(settings.patience, rows, settings.nbest)
    shape = (slots, rows, *size, settings.nbest, settings.length_penalty, settings.least)
    return Shape(*shape, ended)


class SlotSizes:
    """The lengths of source and target of the slots that jobs of a network take."""

    def __init__(self, network: EncoderDecoder) -> None:
        self._most = (positions_of(network.front), positions_of(network.decoder.embedding))

    def of(self, job: Job) -> tuple[int, int]:
        source, target = self._most
        return round_up(len(job.source) + 1, source), round_up(job.limit, target)

    def limited(self, size: tuple[int, int]) -> tuple[int, int]:
        """The same where there are as many positions."""
        return min(size[0], self._most[0]), min(size[1], self._most[1])


def round_up(length: int, most: int) -> int:
    """Round a length up to a power of two from 32 on, at most `most`, so that pools are reused."""
    return min(max(32, 1 << (length - 1).bit_length()), most)


def positions_of(embedding: TokenEmbedding) -> int:
    """The number of learned positions; other kinds have no limit."""
    table = None if embedding.positions is None else embedding.positions.positions
    return table.max_length if isinstance(table, Learned) else sys.maxsize
