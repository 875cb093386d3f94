"""Residual connections: x + dropout(change), and the norm of the sum, in one fused kernel on a GPU.

Written out, these are several kernels that read and write the whole residual stream. On a GPU one
Triton kernel does it all: a sublayer's change is added where the next norm reads the stream. On a
CPU, and wherever that kernel does not apply, torch's own operations do the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.gradient_sums import GRADIENT_SUMS
from transduce.nn.linear import column_sums, counters_of_sums
from transduce.nn.pass_buffers import dropout_seed
from transduce.nn.triton import early, kernels

Tile = TypeVar("Tile", bound=tuple[int, ...])

WIDEST = 4096  # a row must fit into the registers of one program
# By the width up to which it holds (measured at 512): rows that a program handles at a time, and
# its warps; of the backward pass also the programs among which all rows are divided.
FORWARD = {256: (4, 2), 512: (2, 2), WIDEST: (4, 4)}
BACKWARD = {256: (4, 2, 528), 512: (2, 1, 1056), WIDEST: (4, 4, 528)}


class ResidualStream(NamedTuple):
    """The residual stream x + dropout(change), with the last change not added yet."""

    x_BTD: Tensor
    change_BTD: Tensor | None = None
    dropout: float = 0.0

    def settled(self) -> Tensor:
        """The sum."""
        if self.change_BTD is None:
            return self.x_BTD
        return self.x_BTD + dropped(self.change_BTD, self.dropout, training=True)


def normalise(norm: nn.Module, stream: Tensor | ResidualStream, half: bool) -> Tensor:
    """norm(x); with `half`, under autocast, in the type of the next matrix product."""
    return keep_and_normalise(norm, stream, half)[1]


def keep_and_normalise(
    norm: nn.Module, stream: Tensor | ResidualStream, half: bool
) -> tuple[Tensor, Tensor]:
    """x and norm(x) from one function, so that their two gradients are added in one kernel."""
    stream = stream if isinstance(stream, ResidualStream) else ResidualStream(stream)
    if not _fused(norm, stream):
        x_BTD = stream.settled()
        y_BTD = norm(x_BTD)
        if half and x_BTD.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            y_BTD = y_BTD.to(torch.get_autocast_dtype("cpu"))
        return x_BTD, y_BTD
    half = half and torch.is_autocast_enabled("cuda")
    drops = stream.change_BTD is not None and stream.dropout > 0
    seed = dropout_seed(stream.x_BTD.device) if drops else None
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    kept_BTD, y_BTD = _AddAndNormalise.apply(  # type: ignore[no-untyped-call]
        stream.x_BTD, stream.change_BTD, norm.weight, bias, norm.eps, half, seed, stream.dropout
    )
    return kept_BTD, y_BTD


def dropped(x: Tensor, dropout: float, training: bool) -> Tensor:
    """Dropout as torch's; on a CPU it needs a quarter of the random numbers."""
    if not training or dropout == 0.0 or x.device.type != "cpu":
        return F.dropout(x, dropout, training)
    y: Tensor = _Dropped.apply(x, dropout)  # type: ignore[no-untyped-call]
    return y


class _Dropped(torch.autograd.Function):
    """Each 64-bit random number decides for four elements, with the rate rounded to 1/65,536."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: float) -> Tensor:
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        minimum = min(round(dropout * 2**16), 2**16 - 1) - 2**15  # below 1: something must be kept
        kept = (words.view(torch.int16)[: x.numel()] >= minimum).view(x.shape)
        # The mask has x's type: a product with bool would convert it every time.
        share = kept.to(x.dtype).mul_(2**16 / (2**15 - minimum))
        ctx.save_for_backward(share)
        return x * share

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (share,) = ctx.saved_tensors
        return gradients[0] * share, None


def _fused(norm: nn.Module, stream: ResidualStream) -> bool:
    x_BTD, change_BTD, _ = stream
    if not x_BTD.is_cuda or not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return False
    if x_BTD.shape[-1] > WIDEST:
        return False
    if torch.is_autocast_enabled("cuda"):
        half = torch.get_autocast_dtype("cuda") == torch.bfloat16
        changed = change_BTD is None or change_BTD.dtype == torch.bfloat16
        return half and changed and x_BTD.dtype == torch.float32
    return not torch.is_grad_enabled() and x_BTD.dtype in (torch.bfloat16, torch.float32)


class _AddAndNormalise(torch.autograd.Function):
    """LayerNorm where there is a bias, RMSNorm where there is none."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        change: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        half: bool,
        seed: Tensor | None,
        dropout: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        x = x.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        summed = x if change is None else torch.empty_like(x)
        y = torch.empty_like(x, dtype=torch.bfloat16 if half else x.dtype)
        mean, spread = torch.empty(2, rows, device=x.device)
        tile = tile_of_rows(width)
        kernels().norm[(-(-rows // tile["ROWS"]),)](
            x,
            x if change is None else change.contiguous(),
            x if seed is None else seed,
            summed,
            weight,
            weight if bias is None else bias,
            y,
            mean,
            spread,
            rows,
            width,
            eps,
            dropout,
            ADDS=change is not None,
            DROPS=seed is not None,
            CENTRED=bias is not None,
            **early(x.device, learning=any(ctx.needs_input_grad)),
            **tile,
        )
        # The dropout mask is recomputed from the seed in the backward pass rather than stored.
        ctx.save_for_backward(summed, weight, mean, spread, seed)
        ctx.how = (change is not None, bias is not None, dropout)
        ctx.counters = counters_of_sums(3 * width, x.device)
        return summed.view_as(summed), y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        by_kept, by_y = gradients
        x, weight, mean, spread, seed = ctx.saved_tensors
        adds, centred, dropout = ctx.how
        width = x.shape[-1]
        rows = x.numel() // width
        at_once, warps, programs = _up_to(width, BACKWARD)
        programs = min(-(-rows // at_once), programs)
        dx = torch.empty_like(x)
        dchange = torch.empty_like(x, dtype=torch.bfloat16) if adds else None
        # Each program sums its own rows; few partial sums are left to add.
        shares = torch.empty(programs, 3, width, device=x.device)
        kernels().norm_backward[(programs,)](
            torch.zeros_like(x) if by_y is None else by_y.contiguous(),
            x if by_kept is None else by_kept.contiguous(),
            x,
            x if seed is None else seed,
            weight,
            mean,
            spread,
            dx,
            dx if dchange is None else dchange,
            shares,
            rows,
            programs,
            width,
            dropout,
            KEPT=by_kept is not None,
            ADDS=adds,
            DROPS=seed is not None,
            CENTRED=centred,
            ROWS=at_once,
            BLOCK=_block(width),
            num_warps=warps,
        )
        dweight, dbias, dchange_sums = column_sums(shares.view(programs, -1), ctx.counters).chunk(3)
        if dchange is not None:
            GRADIENT_SUMS.put(dchange, dchange_sums)
        return dx, dchange, dweight, dbias if centred else None, None, None, None, None


def tile_of_rows(width: int) -> dict[str, int]:
    """Tile sizes and warps of the kernel, for a given width."""
    rows, warps = _up_to(width, FORWARD)
    return {"ROWS": rows, "BLOCK": _block(width), "num_warps": warps}


def _up_to(width: int, tiles: Mapping[int, Tile]) -> Tile:
    return next(tile for widest, tile in tiles.items() if width <= widest)


def _block(width: int) -> int:
    """The power of two that a row of this width fits into."""
    return 1 << (width - 1).bit_length()
