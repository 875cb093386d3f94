"""Linear layer y = x Wᵀ + b with a backward pass that reads each gradient as rarely as possible.

torch's kernel for the gradient of a bias leaves most of a GPU idle, and on a CPU it strides across
memory. The ReLU of a feed-forward layer takes two more passes over its hidden layer. In a
Transformer on sentences these are a tenth of an update on a GPU.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.nn.gradient_sums import GRADIENT_SUMS
from transduce.nn.mixed_precision import cast
from transduce.nn.pass_buffers import counters
from transduce.nn.torch_private import addmm_relu, relu_backward
from transduce.nn.triton import early, kernels

# Columns that one Triton program sums, and programs among which the rows are divided.
COLUMNS, SPLITS = 64, 32
WIDE, WIDE_COLUMNS, WIDE_SPLITS = 8192, 256, 8  # from so many columns on, as of logits
FEW = 64  # up to so many rows our kernel is faster than cuBLAS
# Above, only where all tiles run at the same time and rows are short: what it gains is its early
# launch, in a decoding step.
SOME = {"ROWS": 64, "COLUMNS": 64, "BLOCK": 128, "num_warps": 4, "num_stages": 3}
MAX_TILES, MAX_WIDTH = 128, 1024


class Packed(Protocol):
    """A weight and its bias in a layout and with a kernel of their own (for example int8); see
    runtime/.
    """

    def multiply(
        self, x_BTD: Tensor, relu: bool = False, added_BTF: Tensor | None = None
    ) -> Tensor: ...


def linear(
    x_BTD: Tensor, weight_FD: Tensor | Packed, bias_F: Tensor | None, relu: bool = False
) -> Tensor:
    """x Wᵀ + b; with `relu`, max(0, x Wᵀ + b). A packed weight contains its bias."""
    y_BTF: Tensor
    if not isinstance(weight_FD, Tensor):
        return weight_FD.multiply(x_BTD, relu)
    if bias_F is not None and _applies(x_BTD):
        y_BTF = _Linear.apply(x_BTD, weight_FD, bias_F, relu)  # type: ignore[no-untyped-call]
    elif _are_few(x_BTD, weight_FD):
        y_BTF = _few_rows(x_BTD, weight_FD, bias_F, relu)
    elif relu and bias_F is not None and x_BTD.is_cuda and not torch.is_grad_enabled():
        kind = _dtype(x_BTD)  # autocast does not know this function
        x_ND = x_BTD.to(kind).flatten(0, -2)
        y_NF = addmm_relu(cast(bias_F, kind), x_ND, cast(weight_FD, kind).t())
        y_BTF = y_NF.view(*x_BTD.shape[:-1], -1)
    else:
        y_BTF = F.linear(x_BTD, weight_FD, bias_F)
        y_BTF = F.relu(y_BTF) if relu else y_BTF
    return y_BTF


def _applies(x_BTD: Tensor) -> bool:
    if not torch.is_grad_enabled() or x_BTD.device.type not in ("cpu", "cuda"):
        return False
    return not x_BTD.is_cuda or _dtype(x_BTD) == torch.bfloat16


def _dtype(x: Tensor) -> torch.dtype:
    """The type of matrix products, which autocast may set."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _are_few(x_BTD: Tensor, weight_FD: Tensor) -> bool:
    """Few rows on a GPU, where a product takes as long as reading the weight."""
    if not x_BTD.is_cuda or torch.is_grad_enabled():
        return False
    outputs, width = weight_FD.shape
    rows = x_BTD.numel() // width
    tiles = -(-rows // SOME["ROWS"]) * -(-outputs // SOME["COLUMNS"])
    half = x_BTD.dtype == weight_FD.dtype == torch.bfloat16
    return half and (1 <= rows <= FEW or (0 < tiles <= MAX_TILES and width <= MAX_WIDTH))


def _few_rows(x_BTD: Tensor, weight_FD: Tensor, bias_F: Tensor | None, relu: bool) -> Tensor:
    x_BTD, weight_FD = x_BTD.contiguous(), weight_FD.contiguous()
    outputs, width = weight_FD.shape
    rows = x_BTD.numel() // width
    y_BTF = x_BTD.new_empty(*x_BTD.shape[:-1], outputs)
    tensors = (x_BTD, weight_FD, weight_FD if bias_F is None else bias_F, y_BTF)
    how = {"BIAS": bias_F is not None, "RELU": relu, **early(x_BTD.device)}
    if rows == 1:
        kernels().one_row[(-(-outputs // 2),)](
            *tensors, width, outputs, COLUMNS=2, BLOCK=512, num_warps=2, **how
        )
        return y_BTF
    kernel, tile = kernels().few_rows, _tile(width)
    if rows > FEW:
        kernel, tile = kernels().some_rows, SOME
    grid = (-(-outputs // tile["COLUMNS"]), -(-rows // tile["ROWS"]))
    kernel[grid](*tensors, rows, width, outputs, **tile, **how)
    return y_BTF


def _tile(width: int) -> dict[str, int]:
    """Tile sizes of the kernel for few rows; tuned at 64 rows."""
    block = min(max(1 << (width - 1).bit_length(), 16), 512)
    return {"ROWS": 32, "COLUMNS": 16, "BLOCK": block, "num_warps": 4, "num_stages": 1}


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        dtype = _dtype(x)
        x_ND = x.to(dtype).flatten(0, -2)
        cast_FD, cast_F = cast(weight, dtype), cast(bias, dtype)
        if relu and x.is_cuda:  # the fused ReLU is free there
            y_NF = addmm_relu(cast_F, x_ND, cast_FD.t())
        else:
            y_NF = torch.addmm(cast_F, x_ND, cast_FD.t())
            y_NF = y_NF.relu_() if relu else y_NF
        ctx.save_for_backward(x_ND, cast_FD, y_NF if relu else None)
        ctx.dtypes = (x.dtype, weight.dtype)
        ctx.counters = counters_of_sums(len(weight), x.device)
        return y_NF.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, cast_FD, y_NF = ctx.saved_tensors
        x_dtype, weight_dtype = ctx.dtypes
        grad = gradients[0]
        sums_F = GRADIENT_SUMS.get(grad) if y_NF is None else None
        grad_NF = grad.to(x_ND.dtype).flatten(0, -2).contiguous()
        if not any(ctx.needs_input_grad[1:3]):  # a frozen layer
            grad_NF = grad_NF if y_NF is None else relu_backward(grad_NF, y_NF)
            by_x_ND = (grad_NF @ cast_FD).to(x_dtype)
            return by_x_ND.view(*grad.shape[:-1], -1), None, None, None
        if grad_NF.is_cuda:
            if sums_F is None:
                grad_NF, sums_F = _gated_column_sums(grad_NF, y_NF, ctx.counters)
            by_bias_F = sums_F
            by_weight_FD = torch.mm(grad_NF.t(), x_ND, out_dtype=weight_dtype)
        else:
            if y_NF is not None:
                grad_NF = relu_backward(grad_NF, y_NF)
            by_bias_F = column_sums(grad_NF)
            by_weight_FD = (grad_NF.t() @ x_ND).to(weight_dtype)
        by_x_ND = (grad_NF @ cast_FD).to(x_dtype)
        return by_x_ND.view(*grad.shape[:-1], -1), by_weight_FD, by_bias_F.to(weight_dtype), None


def counters_of_sums(width: int, device: torch.device) -> Tensor | None:
    """Asked for in a forward pass, for the `column_sums` of its backward pass."""
    return counters(-(-width // COLUMNS), device) if device.type == "cuda" else None


def column_sums(x_NF: Tensor, counters: Tensor | None = None) -> Tensor:
    """The sum of the rows, in float32 or better. counters: zeros, see `counters_of_sums`."""
    if not x_NF.is_cuda:
        # As a matrix product it reads memory in order, several times as fast as `sum`.
        return x_NF.new_ones(len(x_NF)) @ x_NF
    if x_NF.dtype in (torch.bfloat16, torch.float32) and x_NF.is_contiguous():
        return _gated_column_sums(x_NF, None, counters)[1]
    return x_NF.sum(dim=0, dtype=torch.promote_types(x_NF.dtype, torch.float32))


def _gated_column_sums(
    grad_NF: Tensor, y_NF: Tensor | None, counters: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradient where y > 0 (all of it without y), and the sum of its rows in float32.

    In two steps with a fixed order, so that the result is deterministic.
    """
    rows, width = grad_NF.shape
    gated_NF = grad_NF if y_NF is None else torch.empty_like(grad_NF)
    columns, splits = (WIDE_COLUMNS, WIDE_SPLITS) if width >= WIDE else (COLUMNS, SPLITS)
    shares = torch.empty(splits, width, device=grad_NF.device)
    sums_F = torch.empty(width, device=grad_NF.device)
    groups = -(-width // columns)
    # Counters of this pass or call alone: the same kernel may run on another stream or in another
    # CUDA graph at the same time.
    if counters is None:
        counters = torch.zeros(groups, dtype=torch.int32, device=grad_NF.device)
    kernels().column_sums[(groups, splits)](
        grad_NF,
        grad_NF if y_NF is None else y_NF,
        gated_NF,
        shares,
        counters,
        sums_F,
        rows,
        width,
        -(-rows // splits),
        GATED=y_NF is not None,
        COLUMNS=columns,
        ROWS=16,
        SPLITS=splits,
        num_warps=4,
    )
    return gated_NF, sums_F
