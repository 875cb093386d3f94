"""Parts of a network that can be watched and gated, also while a copy of them does the work.

A gate is factors on what a part computes, to see what the part is worth: zero a head, half a
sublayer, hide a source position (Michel et al. 2019, https://arxiv.org/abs/1905.10650, and Voita
et al. 2019, https://arxiv.org/abs/1905.09418).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from torch import Tensor, nn


@dataclass(frozen=True)
class Gate:
    """Factors on a part; what is not named has the factor 1."""

    output: float = 1.0
    """Of all that the part computes, its bias included."""
    heads: Mapping[int, float] = field(default_factory=dict)
    """Of what a head of attention computes, before the output projection."""
    positions: Mapping[int, float] = field(default_factory=dict)
    """Of what attention reads at a position: a factor on its weight, after the softmax."""

    @property
    def is_open(self) -> bool:
        """Whether it changes nothing."""
        factors = (self.output, *self.heads.values(), *self.positions.values())
        return all(factor == 1.0 for factor in factors)

    def on_values(self, values_BHSK: Tensor) -> Tensor:
        """What is read, by position; Σ_s (g_s α_ts) v_s = Σ_s α_ts (g_s v_s)."""
        there = [place for place in self.positions if place < values_BHSK.shape[-2]]
        if not there:
            return values_BHSK
        factors_S1 = values_BHSK.new_ones(values_BHSK.shape[-2], 1)
        for place in there:
            factors_S1[place] = self.positions[place]
        return values_BHSK * factors_S1

    def on_heads(self, context_BHTK: Tensor) -> Tensor:
        """What the heads have gathered."""
        if not self.heads:
            return context_BHTK
        factors_H11 = context_BHTK.new_ones(context_BHTK.shape[1], 1, 1)
        for head, factor in self.heads.items():
            factors_H11[head] = factor
        return context_BHTK * factors_H11

    def on_output(self, y: Tensor) -> Tensor:
        """All that the part gives."""
        return y if self.output == 1.0 else y * self.output


Watch = Callable[[Tensor], None] | None

WATCHES: ContextVar[Mapping[int, Watch]] = ContextVar("watches", default={})  # noqa: B039
"""What lenses of this thread, or asyncio task, have put on parts, by `Watchable.number`."""
GATES: ContextVar[Mapping[int, Gate | None]] = ContextVar("gates", default={})  # noqa: B039
"""Likewise of gates. Neither mapping is ever changed: another takes its place."""


class Watchable(nn.Module):
    """Attention calls `watch`, where there is one, with the weights of every forward pass; what a
    part computes is multiplied by the factors of `gate`, where there is one.

    Lenses and gates that are entered act on what their own thread computes: see WATCHES and GATES.
    One that is set as an attribute acts on whoever calls the part.
    """

    def __init__(self) -> None:
        super().__init__()
        # In lists, so that a copy made for search can share them: see models/hooks.py.
        self.watching: list[Watch] = [None]
        self.gating: list[Gate | None] = [None]

    @property
    def number(self) -> int:
        """Tells it from other parts, but not from its copies."""
        return id(self.watching)

    @property
    def watch(self) -> Watch:
        watches = WATCHES.get()
        return watches.get(self.number, self.watching[0]) if watches else self.watching[0]

    @watch.setter
    def watch(self, watch: Watch) -> None:
        self.watching[0] = watch

    @property
    def gate(self) -> Gate | None:
        gates = GATES.get()
        return gates.get(self.number, self.gating[0]) if gates else self.gating[0]

    @gate.setter
    def gate(self, gate: Gate | None) -> None:
        self.gating[0] = gate

    def show(self, weights_BHTS: Tensor, watch: Watch = None) -> None:
        """Call whoever watches this call, or the part, with the weights."""
        for one in (watch, self.watch):
            if one is not None:
                one(weights_BHTS)

    def gated(self, y: Tensor) -> Tensor:
        """What the part gives, through its gate."""
        gate = self.gate
        return y if gate is None else gate.on_output(y)
