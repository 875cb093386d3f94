"""Lexically constrained decoding: required phrases, by dynamic beam allocation.

Post and Vilar 2018, https://aclanthology.org/N18-1119.

- A required phrase may have several wordings, one of which is enough (disjunctive constraints, Post
  and Vilar; Hu et al. 2019, https://aclanthology.org/N19-1090). Until one has begun, the shortest
  is what it lacks.
- A hypothesis may end only when it contains all its phrases, and may add only tokens that leave
  room for the missing ones. The phrases fit at the start; whenever they fit, continuing the wording
  that is furthest along keeps them fitting. So every finished hypothesis contains all of them, in
  greedy search and sampling too.
- A plain beam would fill with hypotheses that postpone the phrases. So it is divided: hypotheses
  with equally many phrase tokens form a bank, and banks take turns in naming their best.

Rows R, required phrases G, their wordings P, tokens of wordings U, longest wording L.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import END, PAD
from transduce.decoding.constraints.constraint import (
    NEG_INF,
    Constraint,
    last_tokens,
    padded_phrases,
)


class Include(Constraint):
    def __init__(
        self,
        phrases: Sequence[Sequence[Sequence[Sequence[int]]]],
        limits_B: Tensor,
        device: torch.device,
    ) -> None:
        """phrases[b]: the wordings of each phrase of source b, the shortest of which all fit its
        limit with END."""
        wordings = [[one for phrase in of_one for one in phrase] for of_one in phrases]
        self.wordings_RPL = padded_phrases(wordings, device)
        self.is_wording_RPG = torch.zeros(
            (*self.wordings_RPL.shape[:2], max(map(len, phrases))), dtype=torch.bool
        )
        for row, of_one in enumerate(phrases):
            numbers = [number for number, phrase in enumerate(of_one) for _ in phrase]
            self.is_wording_RPG[row, range(len(numbers)), numbers] = True
        self.is_wording_RPG = self.is_wording_RPG.to(device)
        shortest = [[[min(map(len, phrase))] for phrase in of_one] for of_one in phrases]
        self.shortest_RG = padded_phrases(shortest, device, fill=0).squeeze(2)
        used = [[[t] for t in dict.fromkeys(t for p in of_one for t in p)] for of_one in wordings]
        self.tokens_RU = padded_phrases(used, device).squeeze(2)
        self.limits_R = limits_B.to(device)
        self.banks = 1 + int(self.shortest_RG.sum(dim=1).max())
        self.lack_R = self.lack_RU = torch.zeros(0)

    def reorder(self, index_R: Tensor) -> None:
        self.wordings_RPL = self.wordings_RPL[index_R]
        self.is_wording_RPG = self.is_wording_RPG[index_R]
        self.shortest_RG = self.shortest_RG[index_R]
        self.tokens_RU = self.tokens_RU[index_R]
        self.limits_R = self.limits_R[index_R]

    def ban(self, banned_RV: Tensor, written_RT: Tensor) -> None:
        missing_RG = ~self._any_wording(self._contained(written_RT))
        # A token outside all wordings resets their progress; a token of one may advance some.
        self.lack_R = (missing_RG * self.shortest_RG).sum(dim=1)
        sizes_R1P = self._sizes()[:, None]
        progress_RUP = self._progress(written_RT)
        missing_RUG = missing_RG[:, None] & ~self._any_wording(progress_RUP == sizes_R1P)
        is_wording_R1PG = self.is_wording_RPG[:, None]
        missing_RUP = (is_wording_R1PG & missing_RUG[:, :, None]).any(dim=3)
        # What is left of a long wording may be more than the shortest has.
        shortest_R1P = (self.is_wording_RPG * self.shortest_RG[:, None]).sum(dim=2)[:, None]
        saved_RUP = (progress_RUP - sizes_R1P + shortest_R1P).clamp(min=0)
        furthest_RU = (missing_RUP * saved_RUP).amax(dim=2)
        self.lack_RU = (missing_RUG * self.shortest_RG[:, None]).sum(dim=2) - furthest_RU

        # Tokens between this one and END; at the last step this one is END.
        capacity_R = (self.limits_R - written_RT.shape[1] - 2).clamp(min=0)
        banned_RU = banned_RV.gather(1, self.tokens_RU) | (self.lack_RU > capacity_R[:, None])
        banned_RV |= (self.lack_R > capacity_R)[:, None]
        banned_RV.scatter_(1, self.tokens_RU, banned_RU)
        banned_RV[:, END] |= self.lack_R > 0

    def prefer(self, reached_BNV: Tensor, count: int) -> Tensor:
        """For each row `count` candidates, banks taking turns: indices_BC into its N x V."""
        B, N, V = reached_BNV.shape
        tokens_BNU = self.tokens_RU.view(B, N, -1)
        rest_BNV = reached_BNV.scatter(2, tokens_BNU, NEG_INF)  # none is a candidate twice
        rest_BNK, token_BNK = rest_BNV.topk(min(count, V), dim=2)
        token_BNK = token_BNK.masked_fill(rest_BNK == NEG_INF, PAD)  # nor is what was set aside
        value_BC = torch.cat([rest_BNK, reached_BNV.gather(2, tokens_BNU)], dim=2).flatten(1)
        token_BNC = torch.cat([token_BNK, tokens_BNU], dim=2)
        place_BC = (token_BNC + V * torch.arange(N, device=token_BNC.device)[:, None]).flatten(1)
        lack_BNK = self.lack_R.view(B, N, 1).expand_as(rest_BNK)
        lack_BC = torch.cat([lack_BNK, self.lack_RU.view(B, N, -1)], dim=2).flatten(1)
        return place_BC.gather(1, _in_turns(value_BC, lack_BC, self.banks)[:, :count])

    def _any_wording(self, holds_xP: Tensor) -> Tensor:
        """For each phrase, whether something holds of one of its wordings; so it does of padding.
        The second dimension, of tokens, may be there."""
        is_wording = self.is_wording_RPG if holds_xP.dim() == 2 else self.is_wording_RPG[:, None]
        held = (is_wording & holds_xP[..., None]).any(dim=-2)
        return held | ~is_wording.any(dim=-2)

    def _sizes(self) -> Tensor:
        return (self.wordings_RPL != PAD).sum(dim=2)

    def _contained(self, written_RT: Tensor) -> Tensor:
        """Which wordings_RP the text contains; padding counts as contained."""
        L = self.wordings_RPL.shape[2]
        padded_RT = torch.nn.functional.pad(written_RT, (0, L), value=PAD)
        windows_RT1L = padded_RT.unfold(1, L, 1)[:, :, None]
        wordings_R1PL = self.wordings_RPL[:, None]
        same_RTP = ((windows_RT1L == wordings_R1PL) | (wordings_R1PL == PAD)).all(dim=-1)
        return same_RTP.any(dim=1)

    def _progress(self, written_RT: Tensor) -> Tensor:
        """The length of the longest start of each wording that the text plus token_RU ends with."""
        L, U = self.wordings_RPL.shape[2], self.tokens_RU.shape[1]
        tail_RUL = last_tokens(written_RT, L - 1)[:, None].expand(-1, U, -1)
        tail_RU1L = torch.cat([tail_RUL, self.tokens_RU[:, :, None]], dim=2)[:, :, None]
        wordings_R1PL = self.wordings_RPL[:, None]
        progress_RUP = torch.zeros_like(tail_RU1L[..., 0] + wordings_R1PL[..., 0])
        for k in range(1, L + 1):
            first_R1Pk = wordings_R1PL[..., :k]
            same_RUP = (tail_RU1L[..., L - k :] == first_R1Pk).all(dim=-1)
            whole_R1P = (first_R1Pk != PAD).all(dim=-1)
            progress_RUP = torch.where(same_RUP & whole_R1P, k, progress_RUP)
        return progress_RUP


def _in_turns(value_BC: Tensor, lack_BC: Tensor, banks: int) -> Tensor:
    """An order_BC in which banks take turns, those that lack least first, each by its values."""
    by_value_BC = value_BC.argsort(dim=1, descending=True, stable=True)
    sorted_lack_BC, by_lack_BC = lack_BC.gather(1, by_value_BC).sort(dim=1, stable=True)
    order_BC = by_value_BC.gather(1, by_lack_BC)
    place_C = torch.arange(order_BC.shape[1], device=order_BC.device)
    turn_BC = place_C - torch.searchsorted(sorted_lack_BC, sorted_lack_BC)
    turn_BC = (turn_BC * banks + sorted_lack_BC).masked_fill(
        value_BC.gather(1, order_BC) == NEG_INF, order_BC.shape[1] * banks
    )
    return order_BC.gather(1, turn_BC.argsort(dim=1, stable=True))
