"""Attention whose weights can be recorded, also while a packed copy of the module does the work."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Watch = Callable[[Tensor], None] | None


class Watchable(nn.Module):
    """`watch`, if set, is called with the attention weights of every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        # In a list, so that a copy made for search shares it: see models/hooks.py.
        self.watching: list[Watch] = [None]

    @property
    def watch(self) -> Watch:
        return self.watching[0]

    @watch.setter
    def watch(self, watch: Watch) -> None:
        self.watching[0] = watch
