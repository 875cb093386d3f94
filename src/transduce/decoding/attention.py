"""Attention weights of the outputs of a run.

Search drops, copies and reorders hypotheses, and uses fused kernels and packed copies that compute
no attention weights. So the weights are computed afterwards, in one teacher-forced pass of the
network over the outputs. This changes no output and slows no step of search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from transduce.decoding.batch.decode import pack
from transduce.decoding.output import Output
from transduce.errors import ModelError
from transduce.models import Lens

WEIGHTS_AT_ONCE = 1 << 20  # of one head

Weights = dict[str, NDArray[np.float32]]
"""By the name of an attention module: [heads, queries, keys]."""


@dataclass(frozen=True)
class AttentionRecord:
    """One output of a model and its attention weights."""

    source: str
    output: Output
    weights: Weights


class RunLens:
    """Collects, while it is entered, the attention weights of every `run` of a model.

        with model.lens("decoder.*.cross_attention") as lens:
            model.run(sources, beam=5)
        lens[0].weights["decoder.blocks.0.cross_attention"]     # [heads, target, source]

    One record per output, in the order of the sources; for several hypotheses of one source
    (nbest) the best first. A source without an output has none.
    """

    def __init__(
        self, active: list[RunLens], names: Sequence[str], patterns: Sequence[str]
    ) -> None:
        """names: of all attention modules; `active`: the lenses that are entered."""
        chosen = patterns or ("*",)
        self.names = [n for n in names if any(fnmatchcase(n, pattern) for pattern in chosen)]
        if not self.names:
            there = f"has {', '.join(names)}" if names else "has none"
            raise ModelError(
                f"no attention module is called {' or '.join(chosen)}; the model {there}"
            )
        self.seen: list[AttentionRecord] = []
        self._active = active

    def __enter__(self) -> Self:
        self.seen.clear()
        self._active.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._active.remove(self)

    def __getitem__(self, index: int) -> AttentionRecord:
        return self.seen[index]

    def __len__(self) -> int:
        return len(self.seen)

    def __iter__(self) -> Iterator[AttentionRecord]:
        return iter(self.seen)


def weights_by_part(
    network: nn.Module,
    names: Sequence[str],
    sizes: Sequence[int],
    call: Callable[[list[int]], object],
    extent: Callable[[str, int], tuple[int, int]],
) -> list[Weights]:
    """The weights of named attention modules, row by row, without padding.

    sizes: the share of each row in WEIGHTS_AT_ONCE; `call` runs the network on the rows at some
    indices; `extent` gives the number of queries and keys of a module for a row.
    """
    found: list[Weights] = [{} for _ in sizes]
    for indices in pack(range(len(sizes)), sizes, WEIGHTS_AT_ONCE):
        with Lens(network, *names) as lens:
            call(indices)
        for name, weights_BHTS in lens.weights.items():
            numbers_BHTS = weights_BHTS.float().cpu().numpy()
            for row, index in enumerate(indices):
                queries, keys = extent(name, index)
                found[index][name] = numbers_BHTS[row, :, :queries, :keys].copy()
    return found
