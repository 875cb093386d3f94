"""Weights for use alone, in fewer bits and laid out as the CPU's matrix units read them.

bfloat16 halves what a product reads from memory and runs on AMX tiles; int8 quarters it: each row
of a weight has a scale of its own, each input one that is found as it comes.
"""

from __future__ import annotations

import platform
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

KINDS = ("bfloat16", "int8")


class QuantizedWeight:
    """A weight [F, D] that can be sliced by rows and multiplied with, nothing else."""

    def __init__(self, weight_FD: Tensor, kind: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind}.")
        self.kind = kind
        self._weight_FD = weight_FD.detach()
        self._slices: dict[tuple[int | None, int | None], QuantizedWeight] = {}
        self._packed: Any = None

    @property
    def shape(self) -> torch.Size:
        return self._weight_FD.shape

    def __getitem__(self, rows: slice) -> QuantizedWeight:
        place = (rows.start, rows.stop)
        if place not in self._slices:
            self._slices[place] = QuantizedWeight(self._weight_FD[rows], self.kind)
        return self._slices[place]

    def multiply(self, x_BTD: Tensor, bias_F: Tensor | None) -> Tensor:
        """x Wᵀ + b, in the type of x."""
        if self.kind == "int8":
            return self._multiply_int8(x_BTD, bias_F)
        if not has_bfloat16():
            return F.linear(x_BTD, self._weight_FD.to(x_BTD.dtype), bias_F)
        if self._packed is None:
            half_FD = self._weight_FD.bfloat16().contiguous()
            self._packed = torch.ops.mkldnn._reorder_linear_weight(half_FD, None)
        y_BTF: Tensor = torch.ops.mkldnn._linear_pointwise(
            x_BTD, self._packed, bias_F, "none", [], ""
        )
        return y_BTF

    def _multiply_int8(self, x_BTD: Tensor, bias_F: Tensor | None) -> Tensor:
        if self._packed is None:
            # x86's engine where there is one; the other takes the scales of rows as well.
            x86 = platform.machine().lower() in ("x86_64", "amd64")
            torch.backends.quantized.engine = "x86" if x86 else "qnnpack"
            weight_FD = self._weight_FD.float()
            scale_F = (weight_FD.abs().amax(dim=1) / 127).clamp(min=1e-12)
            zero_F = torch.zeros(len(scale_F), dtype=torch.int64)
            with warnings.catch_warnings():  # of the end of this, as long as nothing replaces it
                warnings.simplefilter("ignore", UserWarning)
                levels_FD = torch.quantize_per_channel(weight_FD, scale_F, zero_F, 0, torch.qint8)
            bias = None if bias_F is None else bias_F.detach().float()
            self._packed = torch.ops.quantized.linear_prepack(levels_FD, bias)
        y_BTF: Tensor = torch.ops.quantized.linear_dynamic(x_BTD, self._packed, False)
        return y_BTF


def has_bfloat16() -> bool:
    """Whether this CPU multiplies in bfloat16."""
    supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return supported
