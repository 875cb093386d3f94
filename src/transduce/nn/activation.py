"""Activation functions of feed-forward layers (ReLU, GELU, SwiGLU, ...), defined once for every
runtime.

A new one whose function every runtime has is one line in `ACTIVATIONS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Activation:
    """f(x); or, gated, f(gate) · value of the two halves of x (Shazeer 2020,
    https://arxiv.org/abs/2002.05202)."""

    function: str
    """Its name in torch.nn.functional; gelu_tanh is the approximation of GELU by tanh."""
    gated: bool = False

    def __call__(self, x_BTF: Tensor) -> Tensor:
        if not self.gated:
            return self._apply(x_BTF)
        gate_BTF, value_BTF = x_BTF.chunk(2, dim=-1)
        return self._apply(gate_BTF) * value_BTF

    def _apply(self, x_BTF: Tensor) -> Tensor:
        from torch.nn import functional

        if self.function == "gelu_tanh":
            return functional.gelu(x_BTF, approximate="tanh")
        activated_BTF: Tensor = getattr(functional, self.function)(x_BTF)
        return activated_BTF

    def columns(self, hidden: int) -> int:
        """Input width for an output of width `hidden`: twice as wide if gated."""
        return 2 * hidden if self.gated else hidden


ACTIVATIONS = {
    "relu": Activation("relu"),
    "gelu": Activation("gelu"),
    "gelu_tanh": Activation("gelu_tanh"),
    "silu": Activation("silu"),
    "swiglu": Activation("silu", gated=True),
    "geglu": Activation("gelu", gated=True),
    "geglu_tanh": Activation("gelu_tanh", gated=True),
}
