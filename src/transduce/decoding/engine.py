"""What stands in for a network where another program does the work; see interop/."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from transduce.decoding.batch.decode import BatchDecoder, Request
from transduce.decoding.search.greedy import Hypothesis

Rows = Sequence[Sequence[int]]


class Engine(Protocol):
    """Decodes and scores; a Transducer that has one has a network of shapes without numbers."""

    name: str
    max_source_length: int
    target_room: int
    """The longest sequences, END counted, that it has positions for."""
    at_once: int
    """Calls to `decode` side by side, from threads, that keep its workers busy."""

    def decode(self, task: BatchDecoder, requests: Sequence[Request]) -> list[list[Hypothesis]]:
        """What BatchDecoder.run gives, as near as the engine can. Raises ModelError otherwise."""

    def follow(self, task: BatchDecoder, request: Request) -> Iterator[int]:
        """What BatchDecoder.follow gives."""

    def log_probabilities(self, sources: Rows, targets: Rows) -> list[list[float]]:
        """The log-probability of each token of each target, END included."""
