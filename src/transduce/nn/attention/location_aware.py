"""Location-aware attention: the score also sees the attention weights of the step before.

Chorowski et al. 2015, https://arxiv.org/abs/1506.07503. In speech, similar sounds recur, and
content alone cannot tell which of them is next; the previous weights can. Not to be confused with
Luong's location score, which depends on the target state alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transduce.nn.attention.attention import Additive, Attention, masked_softmax
from transduce.nn.masks import Mask
from transduce.nn.watchable import Watch


class LocationAware(Additive):
    """wᵀ tanh(W s_t + V h_i + U f_{t,i} + b), where f_t = F ∗ α_{t−1}: equations 8 and 9.

    F is `filters` convolution filters of width `kernel` over the attention weights of the step
    before.
    """

    def __init__(
        self,
        query_width: int,
        key_width: int,
        *,
        hidden: int | None = None,
        filters: int = 10,
        kernel: int = 51,
    ) -> None:
        super().__init__(query_width, key_width, hidden=hidden)
        if kernel % 2 == 0:
            raise ValueError(
                f"A kernel must be odd, not {kernel}: make it {kernel - 1} or {kernel + 1}."
            )
        hidden = self.energy.in_features
        self.filters = nn.Conv1d(1, filters, kernel, padding=kernel // 2, bias=False)
        self.location_projection = nn.Linear(filters, hidden)

    def forward(
        self, query_BTD: Tensor, prepared_BSD: Tensor, before_BS: Tensor | None = None
    ) -> Tensor:
        """Queries of one step [B, 1, ·] to scores [B, 1, S]; before_BS: the weights of the step
        before.

        Without before_BS, at the first step, they count as zero.
        """
        if before_BS is None:
            before_BS = prepared_BSD.new_zeros(prepared_BSD.shape[:2])
        features_BSC = self.filters(before_BS.unsqueeze(1)).mT
        location_BSF = self.location_projection(features_BSC)
        scores_BTS: Tensor = super().forward(query_BTD, prepared_BSD + location_BSF)
        return scores_BTS


class LocationAwareAttention(Attention):
    """Location-aware attention; each step needs the weights of the one before it."""

    def __init__(self, score: LocationAware) -> None:
        super().__init__(score)

    def along(
        self,
        query_BTD: Tensor,
        prepared_keys_BSD: Tensor,
        values_BSD: Tensor,
        mask: Mask | None = None,
        before_BS: Tensor | None = None,
        watch: Watch = None,
    ) -> tuple[Tensor, Tensor]:
        """Attend step by step: context [B, T, D], and the weights_BS of the last step.

        before_BS are the weights of the step before the first; None at the beginning of a sequence.
        """
        S = values_BSD.shape[1]
        visible_BTS = None if mask is None else mask.dense(1, S, query_BTD.device)
        steps = []
        for query_BD in query_BTD.unbind(dim=1):
            scores_B1S = self.score(query_BD.unsqueeze(1), prepared_keys_BSD, before_BS)
            weights_B1S = masked_softmax(scores_B1S, visible_BTS)
            before_BS = weights_B1S.squeeze(1)
            steps.append(weights_B1S)
        weights_BTS = torch.cat(steps, dim=1)
        self.show(weights_BTS.unsqueeze(1), watch)
        assert before_BS is not None
        return self._read(weights_BTS, values_BSD), before_BS

    def forward(
        self,
        query_BTD: Tensor,
        prepared_keys_BSD: Tensor,
        values_BSD: Tensor,
        mask: Mask | None = None,
        watch: Watch = None,
    ) -> Tensor:
        """A whole sequence of queries from the beginning: context [B, T, D]."""
        return self.along(query_BTD, prepared_keys_BSD, values_BSD, mask, watch=watch)[0]
