"""Packed weights for inference on a CPU: float32, bfloat16 or int8, laid out for matrix units.

bfloat16 halves the memory traffic of a product and runs on AMX tiles; int8 quarters it. int8 is
dynamic quantization: each row of a weight has its own scale, and so has each row of the input, at
run time. Where the C library is not available, torch computes the same numbers, no faster than in
float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.nn.torch_private import (
    can_reorder,
    has_bfloat16_on_cpu,
    linear_pointwise,
    reorder_linear_weight,
)
from transduce.runtime.c_library import library
from transduce.runtime.product import Product

KINDS = ("float32", "bfloat16", "int8")
FEW = 4  # up to so many rows an unpacked float32 weight is faster than a packed one
EXACT = 1024  # terms that float32 adds exactly: 1024 x 127 x 127 < 2^24
MIN_DIVISOR = 1e-12  # smallest divisor
ROWS = 128  # of a weight that are quantized at a time

# x Wᵀ + b in the type of x, then optionally ReLU.
Multiply = Callable[[Tensor, bool], Tensor]


class PackedWeight:
    """A weight [F, D] and its bias, which can be sliced by rows and multiplied with, nothing else.

    Weights other than float32 stay as they are.
    """

    def __init__(
        self, weight_FD: Tensor, bias_F: Tensor | None, kind: str, rows: slice = slice(None)
    ) -> None:
        """rows: of the weight; bias_F is that of these rows."""
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind}.")
        self.kind = kind
        self._whole_FD, self._rows = weight_FD, rows
        self._bias_F = None if bias_F is None else bias_F.detach()
        self._slices: dict[tuple[int | None, int | None], PackedWeight] = {}
        self._multiply: Multiply | None = None

    @property
    def shape(self) -> torch.Size:
        rows, columns = self._whole_FD.shape
        return torch.Size((len(range(rows)[self._rows]), columns))

    @property
    def _weight_FD(self) -> Tensor:
        return self._whole_FD.detach()[self._rows]

    def __getitem__(self, rows: slice) -> PackedWeight:
        place = (rows.start, rows.stop)
        if place not in self._slices:
            bias_F = None if self._bias_F is None else self._bias_F[rows]
            within = range(len(self._whole_FD))[self._rows][rows]
            absolute = slice(within.start, within.stop)
            self._slices[place] = PackedWeight(self._whole_FD, bias_F, self.kind, absolute)
        return self._slices[place]

    def refer_to(self, weight_FD: Tensor) -> None:
        """Another tensor of the same values is the whole weight from now on: see unloaded.py."""
        self._whole_FD = weight_FD
        for part in self._slices.values():
            part.refer_to(weight_FD)

    def multiply(self, x_BTD: Tensor, relu: bool = False) -> Tensor:
        return (self._multiply or self.pack())(x_BTD, relu)

    def pack(self) -> Multiply:
        """Pack the weight, unless that is done already."""
        self._multiply = self._multiply or MAKERS[self.kind](self._weight_FD, self._bias_F)
        return self._multiply


def as_it_is(weight_FD: Tensor, bias_F: Tensor | None) -> Multiply:
    """An unpacked weight."""

    def multiply(x: Tensor, relu: bool) -> Tensor:
        y = F.linear(x, weight_FD, bias_F)
        return y.relu_() if relu else y

    return multiply


def reordered(weight_FD: Tensor, bias_F: Tensor | None) -> Multiply:
    """A weight in oneDNN's blocked layout, with ReLU fused into the product."""
    packed, product = reorder_linear_weight(weight_FD), linear_pointwise()

    def multiply(x: Tensor, relu: bool) -> Tensor:
        return product(x, packed, bias_F, "relu" if relu else "none", [], "")

    return multiply


def float32(weight_FD: Tensor, bias_F: Tensor | None) -> Multiply:
    """A float32 product by the C library where it is available, else by torch."""
    native = library() if weight_FD.dtype == torch.float32 else None
    if native is None:
        return float32_by_torch(weight_FD, bias_F)
    return Product.float32(native, weight_FD, bias_F)


def float32_by_torch(weight_FD: Tensor, bias_F: Tensor | None) -> Multiply:
    plain = as_it_is(weight_FD, bias_F)
    if weight_FD.dtype != torch.float32 or not can_reorder():
        return plain
    packed = reordered(weight_FD, bias_F)

    def multiply(x: Tensor, relu: bool) -> Tensor:
        few = x.numel() < FEW * x.shape[-1]
        return (plain if few else packed)(x, relu)

    return multiply


def bfloat16(weight_FD: Tensor, bias_F: Tensor | None) -> Multiply:
    bias_F = None if bias_F is None else bias_F.bfloat16()
    if has_bfloat16():
        return reordered(weight_FD.bfloat16(), bias_F)
    # On CPUs without bfloat16 instructions this is faster, with the same result.
    exact = float32_by_torch(
        weight_FD.bfloat16().float(), None if bias_F is None else bias_F.float()
    )

    def multiply(x: Tensor, relu: bool) -> Tensor:
        return exact(x.float(), relu).to(x.dtype)

    return multiply


def has_bfloat16() -> bool:
    """Whether this CPU has bfloat16 instructions."""
    return can_reorder() and has_bfloat16_on_cpu()


# ------------------------------------------------------------------------------------------ int8


def int8(weight_FD: Tensor, bias_F: Tensor | None) -> Multiply:
    """An int8 product by the C library where it is available, else by torch."""
    native = library()
    if native is None:
        return int8_by_torch(weight_FD, bias_F)
    return Product.int8(native, *quantize_weight(weight_FD), bias_F)


def int8_by_torch(weight_FD: Tensor, bias_F: Tensor | None) -> Multiply:
    """The same result as the C library, except for the rounding of the last sum.

    The int8 values are multiplied as float32, which is exact for their sums. torch's own int8
    engines scale all inputs of a batch together, so that a row depends on its neighbours, saturate
    on some CPUs, and are slower than this on others.
    """
    levels_FD, scale_F = quantize_weight(weight_FD)
    chunks_FC = [chunk_FC.float() for chunk_FC in torch.split(levels_FD, EXACT, dim=1)]
    bias_F = torch.zeros_like(scale_F) if bias_F is None else bias_F.float()

    def multiply(x: Tensor, relu: bool) -> Tensor:
        levels_BTD, scale_BT1 = quantize_rows(x)
        parts = zip(torch.split(levels_BTD, EXACT, dim=-1), chunks_FC, strict=True)
        first, *others = (F.linear(x_BTC, weight_FC) for x_BTC, weight_FC in parts)
        if others:  # integers: in float32 their sum could be too large to be exact
            first = torch.stack([part.int() for part in (first, *others)]).sum(dim=0).float()
        y = first * (scale_BT1 * scale_F) + bias_F
        return (y.relu_() if relu else y).to(x.dtype)

    return multiply


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row to integers from -127 to 127; returns them and the scales."""
    x = x.float()
    maximum = x.abs().amax(dim=-1, keepdim=True)
    # Rounds as the C library does: a true division, not a multiplication by the reciprocal, then
    # round to nearest of a product that is exact in float64.
    by = torch.where(maximum > 0, torch.full_like(maximum, 127) / maximum, 0.0)
    levels = (x.double() * by).round().float()
    return levels.nan_to_num_(nan=0.0), maximum / 127


def quantize_weight(weight_FD: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a weight to integers from -127 to 127; returns them and the scale of each row.

    Some rows at a time: in float32, a vocabulary's would take more memory than all weights in int8.
    """
    levels_FD = torch.empty(weight_FD.shape, dtype=torch.int8, device=weight_FD.device)
    scale_F = torch.empty(len(weight_FD), device=weight_FD.device)
    parts = (torch.split(each, ROWS) for each in (weight_FD, levels_FD, scale_F))
    for rows_RD, levels_RD, scale_R in zip(*parts, strict=True):
        rows_RD = rows_RD.float()
        scale_R.copy_((rows_RD.abs().amax(dim=1) / 127).clamp_(min=MIN_DIVISOR))
        levels_RD.copy_((rows_RD / scale_R[:, None]).round_())
    return levels_FD, scale_F


MAKERS: dict[str, Callable[[Tensor, Tensor | None], Multiply]] = {
    "float32": float32,
    "bfloat16": bfloat16,
    "int8": int8,
}
