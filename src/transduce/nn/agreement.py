"""How much two passes with different dropout disagree: R-Drop.

Liang et al. 2021, https://arxiv.org/abs/2106.14448. As with the loss, logits exist a chunk of rows
at a time, and become their own gradient at once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.nn.linear import cast, column_sums
from transduce.nn.losses import CHUNK, SELECTING_DEVICES, Loss, add_product_, cross_entropy


def agreeing_cross_entropy(
    features_BTD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_BT: Tensor,
    agreement: float,
    smoothing: float = 0.0,
    ignore: int = 0,
) -> Loss:
    """The mean loss of two passes, and `agreement` times their divergence; see `cross_entropy`.

    The second half of the rows, along the first dimension that is not 1, is the second pass over
    what the first half passed over.
    """
    loss = cross_entropy(features_BTD, weight_VD, bias_V, targets_BT, smoothing, ignore)
    features_ND, targets_N = features_BTD.flatten(0, -2), targets_BT.flatten()
    counted_N = targets_N != ignore
    if features_ND.device.type in SELECTING_DEVICES:
        features_ND, counted_N = features_ND[counted_N], counted_N[counted_N]
    if torch.is_autocast_enabled(features_ND.device.type):
        features_ND = features_ND.to(torch.get_autocast_dtype(features_ND.device.type))
    divergence: Tensor = _Divergence.apply(  # type: ignore[no-untyped-call]
        features_ND, weight_VD, bias_V, counted_N[: len(counted_N) // 2]
    )
    return Loss(
        loss.total / 2 + agreement * divergence, loss.nll / 2, loss.correct / 2, loss.tokens // 2
    )


class _Divergence(torch.autograd.Function):
    """½ Σ (KL(p‖q) + KL(q‖p)) over the counted rows: p of the first half, q of the second."""

    @staticmethod
    def forward(
        ctx: Any,
        features_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        counted_N: Tensor,
    ) -> Tensor:
        exact = torch.promote_types(features_ND.dtype, torch.float32)
        weight_cast_VD = cast(weight_VD, features_ND.dtype)
        bias_cast_V = None if bias_V is None else cast(bias_V, features_ND.dtype)
        by_features_ND = torch.zeros_like(features_ND)
        by_weight_VD = torch.zeros_like(weight_VD)
        by_bias_V = None if bias_V is None else torch.zeros_like(bias_V)
        total = torch.zeros((), dtype=exact, device=features_ND.device)
        half = len(features_ND) // 2
        # A quarter of what the loss holds at a time: here there are several tables of that size.
        size = max(1, CHUNK.get(features_ND.device.type, 2**25) // 4 // weight_VD.shape[0])
        for start in range(0, half, size):
            first = slice(start, min(start + size, half))
            second = slice(half + first.start, half + first.stop)
            log_p_CV, log_q_CV = (
                F.linear(features_ND[rows], weight_cast_VD, bias_cast_V).to(exact).log_softmax(-1)
                for rows in (first, second)
            )
            p_CV, q_CV, apart_CV = log_p_CV.exp(), log_q_CV.exp(), log_p_CV - log_q_CV
            real_C1 = counted_N[first, None]
            p_from_q_C1 = (p_CV * apart_CV).sum(-1, keepdim=True)
            q_from_p_C1 = -(q_CV * apart_CV).sum(-1, keepdim=True)
            total = total + (p_from_q_C1 + q_from_p_C1).masked_fill(~real_C1, 0.0).sum() / 2
            # ∂KL(p‖q)/∂logits of p = p (ln p/q − KL(p‖q)); ∂KL(q‖p)/∂logits of p = p − q
            by_logits = (
                p_CV * (apart_CV - p_from_q_C1) + p_CV - q_CV,
                q_CV * (-apart_CV - q_from_p_C1) + q_CV - p_CV,
            )
            for rows, by_CV in zip((first, second), by_logits, strict=True):
                by_logits_CV = (by_CV.masked_fill(~real_C1, 0.0) / 2).to(features_ND.dtype)
                torch.mm(by_logits_CV, weight_cast_VD, out=by_features_ND[rows])
                add_product_(by_weight_VD, by_logits_CV.mT, features_ND[rows])
                if by_bias_V is not None:
                    by_bias_V += column_sums(by_logits_CV)
        ctx.found = (by_features_ND, by_weight_VD, by_bias_V)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        return (*(None if g is None else g * scale.to(g.dtype) for g in ctx.found), None)
