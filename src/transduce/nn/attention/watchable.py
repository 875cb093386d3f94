"""A part of a network that can be watched and gated, also while a copy of it does the work."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from transduce.nn.gate import Gate

Watch = Callable[[Tensor], None] | None


class Watchable(nn.Module):
    """Attention calls `watch`, where it is set, with the weights of every forward pass; what a
    part computes is multiplied by the factors of `gate`, where it is set."""

    def __init__(self) -> None:
        super().__init__()
        # In lists, so that a copy made for search can share them: see models/hooks.py.
        self.watching: list[Watch] = [None]
        self.gating: list[Gate | None] = [None]

    @property
    def watch(self) -> Watch:
        return self.watching[0]

    @watch.setter
    def watch(self, watch: Watch) -> None:
        self.watching[0] = watch

    @property
    def gate(self) -> Gate | None:
        return self.gating[0]

    @gate.setter
    def gate(self, gate: Gate | None) -> None:
        self.gating[0] = gate

    def gated(self, y: Tensor) -> Tensor:
        """What the part gives, through its gate."""
        gate = self.gating[0]
        return y if gate is None else gate.on_output(y)
