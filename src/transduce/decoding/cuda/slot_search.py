"""Greedy and beam search over slots by torch: each sentence is at a step of its own.

The hypotheses are those of search/greedy.py and search/beam.py, which also handle constraints. All
is done in place, so that it can be recorded as a CUDA graph.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.tokens.tokenizer import END, PAD
from transduce.decoding.constraints.constraint import NEVER
from transduce.decoding.search.continuous_batching import Shape
from transduce.decoding.search.hypothesis import Hypothesis, penalty
from transduce.decoding.search.rules import at_limit


class SlotSearch:
    """The search of a pool of slots: where each sentence is, and what it has found."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape, self.device = shape, device
        B, N, T = shape.slots, shape.beam, shape.target
        self.steps_R = torch.zeros(B * N, dtype=torch.int32, device=device)
        self.source_lengths_B = torch.zeros(B, dtype=torch.int32, device=device)
        self.limits_B = torch.ones(B, dtype=torch.int32, device=device)
        rows_R = torch.arange(B * N, dtype=torch.int32, device=device)
        self.origin_RT = rows_R[:, None].repeat(1, T) if N > 1 else None
        self.tokens_R = torch.full((B * N,), PAD, device=device)
        self.open_B = torch.zeros(B, dtype=torch.bool, device=device)
        self.written_BNT = torch.full((B, N, T), PAD, device=device)
        self.reached_BN = torch.full((B, N), NEVER, device=device)
        self.ended_BN = torch.full((B, shape.nbest), NEVER, device=device)
        # Greedy search has one text, open or ended.
        self.ended_BNT = torch.full((B, shape.nbest, T), PAD, device=device)
        self.ended_BNT = self.ended_BNT if N > 1 else self.written_BNT
        self.total_BN = torch.full((B, shape.nbest), NEVER, device=device)
        self.count_B = torch.zeros(B, dtype=torch.int32, device=device)  # of finished hypotheses

    def take(self, slots: list[int]) -> list[list[Hypothesis]]:
        """The hypotheses of the sentences in these slots, best first."""
        seen = self._report(slots)
        tokens = seen[:, :, 3:].astype(np.int64)
        sizes = (tokens == END).argmax(axis=2)
        texts = tokens.reshape(-1, tokens.shape[2])
        # As lists: iterating over numpy values takes several times as long.
        columns = (texts, sizes.ravel(), seen[:, :, 1].ravel(), seen[:, :, 2].ravel())
        each = [
            Hypothesis(ids[:end], score, total)
            for ids, end, score, total in zip(*(x.tolist() for x in columns), strict=True)
        ]
        nbest = self.shape.nbest
        # NaN is no score either: there is nothing where weights are no numbers.
        return [
            [hypothesis for hypothesis in each[start : start + nbest] if hypothesis.score > NEVER]
            for start in range(0, len(each), nbest)
        ]

    def close(self, slots: list[int]) -> None:
        """What is in these slots is no longer needed."""
        self.open_B[slots] = False

    def _report(self, slots: list[int]) -> NDArray[np.float64]:
        """Of the hypotheses of these slots: whether the slot is open, score, log-probability and
        tokens [slots, nbest, 3 + T]."""
        raise NotImplementedError

    def _reset(self, slots_B: Tensor, lengths_B: Tensor, limits_B: Tensor, token: int) -> None:
        """Slots whose outputs begin after this token."""
        beam = self.shape.beam
        self.source_lengths_B.index_copy_(0, slots_B, lengths_B.int())
        self.limits_B.index_copy_(0, slots_B, limits_B.int())
        self.open_B.index_fill_(0, slots_B, value=True)
        self.steps_R.view(-1, beam).index_fill_(0, slots_B, 0)
        self.tokens_R.view(-1, beam).index_fill_(0, slots_B, token)
        self.reached_BN.index_fill_(0, slots_B, NEVER)
        self.reached_BN[:, :1].index_fill_(0, slots_B, 0.0)
        self.ended_BN.index_fill_(0, slots_B, NEVER)
        self.count_B.index_fill_(0, slots_B, 0)

    # ------------------------------------------------------------------------------- one step

    def _greedy(self, scores_B: Tensor, tokens_B: Tensor) -> None:
        """Append the best token of each row; rows that have ended do not change."""
        reached_B = self.reached_BN[:, 0]
        reached_B += torch.where(self.open_B, scores_B, 0.0)
        open_B = self.open_B.nonzero().squeeze(1)
        self.written_BNT[open_B, 0, self.steps_R[open_B].long()] = tokens_B[open_B]
        self.tokens_R[open_B] = tokens_B[open_B]
        ends_B = self.open_B & (tokens_B == END)
        score_B = reached_B / penalty(self.steps_R + 1, self.shape.length_penalty)
        self.ended_BN[ends_B, 0] = score_B[ends_B].to(self.ended_BN)
        self.total_BN[ends_B, 0] = reached_B[ends_B]
        self.open_B &= ~ends_B
        self._count()

    def _count(self) -> None:
        """Increment the step of open rows; others stay, so that nothing overflows."""
        self.steps_R += self.open_B.repeat_interleave(
            self.shape.beam, output_size=len(self.steps_R)
        )

    def _beam(self, scores_RC: Tensor, token_RC: Tensor) -> None:
        """As in search.beam, each row at its own step, given the log-probabilities of tokens that
        include the best 2N of each hypothesis: the 2N best of a sentence are among them."""
        shape = self.shape
        B, N = shape.slots, shape.beam
        step_B = self.steps_R.view(B, N)[:, 0].long()
        last_B = at_limit(step_B, self.limits_B)
        count = scores_RC.shape[1]
        scores_BNC = scores_RC.view(B, N, count) + self.reached_BN[:, :, None]
        candidate_BC, index_BC = scores_BNC.flatten(1).topk(2 * N, dim=1)
        token_BC = token_RC.view(B, -1).gather(1, index_BC)
        parent_BC = index_BC // count
        ends_BC = token_BC == END

        last_BN = candidate_BC[:, :N].masked_fill(~ends_BC[:, :N], NEVER)
        score_BN = last_BN / penalty(step_B + 1, shape.length_penalty)[:, None]
        at_B11 = step_B[:, None, None]
        whole_BNT = _take(self.written_BNT, parent_BC[:, :N])
        whole_BNT.scatter_(2, at_B11.expand(-1, N, 1), END)
        open_B1 = self.open_B[:, None]
        ended_BN, best_BN = torch.cat([self.ended_BN, score_BN], dim=1).topk(shape.nbest, dim=1)
        ended_BNT = _take(torch.cat([self.ended_BNT, whole_BNT], dim=1), best_BN)
        total_BN = torch.cat([self.total_BN, last_BN], dim=1).gather(1, best_BN)
        self.ended_BN.copy_(torch.where(open_B1, ended_BN, self.ended_BN))
        self.ended_BNT.copy_(torch.where(open_B1[:, :, None], ended_BNT, self.ended_BNT))
        self.total_BN.copy_(torch.where(open_B1, total_BN, self.total_BN))

        place_C = torch.arange(ends_BC.shape[1], device=self.device)
        kept_BN = (place_C + len(place_C) * ends_BC).topk(N, dim=1, largest=False).indices
        reached_BN = candidate_BC.gather(1, kept_BN)
        tokens_BN, parent_BN = token_BC.gather(1, kept_BN), parent_BC.gather(1, kept_BN)
        written_BNT = _take(self.written_BNT, parent_BN)
        written_BNT.scatter_(2, at_B11.expand(-1, N, 1), tokens_BN[:, :, None])
        mildest_B = torch.maximum(
            penalty(self.limits_B, shape.length_penalty),
            penalty(step_B + 2, shape.length_penalty),
        )
        hope_B = reached_BN.amax(dim=1) / mildest_B
        done_B = (self.ended_BN[:, -1] >= hope_B) | last_B
        if shape.most is not None:
            self.count_B += (last_BN > NEVER).sum(dim=1)
            done_B |= self.count_B >= shape.most
        self.reached_BN.copy_(reached_BN)
        self.written_BNT.copy_(written_BNT)
        self.tokens_R.copy_(tokens_BN.flatten())
        self._move(parent_BN, step_B)
        self.open_B &= ~done_B
        self._count()

    def _move(self, parent_BN: Tensor, step_B: Tensor) -> None:
        """Reorder the KV cache by table: it says in which row each step of a hypothesis is."""
        assert self.origin_RT is not None
        B, N = parent_BN.shape
        rows_R = torch.arange(B * N, device=self.device)
        parent_R = (parent_BN + torch.arange(0, B * N, N, device=self.device)[:, None]).flatten()
        at_R1 = step_B.repeat_interleave(N, output_size=B * N)[:, None]
        written_RT = self.origin_RT.scatter(1, at_R1, rows_R.int()[:, None])
        self.origin_RT.copy_(written_RT[parent_R])


def _take(items_BNT: Tensor, index_BC: Tensor) -> Tensor:
    return items_BNT.gather(1, index_BC[:, :, None].expand(-1, -1, items_BNT.shape[2]))
