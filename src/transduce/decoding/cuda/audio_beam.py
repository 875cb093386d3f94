"""Beam search of audio on a GPU: the slots of slots.py, after a prompt and by rules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.decoding.cuda.audio_slots import TokenRules, ban, read_prompt
from transduce.decoding.cuda.slots import Slots, wide
from transduce.decoding.search.continuous_batching import Shape
from transduce.models import EncoderDecoder
from transduce.models.memory import Memory


class AudioBeamSlots(Slots):
    """A pool of slots, and the step that advances all of them; the target holds the prompt too."""

    def __init__(
        self, network: EncoderDecoder, shape: Shape, rules: TokenRules | None = None
    ) -> None:
        super().__init__(network, shape)
        self.rules = rules
        # Of the KV cache, which holds the prompt too; steps are those of the output.
        self.lengths_R = torch.zeros_like(self.steps_R)
        for own in self.own:
            own.lengths_R = self.lengths_R
        self.last_R, self.before_R, self.latest_R = self.tokens_R.new_zeros(3, len(self.tokens_R))

    def fill_with(
        self, slots: Sequence[int], memory: Memory, prompt: Sequence[int], limits: Sequence[int]
    ) -> None:
        """Put recordings into these slots. limits: the maximum length of each output, with END."""
        slots_B = torch.tensor(slots, device=self.device)
        N, S, P = self.shape.beam, memory.states_BSD.shape[1], len(prompt) - 1
        read = read_prompt(self.decoder, memory, prompt)
        for past, memory_BSE in zip(self.source, read.source_BSE, strict=True):
            wide(past.store_BSE[:, :S]).index_copy_(0, slots_B, wide(memory_BSE))
        for own, own_BPE in zip(self.own, read.own_BPE, strict=P > 0):
            wide(own.store_RTE[:, :P]).index_copy_(0, slots_B * N, wide(own_BPE))
        assert self.origin_RT is not None
        # All hypotheses of a recording read the prompt in the row of the first.
        first_BNP = (slots_B * N).int()[:, None, None].expand(-1, N, P)
        self.origin_RT.view(-1, N, self.shape.target)[:, :, :P].index_copy_(0, slots_B, first_BNP)
        lengths_B = memory.lengths_B.to(self.device)
        self._reset(slots_B, lengths_B, torch.tensor(limits, device=self.device), prompt[-1])
        self.lengths_R.view(-1, N).index_fill_(0, slots_B, P)
        for zeroed_R in (self.before_R, self.latest_R):
            zeroed_R.view(-1, N).index_fill_(0, slots_B, 0)

    def move_from(self, other: AudioBeamSlots, slots: Sequence[int]) -> None:
        """Take over what is in these slots of another pool, into the first of this one."""
        N, slots_B = self.shape.beam, torch.tensor(slots, device=self.device)
        place_B = torch.arange(len(slots), device=self.device)
        rows_N = torch.arange(N, device=self.device)
        here_R, there_R = ((x_B[:, None] * N + rows_N).flatten() for x_B in (place_B, slots_B))
        for mine, theirs in zip(self._state, other._state, strict=True):
            mine[here_R] = theirs[there_R]
        for mine, theirs in zip(self._state_of_slots, other._state_of_slots, strict=True):
            mine[place_B] = theirs[slots_B]
        assert self.origin_RT is not None
        self.origin_RT[here_R] += (here_R - there_R).int()[:, None]  # rows have other numbers here
        other.open_B[slots_B] = False

    @property
    def _state(self) -> list[Tensor]:
        """What there is of each hypothesis."""
        assert self.origin_RT is not None
        return [
            *(one.store_RTE for one in self.own),
            *(self.origin_RT, self.steps_R, self.lengths_R, self.tokens_R),
            *(self.last_R, self.before_R, self.latest_R),
        ]

    @property
    def _state_of_slots(self) -> list[Tensor]:
        return [
            *(one.store_BSE for one in self.source),
            *(self.source_lengths_B, self.limits_B, self.open_B, self.count_B),
            *(self.written_BNT, self.reached_BN, self.ended_BN, self.ended_BNT, self.total_BN),
        ]

    # ------------------------------------------------------------------------------- one step

    def _step(self) -> None:
        self.last_R.copy_(self.tokens_R)
        super()._step()

    def _top(self, features_RD: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        head, shape = self.network.head, self.shape
        logits_RV = head.products(features_RD) + head.bias
        mass_R1 = logits_RV.logsumexp(dim=1, keepdim=True)
        limit_R = self.limits_B.repeat_interleave(shape.beam, output_size=len(self.steps_R))
        last = (self.tokens_R, self.before_R, self.latest_R)
        lengths = (self.steps_R, limit_R, shape.least)
        ban(logits_RV, mass_R1.squeeze(1), self.rules, last, lengths)
        found = logits_RV.topk(min(count, logits_RV.shape[1]), dim=1)
        return found.values, found.indices, mass_R1

    def _move(self, parent_BN: Tensor, step_B: Tensor) -> None:
        """Reorder also the last tokens of each hypothesis."""
        B, N = parent_BN.shape
        super()._move(parent_BN, self.lengths_R.view(B, N)[:, 0].long())
        parent_R = (parent_BN + torch.arange(0, B * N, N, device=self.device)[:, None]).flatten()
        self.before_R.copy_(self.last_R[parent_R])
        if self.rules is not None:
            number_R = self.tokens_R - self.rules.first_time + 1
            self.latest_R.copy_(torch.where(number_R > 0, number_R, self.latest_R[parent_R]))

    def _count(self) -> None:
        super()._count()
        N = self.shape.beam
        self.lengths_R += self.open_B.repeat_interleave(N, output_size=len(self.lengths_R))
        self.source_lengths_B *= self.open_B  # of a recording that has ended nothing is read
