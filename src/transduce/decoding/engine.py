"""The interface of another inference engine, such as CTranslate2 or ONNX Runtime; see interop/."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from transduce.decoding.batch.decode import BatchDecoder, Request
from transduce.decoding.search.hypothesis import Hypothesis

Rows = Sequence[Sequence[int]]


class Engine(Protocol):
    """Decodes and scores in place of the network, which is then on the meta device."""

    name: str
    max_source_length: int
    max_target_length: int
    """The longest sequences, including END, that it has positions for."""
    at_once: int
    """The number of concurrent calls to `decode` that keep its workers busy."""

    def decode(self, task: BatchDecoder, requests: Sequence[Request]) -> list[list[Hypothesis]]:
        """As BatchDecoder.run. Raises ModelError for settings that the engine does not have."""

    def follow(self, task: BatchDecoder, request: Request) -> Iterator[int]:
        """As BatchDecoder.follow."""

    def log_probabilities(self, sources: Rows, targets: Rows) -> list[list[float]]:
        """The log-probability of each token of each target, END included."""
