"""Depthwise convolution: each column of a sequence by itself, along rows or packed sequences.

torch's kernels for it want sequences along the last axis, and take as long for the gradient of
the weight as a Conformer block for all its matrix products. On a GPU one Triton kernel reads the
states as they lie, and stops at the borders of packed sequences.
"""

from __future__ import annotations

import os
import platform
import threading
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.linear import column_sums, counters_of_sums
from transduce.nn.masks import Segments
from transduce.nn.triton import kernels

ROWS, COLUMNS = 32, 64  # of the tile of one program
SPLITS = 32  # programs among which the rows are divided for the gradient of the weight
ARM = platform.machine() in ("aarch64", "arm64")
_TURN = [threading.Lock()]
if hasattr(os, "register_at_fork"):  # while a thread of the parent has its turn, perhaps
    os.register_at_fork(after_in_child=lambda: _TURN.__setitem__(0, threading.Lock()))


class Borders(NamedTuple):
    """Of each position of a row of packed sequences: where its sequence begins, and ends."""

    start_S: Tensor
    end_S: Tensor

    @classmethod
    def of(cls, segments: Segments, S: int) -> Borders:
        offsets = segments.key_offsets
        sequence_S = segments.of_keys(S)
        return cls(offsets[sequence_S], offsets[sequence_S + 1])


class DepthwiseConvolution(nn.Conv1d):
    """A depthwise convolution, with `left` of its taps before the position that it is for.

    Several threads may call it at once. On ARM CPUs the kernel that torch 2.13 takes for it
    (oneDNN's, by the Arm Compute Library) gives wrong numbers while two threads are in it: there,
    one waits for the other.
    """

    def __init__(self, width: int, kernel: int, causal: bool = False) -> None:
        super().__init__(width, width, kernel, groups=width)
        self.left = kernel - 1 if causal else kernel // 2
        self.right = kernel - 1 - self.left

    def forward(self, x_BSD: Tensor, borders: Borders | None = None) -> Tensor:
        """x_BSD to the same shape, zeros around each sequence: rows, or what the borders say."""
        if _fused(x_BSD):
            y_BSD: Tensor = _Depthwise.apply(  # type: ignore[no-untyped-call]
                x_BSD, self.weight, self.bias, self.left, borders
            )
            return y_BSD
        if borders is not None:
            return self._packed(x_BSD, borders)
        if self.left == self.right:
            return self.valid(x_BSD, self.left)
        return self.valid(F.pad(x_BSD, (0, 0, self.left, self.right)))

    def valid(self, x_BSD: Tensor, around: int = 0) -> Tensor:
        """Without zeros around, or so many on either side: [B, S - kernel + 1 + 2 · around, D]."""
        how = {"padding": around, "groups": self.groups}
        if not ARM or x_BSD.device.type != "cpu":
            return F.conv1d(x_BSD.mT, self.weight, self.bias, **how).mT
        with _TURN[0]:
            return F.conv1d(x_BSD.mT, self.weight, self.bias, **how).mT

    def _packed(self, x_1SD: Tensor, borders: Borders) -> Tensor:
        S = x_1SD.shape[1]
        place_S = torch.arange(S, device=x_1SD.device)
        around_1SD = F.pad(x_1SD, (0, 0, self.left, self.right))
        assert self.bias is not None
        y_1SD = self.bias.expand_as(x_1SD)
        for tap, weight_D in enumerate(self.weight.squeeze(1).unbind(1)):
            other_S = place_S + tap - self.left
            inside_S1 = ((other_S >= borders.start_S) & (other_S < borders.end_S))[:, None]
            shifted_1SD = around_1SD[:, tap : tap + S]
            y_1SD = y_1SD + weight_D * shifted_1SD.masked_fill(~inside_S1, 0.0)
        return y_1SD.to(x_1SD.dtype)


def _fused(x_BSD: Tensor) -> bool:
    return x_BSD.is_cuda and x_BSD.dtype == torch.bfloat16 and torch.is_grad_enabled()


class _Depthwise(torch.autograd.Function):
    """bfloat16 to float32, which the norm that follows reads."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, left: int, borders: Borders | None
    ) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.left, ctx.borders = left, borders
        ctx.counters = counters_of_sums(weight.shape[0] * weight.shape[-1], x.device)
        y = torch.empty_like(x, dtype=torch.float32)
        _launch(x, weight, bias, left, borders, y, backward=False)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        left, borders = ctx.left, ctx.borders
        grad = gradients[0].contiguous()
        dx = torch.empty_like(x)
        _launch(grad, weight, weight, left, borders, dx, backward=True)
        width, taps = weight.shape[0], weight.shape[-1]
        rows = x.numel() // width
        shares = torch.empty(SPLITS, taps * width, device=x.device)
        kernels().depthwise_weight[(-(-width // COLUMNS), SPLITS, taps)](
            x,
            grad,
            *_starts_and_ends(x, borders),
            shares,
            rows,
            x.shape[-2],
            width,
            -(-rows // SPLITS),
            left,
            SEGMENTS=borders is not None,
            ROWS=ROWS,
            COLUMNS=COLUMNS,
        )
        dweight = column_sums(shares, ctx.counters).view(taps, width).t().reshape(weight.shape)
        dbias = column_sums(grad.view(rows, width), ctx.counters)
        return dx, dweight.to(weight.dtype), dbias, None, None


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    left: int,
    borders: Borders | None,
    y: Tensor,
    backward: bool,
) -> None:
    width = x.shape[-1]
    rows = x.numel() // width
    kernels().depthwise[(-(-rows // ROWS), -(-width // COLUMNS))](
        x,
        weight,
        bias,
        *_starts_and_ends(x, borders),
        y,
        rows,
        x.shape[-2],
        width,
        left,
        TAPS=weight.shape[-1],
        SEGMENTS=borders is not None,
        BACKWARD=backward,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
    )


def _starts_and_ends(x: Tensor, borders: Borders | None) -> tuple[Tensor, Tensor]:
    return (x, x) if borders is None else (borders.start_S, borders.end_S)
