"""KV caches of a pool of slots, for decoding steps in C: each row is at a step of its own."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from transduce.models.memory import Memory, lengths_seen
from transduce.runtime.c.stack import Step
from transduce.runtime.c_transformer import CTransformerSteps


class CTransformerSlots:
    """Slots hold a sentence each, with `beam` rows for its hypotheses. Rows that a step leaves out
    cost nothing; memory is taken as it is first written."""

    def __init__(
        self, steps: CTransformerSteps, slots: int, beam: int, source: int, target: int
    ) -> None:
        """source and target: the largest numbers of encoder states and of steps."""
        self.steps, self.beam, self.source = steps, beam, source
        layers, E = steps.shape
        rows = slots * beam
        self.past_TLRE = torch.empty(target, layers, rows, E)
        # The first column is the slot of the row, the others where each past step was written.
        self.origins_RT = torch.zeros(rows, 1 + target, dtype=torch.int32)
        self.origins_RT[:, 0] = torch.arange(rows) // beam
        self.lengths_B = torch.zeros(slots, dtype=torch.int64)
        self._memory: list[Tensor] = []
        self._call = Step()
        self._buffers = (self.past_TLRE.new_empty(0), self.past_TLRE.new_empty(0, 0))

    def fill(self, slots_B: Tensor, memory: Memory) -> None:
        """Put the encoder outputs of sentences into these slots."""
        lengths_B = lengths_seen(memory)
        assert lengths_B is not None
        S, slots = memory.states_BSD.shape[1], len(self.lengths_B)
        layers = self.steps.projected(memory)
        if not self._memory:
            self._memory = [
                torch.empty(slots, self.source, layer_BSE.shape[-1]) for layer_BSE in layers
            ]
            self._set_addresses()
        for kept_BSE, layer_BSE in zip(self._memory, layers, strict=True):
            kept_BSE[slots_B, :S] = layer_BSE.float()
        self.lengths_B[slots_B] = lengths_B.long()

    def _set_addresses(self) -> None:
        T, _, rows, _ = self.past_TLRE.shape
        addresses = [kept.data_ptr() for kept in self._memory]
        self._addresses = (ctypes.c_void_p * len(addresses))(*addresses)
        places = max(T, self.source)
        room = self.past_TLRE.new_empty(self.steps.room(rows, places), dtype=torch.uint8)
        self._buffers = (room, self.past_TLRE.new_empty(rows, self.steps.vocabulary))
        call = self._call
        call.past, call.most_rows, call.most_steps = self.past_TLRE.data_ptr(), rows, T
        call.origins, call.lengths = self.origins_RT.data_ptr(), self.lengths_B.data_ptr()
        call.memory, call.memory_length = ctypes.addressof(self._addresses), self.source
        call.room = room.data_ptr()

    def step(self, tokens_R: Tensor, rows_R: Tensor, steps_R: Tensor, longest: int) -> Tensor:
        """Log-probabilities_RV of the token after tokens_R, in these rows at these steps, the
        largest of which is `longest`. The next step overwrites them."""
        call, log_probs_RV = self._call, self._buffers[1][: len(tokens_R)]
        call.rows, call.step = len(tokens_R), longest
        call.tokens, call.log_probs = tokens_R.data_ptr(), log_probs_RV.data_ptr()
        call.slots, call.steps = rows_R.data_ptr(), steps_R.data_ptr()
        self.steps.advance(call, tokens_R)
        return log_probs_RV
