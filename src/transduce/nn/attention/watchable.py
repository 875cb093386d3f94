"""A part of a network that can be watched and gated, also while a copy of it does the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar

from torch import Tensor, nn

from transduce.nn.gate import Gate

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
