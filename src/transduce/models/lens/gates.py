"""Interventions: heads, sublayers, layers and source positions scaled, or switched off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self

from torch import nn

from transduce.errors import ModelError
from transduce.models.lens.attention import attentions
from transduce.models.lens.names import matches, short_name
from transduce.nn.attention.attention import Attention
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.attention.watchable import GATES, Watchable
from transduce.nn.gate import Gate


class Gates:
    """Scales parts of a network while it is entered.

        with Gates(network) as gates:
            gates.gate("decoder.2.cross", head=5, factor=0.0)
            network(source_BS, lengths_B, target_BT)

    Whatever calls the network's modules in this thread computes with the gates: teacher forcing,
    steps, search, scores, training; other threads do not. A gate that is set again replaces the one
    before; a factor of 1 takes it away.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._before: Mapping[int, Gate | None] = {}
        self._entered = False

    def __enter__(self) -> Self:
        self._before = GATES.get()
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()
        self._entered = False

    def clear(self) -> None:
        """Take all gates away that were set since it was entered."""
        GATES.set(self._before)

    def gate(
        self,
        pattern: str,
        *,
        head: int | None = None,
        position: int | None = None,
        factor: float = 0.0,
    ) -> None:
        """Multiply what the parts of this name compute by a factor.

        pattern: attention (`decoder.2.cross`), another sublayer (`encoder.0.feed_forward`), a layer
        (`decoder.2`: all its sublayers), or several (`decoder.*.cross`). head: this head alone, as
        if its columns of the output projection were multiplied. position: what attention reads at
        this position of the source, or of the target where it is the target's attention to itself.
        Without either it is all that a sublayer adds to the residual stream, bias included. Raises
        ModelError where there is no such part, head or position.
        """
        if not self._entered:
            raise ModelError("gates act inside `with`: enter the lens first")
        chosen = self._chosen(pattern, attention=head is not None or position is not None)
        for name, part in chosen.items():
            _check(name, part, head, position)
            gate = part.gate or Gate()
            if head is not None:
                gate = replace(gate, heads={**gate.heads, head: factor})
            if position is not None:
                gate = replace(gate, positions={**gate.positions, position: factor})
            if head is None and position is None:
                gate = replace(gate, output=factor)
            GATES.set({**GATES.get(), part.number: None if gate.is_open else gate})

    def _chosen(self, pattern: str, attention: bool) -> dict[str, Watchable]:
        there = gateable(self._network)
        if attention:
            there = {
                name: part for name, part in there.items() if name in attentions(self._network)
            }
        layers = {name: part for name, part in there.items() if matches(_layer(name), [pattern])}
        chosen = {name: part for name, part in there.items() if matches(name, [pattern])} or layers
        if not chosen:
            what = "attention part" if attention else "part"
            known = ", ".join(map(short_name, there)) or "none"
            raise ModelError(f"no {what} with a gate is called {pattern}; there are: {known}")
        return chosen


def gateable(network: nn.Module) -> dict[str, Watchable]:
    """The parts that a gate can be on, by name."""
    return {name: part for name, part in network.named_modules() if isinstance(part, Watchable)}


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _check(name: str, part: Watchable, head: int | None, position: int | None) -> None:
    if head is not None:
        assert isinstance(part, Attention | MultiHeadAttention)
        heads = part.heads if isinstance(part, MultiHeadAttention) else 1
        if not 0 <= head < heads:
            raise ModelError(f"{name} has the heads 0 to {heads - 1}, and none is {head}")
    if position is not None and position < 0:
        raise ModelError(f"positions count from 0: there is none that is {position}")
