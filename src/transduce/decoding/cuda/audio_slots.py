"""Greedy search of audio on a GPU: recordings take slots of a fixed size; steps are CUDA graphs.

As in slots.py, with three differences: the encoder runs outside the graph, as its work is large
enough to hide the launches; an output may begin with a prompt, which is read there too; and rules
say which tokens may come next. A step is torch's own operations, as rules need the logits of all
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import END
from transduce.decoding.constraints.constraint import NEVER
from transduce.decoding.cuda.recorded import Recorded
from transduce.decoding.cuda.slots import wide
from transduce.decoding.search.continuous_batching import Shape
from transduce.decoding.search.hypothesis import Hypothesis, penalty
from transduce.decoding.search.rules import at_limit, cut, obey, too_early
from transduce.models import EncoderDecoder
from transduce.models.decoders import TransformerDecoder
from transduce.models.memory import Memory
from transduce.nn.attention.kv_slots import CrossAttentionSlots, SelfAttentionSlots

STEPS = 4  # between two checks by the host, which let new recordings in


class TokenRules(Protocol):
    """Which tokens may come next; its values are part of a recorded graph."""

    def ban(self, logits_RV: Tensor, last: tuple[Tensor, Tensor, Tensor], length_R: Tensor) -> None:
        """Write NEVER where a token is banned. last: the last token of each row, the one before
        it, and 1 more than the number of its last timestamp, or 0. length_R: tokens so far."""

    first_time: int
    """The first timestamp; those after it are timestamps too."""


@dataclass(frozen=True)
class Read:
    """What decoder blocks keep of a recording and of the prompt before its last token."""

    source_BSE: list[Tensor]
    """Projected encoder states, one of each block."""
    own_BPE: list[Tensor]
    """Keys and values of the prompt; none where it is a single token."""


def read_prompt(decoder: TransformerDecoder, memory: Memory, prompt: Sequence[int]) -> Read:
    """Read a prompt in one pass; its last token is left to the first step."""
    kind = next(decoder.parameters()).dtype
    state = decoder.start(replace(memory, states_BSD=memory.states_BSD.to(kind)))
    before_T = torch.tensor(prompt[:-1], device=memory.states_BSD.device)
    own = []
    if len(before_T):
        decoder.read(before_T.expand(len(memory.states_BSD), -1), state)
        for cache in state.caches:
            sides = (side_BHPK.transpose(1, 2).flatten(2) for side_BHPK in cache.stored())
            own.append(torch.cat([*sides], dim=-1))
    return Read(state.memory, own)


def ban(
    logits_RV: Tensor,
    mass_R: Tensor,
    rules: TokenRules | None,
    last: tuple[Tensor, Tensor, Tensor],
    lengths: tuple[Tensor, Tensor, int],
) -> None:
    """Write NEVER where a token may not come next, in place.

    mass_R: the logarithm of the sum of all. last: as in TokenRules. lengths: the tokens of each
    output so far, its greatest length and the minimum of all, both with END.
    """
    length_R, limit_R, least = lengths
    if rules is not None:
        rules.ban(logits_RV, last, length_R)
    last_R = at_limit(length_R, limit_R)
    # Where a timestamp has to come next, an output of the greatest length ends without it.
    cut(logits_RV, last_R & (logits_RV[:, END] == NEVER), mass_R)
    obey(logits_RV, too_early(length_R, least), last_R)


class AudioSlots:
    """A pool of slots, and the step that advances all of them."""

    def __init__(
        self, network: EncoderDecoder, shape: Shape, rules: TokenRules | None = None
    ) -> None:
        decoder = network.decoder
        assert isinstance(decoder, TransformerDecoder)
        self.network, self.decoder, self.shape, self.rules = network, decoder, shape, rules
        weight = network.head.weight
        self.device = device = weight.device
        B, S, T = shape.slots, shape.source, shape.target
        E = 2 * decoder.stack[0].self_attention.width

        def numbers(*size: int, kind: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*size, dtype=kind, device=device)

        self.steps_B = numbers(B, kind=torch.int32)
        self.source_lengths_B = numbers(B, kind=torch.int32)
        blocks = decoder.stack
        self.own = [SelfAttentionSlots(weight.new_zeros(B, T, E), self.steps_B) for _ in blocks]
        self.source = [
            CrossAttentionSlots(weight.new_zeros(B, S, E), self.source_lengths_B) for _ in blocks
        ]
        self.written_BT = numbers(B, T)
        self.given_lengths_B, self.limits_B = numbers(B), numbers(B)
        self.tokens_B, self.before_B, self.latest_B = numbers(B), numbers(B), numbers(B)
        self.open_B = numbers(B, kind=torch.bool)
        self.total_B = numbers(B, kind=torch.float64)
        self._advance = Recorded(self._steps, network)

    def free(self) -> None:
        """Free its CUDA graph; it is not used any more."""
        self._advance.free()

    # ------------------------------------------------------------------------------ in and out

    def fill_with(
        self, slots: Sequence[int], memory: Memory, prompt: Sequence[int], limits: Sequence[int]
    ) -> None:
        """Put recordings into these slots. limits: the maximum length of each output, with END."""
        slots_B = torch.tensor(slots, device=self.device)
        S, P = memory.states_BSD.shape[1], len(prompt) - 1
        read = read_prompt(self.decoder, memory, prompt)
        for past, memory_BSE in zip(self.source, read.source_BSE, strict=True):
            wide(past.store_BSE[:, :S]).index_copy_(0, slots_B, wide(memory_BSE))
        for own, own_BPE in zip(self.own, read.own_BPE, strict=P > 0):
            wide(own.store_RTE[:, :P]).index_copy_(0, slots_B, wide(own_BPE))
        lengths_B = memory.lengths_B.to(self.device, torch.int32)
        self.source_lengths_B.index_copy_(0, slots_B, lengths_B)
        self.limits_B.index_copy_(0, slots_B, torch.tensor(limits, device=self.device))
        self.given_lengths_B[slots_B] = len(prompt)
        self.tokens_B[slots_B] = prompt[-1]
        self.steps_B[slots_B] = P
        for zeroed in (self.before_B, self.latest_B, self.total_B):
            zeroed[slots_B] = 0
        self.open_B[slots_B] = True

    def move_from(self, other: AudioSlots, slots: Sequence[int]) -> None:
        """Take over what is in these slots of another pool, into the first of this one."""
        slots_B = torch.tensor(slots, device=self.device)
        for mine, theirs in zip(self._state, other._state, strict=True):
            mine[: len(slots)] = theirs.index_select(0, slots_B)
        other.open_B[slots_B] = False

    @property
    def _state(self) -> list[Tensor]:
        return [
            *(one.store_RTE for one in self.own),
            *(one.store_BSE for one in self.source),
            *(self.steps_B, self.source_lengths_B, self.written_BT, self.given_lengths_B),
            *(self.limits_B, self.tokens_B, self.before_B, self.latest_B),
            *(self.open_B, self.total_B),
        ]

    def go(self) -> list[bool]:
        """Advance by STEPS steps; whether each slot still has work."""
        self._advance()
        working: list[bool] = self.open_B.tolist()
        return working

    def take(self, slots: Sequence[int]) -> list[list[Hypothesis]]:
        """The hypotheses of the recordings in these slots; none where weights are no numbers."""
        slots_B = torch.tensor(slots, device=self.device)
        tokens = self.written_BT[slots_B].cpu().numpy()
        sizes = (tokens == END).argmax(axis=1).tolist()
        found = []
        for row, size, total in zip(tokens, sizes, self.total_B[slots_B].tolist(), strict=True):
            score = total / float(penalty(size + 1, self.shape.length_penalty))
            kept = [Hypothesis(row[:size].tolist(), score, total)]
            found.append([] if np.isnan(total) or total == NEVER else kept)
        return found

    # ------------------------------------------------------------------------------- one step

    def _steps(self) -> None:
        for _ in range(STEPS):
            self._step()

    def _step(self) -> None:
        """The best token of each row; rows that have ended do not change.

        No operation has a shape that depends on values, and none waits for the device.
        """
        features_BD = self.decoder.advance(self.tokens_B, self.own, self.source)
        head = self.network.head
        logits_BV = head.products(features_BD) + head.bias
        mass_B = logits_BV.logsumexp(dim=1)
        length_B = self.steps_B + 1 - self.given_lengths_B  # of the output
        last = (self.tokens_B, self.before_B, self.latest_B)
        ban(logits_BV, mass_B, self.rules, last, (length_B, self.limits_B, self.shape.least))
        value_B, token_B = logits_BV.max(dim=1)
        self.total_B += torch.where(self.open_B, value_B - mass_B, 0.0)
        place_B1 = length_B.clamp(min=0).long()[:, None]
        held_B1 = self.written_BT.gather(1, place_B1)
        written_B1 = torch.where(self.open_B[:, None], token_B[:, None], held_B1)
        self.written_BT.scatter_(1, place_B1, written_B1)
        self.before_B.copy_(torch.where(self.open_B, self.tokens_B, self.before_B))
        if self.rules is not None:
            number_B = token_B - self.rules.first_time + 1
            timed_B = self.open_B & (number_B > 0)
            self.latest_B.copy_(torch.where(timed_B, number_B, self.latest_B))
        self.open_B &= token_B != END
        self.tokens_B.copy_(torch.where(self.open_B, token_B, self.tokens_B))
        self.steps_B += self.open_B
        # Cross-attention takes most of a step: of a recording that has ended nothing is read.
        self.source_lengths_B *= self.open_B
