"""Cross-entropy loss with label smoothing, and accuracy, without storing all logits.

The logits of a batch, tokens × vocabulary, are larger than everything else in a small model. They
are computed a chunk of rows at a time and turned into their gradient at once, so only one chunk
exists at any time, whatever the batch and the vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.nn.loss.output_gradients import OutputGradients
from transduce.nn.loss.softmax import softmax_gradient
from transduce.nn.mixed_precision import cast

# Elsewhere the host would have to wait until the device has counted the selected rows.
SELECTING_DEVICES = frozenset({"cpu"})
CHUNK = {"cpu": 2**22, "cuda": 2**27}  # logits held at a time: fits a cache, fills a GPU


class Loss(NamedTuple):
    """Sums over the tokens of a batch; for a mean, add up batches first, then divide by
    `tokens`.
    """

    total: Tensor
    """The training objective, differentiable: label smoothing, R-Drop and CTC included."""
    nll: Tensor
    """Negative log-likelihood −Σ ln p(target), detached; exp of its mean is the perplexity."""
    correct: Tensor
    """Tokens predicted correctly: the target is the most probable one."""
    tokens: Tensor
    """Number of tokens, padding left out."""


def cross_entropy(
    features_BTD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_BT: Tensor,
    smoothing: float = 0.0,
    ignore: int = 0,
) -> Loss:
    """Cross-entropy of softmax(features weightᵀ + bias) against targets, summed over tokens.

    The logits of a batch never exist all at once, which saves memory.

    Args:
        features_BTD: what the decoder gives for each step.
        weight_VD: the output embedding, one row for each token.
        bias_V: a bias for each token, or None.
        targets_BT: the right tokens.
        smoothing: ε of label smoothing: the target distribution is (1 − ε) on the target and ε/V on
            every token, itself included (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, as
            in torch's cross_entropy).
        ignore: targets that do not count, such as padding.
    """
    features_ND, targets_N = features_BTD.flatten(0, -2), targets_BT.flatten()
    counted_N = targets_N != ignore
    tokens = counted_N.sum()
    if features_ND.device.type in SELECTING_DEVICES:
        features_ND, targets_N = features_ND[counted_N], targets_N[counted_N]
        counted_N = counted_N[counted_N]
    targets_N = targets_N.masked_fill(~counted_N, 0)  # `ignore` need not be a token: −100, say
    if torch.is_autocast_enabled(features_ND.device.type):
        features_ND = features_ND.to(torch.get_autocast_dtype(features_ND.device.type))
    # Decided here: inside, `requires_grad` is also true where no gradient will be asked for.
    learns = wants_gradient(features_ND, weight_VD, bias_V)
    total, nll, correct = _Chunked.apply(  # type: ignore[no-untyped-call]
        features_ND, weight_VD, bias_V, targets_N, counted_N, smoothing, learns
    )
    return Loss(total, nll, correct, tokens)


def wants_gradient(*inputs: Tensor | None) -> bool:
    """Whether a gradient can be asked for; not in validation, under no_grad or inference_mode."""
    wanted = any(tensor is not None and tensor.requires_grad for tensor in inputs)
    return wanted and torch.is_grad_enabled()


class _Chunked(torch.autograd.Function):
    """The loss, and in the same pass its gradient with respect to features, weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        features_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        counted_N: Tensor,
        smoothing: float,
        gradient: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        exact = torch.promote_types(features_ND.dtype, torch.float32)
        weight_cast_VD = cast(weight_VD, features_ND.dtype)
        bias_cast_V = None if bias_V is None else cast(bias_V, features_ND.dtype)
        found = OutputGradients.zeros(features_ND, weight_VD, bias_V) if gradient else None
        total = torch.zeros((), dtype=exact, device=features_ND.device)
        nll = torch.zeros_like(total)
        correct = torch.zeros((), dtype=torch.int64, device=features_ND.device)
        size = max(1, CHUNK.get(features_ND.device.type, 2**25) // weight_VD.shape[0])
        size -= size % 256 if size > 256 and features_ND.is_cuda else 0  # whole tiles
        for start in range(0, len(features_ND), size):
            rows = slice(start, start + size)
            x_CD, real_C = features_ND[rows], counted_N[rows]
            logits_CV = F.linear(x_CD, weight_cast_VD, bias_cast_V)
            loss_C, nll_C, hit_C, by_logits_CV = softmax_gradient(
                logits_CV, targets_N[rows], real_C, smoothing, gradient
            )
            total = total + loss_C.masked_fill(~real_C, 0.0).sum()
            nll = nll + nll_C.masked_fill(~real_C, 0.0).sum()
            correct = correct + (hit_C & real_C).sum()
            if found is not None:
                found.add(rows, by_logits_CV, x_CD, weight_cast_VD)
        ctx.found = found
        ctx.mark_non_differentiable(nll, correct)
        return total, nll, correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*ctx.found.scaled(gradients[0]), None, None, None, None)
