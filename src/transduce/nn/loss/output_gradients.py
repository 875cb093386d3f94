"""The gradients of an output layer, features weightᵀ + bias, added up in chunks of rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from transduce.nn.linear import column_sums


class OutputGradients(NamedTuple):
    """What a loss keeps for its backward pass: ∂loss/∂features, ∂loss/∂weight, ∂loss/∂bias."""

    by_features_ND: Tensor
    by_weight_VD: Tensor
    by_bias_V: Tensor | None

    @classmethod
    def zeros(
        cls, features_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None
    ) -> OutputGradients:
        by_bias_V = None if bias_V is None else torch.zeros_like(bias_V)
        return cls(torch.zeros_like(features_ND), torch.zeros_like(weight_VD), by_bias_V)

    def add(
        self, rows: slice, by_logits_CV: Tensor, features_CD: Tensor, weight_VD: Tensor
    ) -> None:
        """Add what a chunk of rows contributes; weight_VD is in the type of the features."""
        torch.mm(by_logits_CV, weight_VD, out=self.by_features_ND[rows])
        add_product_(self.by_weight_VD, by_logits_CV.mT, features_CD)
        if self.by_bias_V is not None:
            self.by_bias_V.add_(column_sums(by_logits_CV))

    def scaled(self, scale: Tensor) -> tuple[Tensor | None, ...]:
        """Times the factor by which the caller has scaled the loss."""
        return tuple(None if g is None else g * scale.to(g.dtype) for g in self)


def add_product_(total_VD: Tensor, one_VC: Tensor, other_CD: Tensor) -> None:
    """total += one @ other, accumulated in the type of the total."""
    if total_VD.is_cuda and total_VD.dtype != one_VC.dtype:  # accumulated in float32 directly
        torch.addmm(total_VD, one_VC, other_CD, out_dtype=total_VD.dtype, out=total_VD)
    elif total_VD.dtype == one_VC.dtype:
        total_VD.addmm_(one_VC, other_CD)
    else:
        total_VD += one_VC @ other_CD
