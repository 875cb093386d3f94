"""CTC prefix score, for joint CTC/attention beam search: ln p that a transcript begins with a
prefix.

Watanabe et al. 2017, https://arxiv.org/abs/1609.06773 (algorithm 2). Vectorised: where the paper
loops over time, sums over time are matrix products and recursions are cumulative sums, so that a
step costs a few kernels, whatever the length.

    E frames and the moment before the first, S + 1
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_ZERO = -1e3  # a log-probability that counts as −∞ and whose sums stay finite


@dataclass(frozen=True, eq=False)
class CtcPrefix:
    """N prefixes of each of B transcripts, with their forward probabilities at each frame.

    label_BNE, blank_BNE: ln p that the frames up to this one give exactly the prefix, the last of
    them being a label, or a blank; float64, since they are differences of large sums.
    """

    log_probs_BSV: Tensor
    probs_BSV: Tensor
    blank: int
    end: int
    label_BNE: Tensor
    blank_BNE: Tensor
    last_BN: Tensor
    """The last token of each prefix; the blank of an empty one."""
    total_BN: Tensor
    """ln p that the transcript begins with the prefix."""

    @classmethod
    def start(
        cls, log_probs_BSV: Tensor, lengths_B: Tensor, beams: int, blank: int, end: int
    ) -> CtcPrefix:
        """Empty prefixes; `end` is the column of `next_log_probs` for the end of the transcript."""
        B, S, _ = log_probs_BSV.shape
        padding_BS = torch.arange(S, device=log_probs_BSV.device) >= lengths_B[:, None]
        # Padding is blank with probability 1.
        log_probs_BSV = log_probs_BSV.float().masked_fill(padding_BS[..., None], -torch.inf)
        log_probs_BSV[..., blank].masked_fill_(padding_BS, 0.0)
        nothing_BNE = log_probs_BSV.new_full((B, beams, S + 1), -torch.inf, dtype=torch.float64)
        blanks_BS = log_probs_BSV[..., blank].double().clamp(min=LOG_ZERO).cumsum(dim=1)
        paused_BE = F.pad(blanks_BS, (1, 0))
        return cls(
            log_probs_BSV,
            log_probs_BSV.exp(),
            blank,
            end,
            nothing_BNE,
            paused_BE[:, None].expand(-1, beams, -1),
            torch.full((B, beams), blank, device=log_probs_BSV.device),
            nothing_BNE.new_zeros(B, beams),
        )

    def next_log_probs(self) -> Tensor:
        """ln p(next token | prefix) [B, N, V], with the end of the transcript in the column `end`.

        The probabilities sum to one, except for what CTC gives to the label `end` itself.
        """
        ready_BNS = torch.logaddexp(self.label_BNE, self.blank_BNE)[..., :-1]
        highest_BN1 = ready_BNS.amax(dim=-1, keepdim=True).clamp(min=-1e30)
        weights_BNS = (ready_BNS - highest_BN1).exp().float()
        begun_BNV = (weights_BNS @ self.probs_BSV).log().double() + highest_BN1
        # A token can follow itself only after a blank.
        last_BNS, never_BNS = self._emission(self.last_BN)
        again_BNS = (self.blank_BNE[..., :-1] + last_BNS).masked_fill(never_BNS, -torch.inf)
        again_BN = again_BNS.logsumexp(dim=-1)
        begun_BNV = begun_BNV.scatter(2, self.last_BN[..., None], again_BN[..., None])
        begun_BNV[..., self.blank] = -torch.inf
        begun_BNV[..., self.end] = torch.logaddexp(self.label_BNE, self.blank_BNE)[..., -1]
        # After an impossible prefix everything is impossible: −∞, not NaN.
        total_BN1 = self.total_BN[..., None].clamp(min=-1e30)
        return (begun_BNV - total_BN1).float()

    def advance(self, parent_BN: Tensor, token_BN: Tensor) -> CtcPrefix:
        """Extend: prefix n becomes prefix parent_BN[b, n] of the same transcript and one more
        token.
        """
        label_BNE, blank_BNE = (
            x_BNE.gather(1, parent_BN[..., None].expand(-1, -1, x_BNE.shape[-1]))
            for x_BNE in (self.label_BNE, self.blank_BNE)
        )
        same_BN1 = (token_BN == self.last_BN.gather(1, parent_BN))[..., None]
        ready_BNE = torch.logaddexp(label_BNE, blank_BNE)
        ready_BNS = torch.where(same_BN1, blank_BNE, ready_BNE)[..., :-1]
        token_BNS, never_BNS = self._emission(token_BN)
        blank_B1S = self.log_probs_BSV[..., self.blank].double().clamp(min=LOG_ZERO)[:, None]
        said_BNS = _held(ready_BNS, token_BNS).masked_fill(never_BNS, -torch.inf)
        begun_BNS = (ready_BNS + token_BNS).masked_fill(never_BNS, -torch.inf)
        label_BNE = F.pad(said_BNS, (1, 0), value=-torch.inf)
        paused_BNS = _held(label_BNE[..., :-1], blank_B1S)
        return replace(
            self,
            label_BNE=label_BNE,
            blank_BNE=F.pad(paused_BNS, (1, 0), value=-torch.inf),
            last_BN=token_BN,
            total_BN=begun_BNS.logsumexp(dim=-1),
        )

    def select(self, rows_B: Tensor) -> CtcPrefix:
        """The same for a subset of the transcripts (rows of the batch)."""
        return replace(
            self,
            log_probs_BSV=self.log_probs_BSV[rows_B],
            probs_BSV=self.probs_BSV[rows_B],
            label_BNE=self.label_BNE[rows_B],
            blank_BNE=self.blank_BNE[rows_B],
            last_BN=self.last_BN[rows_B],
            total_BN=self.total_BN[rows_B],
        )

    def _emission(self, token_BN: Tensor) -> tuple[Tensor, Tensor]:
        """ln p of each prefix's token at each frame [B, N, S], and where it is −∞, as in padding.

        There it is replaced by LOG_ZERO, so that sums stay finite; the caller must mask results.
        """
        S = self.log_probs_BSV.shape[1]
        index_BSN = token_BN[:, None, :].expand(-1, S, -1)
        emission_BNS = self.log_probs_BSV.gather(2, index_BSN).mT
        return emission_BNS.double().clamp(min=LOG_ZERO), emission_BNS.isneginf()


def _held(enter_BNS: Tensor, emit_BNS: Tensor) -> Tensor:
    """x_t = p_t (x_{t−1} + enter_t), all as logarithms.

    That is x_t = Σ_{s ≤ t} enter_s p_s ⋯ p_t = P_t Σ_{s ≤ t} enter_s / P_{s−1}, with P_t the
    product of all p up to t.
    """
    product_BNS = emit_BNS.cumsum(dim=-1)
    before_BNS = product_BNS - emit_BNS
    return product_BNS + (enter_BNS - before_BNS).logcumsumexp(dim=-1)
