"""What a model attended to while it ran: the weights of each output that was returned.

Search drops, copies and reorders its hypotheses, and on a CPU or a GPU works on packed copies that
have no weights to show. So it is left alone. Its outputs are then given to the network in one pass,
which computes the very weights that led to them; to look changes no output and slows no step.
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
"""By the name of an attention part: [heads, queries, keys]."""


@dataclass(frozen=True)
class Seen:
    """One output that a model returned, and what it attended to."""

    source: str
    output: Output
    weights: Weights


class RunLens:
    """Collects, while it is entered, what every `run` of a model attended to.

        with model.lens("decoder.*.cross_attention") as lens:
            model.run(sources, beam=5)
        lens[0].weights["decoder.blocks.0.cross_attention"]     # [heads, target, source]

    An entry for each output, source by source, in the order of the sources; of several hypotheses
    of one source (nbest) the best first. A source that nothing was written for has none.
    """

    def __init__(
        self, active: list[RunLens], names: Sequence[str], patterns: Sequence[str]
    ) -> None:
        """names: of all attention parts; `active` has the lenses that are entered."""
        chosen = patterns or ("*",)
        self.names = [n for n in names if any(fnmatchcase(n, pattern) for pattern in chosen)]
        if not self.names:
            there = f"has {', '.join(names)}" if names else "has none"
            raise ModelError(
                f"no attention part is called {' or '.join(chosen)}; the model {there}"
            )
        self.seen: list[Seen] = []
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

    def __getitem__(self, index: int) -> Seen:
        return self.seen[index]

    def __len__(self) -> int:
        return len(self.seen)

    def __iter__(self) -> Iterator[Seen]:
        return iter(self.seen)


def weights_by_part(
    network: nn.Module,
    names: Sequence[str],
    sizes: Sequence[int],
    call: Callable[[list[int]], object],
    extent: Callable[[str, int], tuple[int, int]],
) -> list[Weights]:
    """The weights of named parts, row by row, padding left out.

    sizes: what each row takes of WEIGHTS_AT_ONCE; `call` runs the network on the rows at some
    indices; `extent` says how many queries and keys of a part are a row's own.
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
