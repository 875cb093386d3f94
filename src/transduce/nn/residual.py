"""Norm and dropped sum, the two small steps around every sublayer, each in one kernel on a GPU.

Written out, each is several kernels that read and write the whole residual stream. On a CPU, and
wherever these kernels do not apply, torch's own do the work.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.kernels import kernels

PART = 1024
WIDEST = 4096  # a row must fit into the registers of one program


def normalise(norm: nn.Module, x_BTD: Tensor, half: bool) -> Tensor:
    """norm(x); with `half`, under autocast, in the type that the next product takes."""
    return keep_and_normalise(norm, x_BTD, half)[1]


def keep_and_normalise(norm: nn.Module, x_BTD: Tensor, half: bool) -> tuple[Tensor, Tensor]:
    """x and norm(x), from one place, so that the gradients of the two are added in one kernel."""
    if not _fused(x_BTD) or not isinstance(norm, nn.LayerNorm):
        y_BTD = norm(x_BTD)
        if half and x_BTD.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            y_BTD = y_BTD.to(torch.get_autocast_dtype("cpu"))
        return x_BTD, y_BTD
    half = half and torch.get_autocast_dtype("cuda") == torch.bfloat16
    kept_BTD, y_BTD = _LayerNorm.apply(  # type: ignore[no-untyped-call]
        x_BTD, norm.weight, norm.bias, norm.eps, half
    )
    return kept_BTD, y_BTD


def add_dropped(x_BTD: Tensor, change_BTD: Tensor, dropout: float, training: bool) -> Tensor:
    """x + dropout(change)."""
    drops = training and dropout > 0
    if not _fused(x_BTD) or change_BTD.dtype != torch.bfloat16 or not drops:
        return x_BTD + dropped(change_BTD, dropout, training)
    # Drawn by torch, so that its generator's state is all there is to keep.
    seed = torch.randint(2**31, (1,), device=x_BTD.device)
    summed_BTD: Tensor = _AddDropped.apply(x_BTD, change_BTD, seed, dropout)  # type: ignore[no-untyped-call]
    return summed_BTD


def dropped(x: Tensor, dropout: float, training: bool) -> Tensor:
    """Dropout as torch's, on a CPU from a quarter of the random numbers."""
    if not training or dropout == 0.0 or x.device.type != "cpu":
        return F.dropout(x, dropout, training)
    y: Tensor = _Dropped.apply(x, dropout)  # type: ignore[no-untyped-call]
    return y


class _Dropped(torch.autograd.Function):
    """Each 64-bit number decides for four places, a share of 1/65,536 more or less."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: float) -> Tensor:
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        least = round(dropout * 2**16) - 2**15
        kept = (words.view(torch.int16)[: x.numel()] >= least).view(x.shape)
        # In x's own type: a product with truth values would turn them into numbers every time.
        share = kept.to(x.dtype).mul_(2**16 / (2**15 - least))
        ctx.save_for_backward(share)
        return x * share

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (share,) = ctx.saved_tensors
        return gradients[0] * share, None


def _fused(x_BTD: Tensor) -> bool:
    return (
        x_BTD.is_cuda
        and x_BTD.dtype == torch.float32
        and x_BTD.shape[-1] <= WIDEST
        and torch.is_autocast_enabled("cuda")
    )


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, half: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        x = x.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        y = torch.empty_like(x, dtype=torch.bfloat16 if half else x.dtype)
        mean, spread = x.new_empty(rows), x.new_empty(rows)
        kernels().norm[(rows,)](
            x, weight, bias, y, mean, spread, width, eps, BLOCK=_power_of_2(width), num_warps=4
        )
        ctx.save_for_backward(x, weight, mean, spread)
        return x.view_as(x), y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        by_kept, by_y = gradients
        x, weight, mean, spread = ctx.saved_tensors
        if by_y is None:
            return by_kept, None, None, None, None
        width = x.shape[-1]
        rows = x.numel() // width
        programs = min(rows, 1024)
        dx = torch.empty_like(x)
        # Each program adds up its own rows' share; few enough are left to sum.
        shares = x.new_empty(2, programs, width)
        kernels().norm_backward[(programs,)](
            by_y.contiguous(),
            x if by_kept is None else by_kept.contiguous(),
            x,
            weight,
            mean,
            spread,
            dx,
            shares[0],
            shares[1],
            rows,
            programs,
            width,
            KEPT=by_kept is not None,
            BLOCK=_power_of_2(width),
            num_warps=4,
        )
        dweight, dbias = shares.sum(dim=1)
        return dx, dweight, dbias, None, None


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Tensor, seed: Tensor, dropout: float) -> Tensor:
        x, change = x.contiguous(), change.contiguous()
        out = torch.empty_like(x)
        kernels().add[_parts(x)](x, change, seed, out, x.numel(), dropout, PART=PART, num_warps=4)
        # The mask is drawn again from the seed rather than kept.
        ctx.save_for_backward(seed)
        ctx.dropout = dropout
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (seed,) = ctx.saved_tensors
        grad = gradients[0].contiguous()
        change = torch.empty_like(grad, dtype=torch.bfloat16)
        kernels().drop[_parts(grad)](
            grad, seed, change, grad.numel(), ctx.dropout, PART=PART, num_warps=4
        )
        return grad, change, None, None


def _parts(x: Tensor) -> tuple[int]:
    return (-(-x.numel() // (4 * PART)),)


def _power_of_2(width: int) -> int:
    return 1 << (width - 1).bit_length()
