"""Continuous batching on a CPU in C: each sentence is at a step of its own, in a slot."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from transduce.models.encoder_output import EncoderOutput, visible_lengths
from transduce.runtime.structures import Slots, Step
from transduce.runtime.transformer import CTransformerSteps


class CTransformerSlots:
    """The KV caches and the search of a pool of slots, each with `beam` hypotheses of a sentence.

    Slots without work cost nothing; memory is taken as it is first written.
    """

    def __init__(
        self,
        steps: CTransformerSteps,
        slots: int,
        beam: int,
        nbest: int,
        source: int,
        penalties_T: Tensor,
        special: tuple[int, int, int],
        minimum: int = 0,
        maximum: int | None = None,
    ) -> None:
        """source: the largest number of encoder states. penalties_T: the length penalty of each
        length, from 0 to one more than the largest. special: PAD, BEGIN and END. minimum: the
        minimum length, END included; maximum: finished hypotheses after which a search stops."""
        self.steps, self.beam, self.source = steps, beam, source
        layers, E = steps.shape
        rows, T = slots * beam, len(penalties_T) - 2
        self.past_TLRE = torch.empty(T, layers, rows, E)
        # The first column is the slot of the row, the others where each past step was written.
        self.origins_RT = torch.zeros(rows, 1 + T, dtype=torch.int32)
        self.origins_RT[:, 0] = torch.arange(rows) // beam
        self.lengths_B = torch.zeros(slots, dtype=torch.int64)
        self.open_B = torch.zeros(slots, dtype=torch.int32)
        self.limits_B, self.steps_B, self.finished_B = torch.zeros(3, slots, dtype=torch.int64)
        self.reached_BN = torch.full((slots, beam), -torch.inf)
        self.scores_BN, self.totals_BN = torch.full((2, slots, nbest), -torch.inf)
        self.found_BNT = torch.zeros(slots, nbest, T, dtype=torch.int32)
        last_BN, row_R, row_step_R, row_token_R = torch.zeros(4, rows, dtype=torch.int64)
        self._last_BN = last_BN.view(slots, beam)
        self._memory: list[Tensor] = []
        V = steps.vocabulary
        self._log_probs_RV = self.past_TLRE.new_empty(rows, V)
        arrays = {
            "penalties": penalties_T,
            "open": self.open_B,
            "steps": self.steps_B,
            "limits": self.limits_B,
            "finished": self.finished_B,
            "reached": self.reached_BN,
            "last": self._last_BN,
            "written": torch.zeros(rows, T, dtype=torch.int32),
            "scores": self.scores_BN,
            "totals": self.totals_BN,
            "found": self.found_BNT,
            "row": row_R,
            "row_step": row_step_R,
            "row_token": row_token_R,
            "best": torch.empty(rows, 2 * beam),
            "best_token": torch.empty(rows, 2 * beam, dtype=torch.int64),
            "old": torch.empty(2, beam, T + 1, dtype=torch.int32),
        }
        self._arrays = {name: array.contiguous() for name, array in arrays.items()}
        pad, begin, self._end = special
        self._begin = begin
        numbers = {"slots": slots, "beam": beam, "nbest": nbest, "target": T, "vocabulary": V}
        numbers |= {"pad": pad, "begin": begin, "end": self._end}
        numbers |= {"min_length": minimum, "max_finished": maximum or 0}
        addresses = {name: array.data_ptr() for name, array in self._arrays.items()}
        self._search = Slots(**numbers, **addresses)
        self._call = Step(
            past=self.past_TLRE.data_ptr(),
            max_rows=rows,
            max_steps=T,
            origins=self.origins_RT.data_ptr(),
            lengths=self.lengths_B.data_ptr(),
            memory_length=source,
            log_probs=self._log_probs_RV.data_ptr(),
        )
        self._workspace = torch.empty(steps.workspace(rows, max(T, source)), dtype=torch.uint8)
        self._call.workspace = self._workspace.data_ptr()

    def fill(self, slots_B: Tensor, memory: EncoderOutput, limits_B: Tensor) -> None:
        """Begin with new sentences in these slots, given encoder outputs and maximum lengths."""
        lengths_B = visible_lengths(memory)
        assert lengths_B is not None
        S, slots = memory.states_BSD.shape[1], len(self.lengths_B)
        first = not self._memory
        whole = first and self.source == S and torch.equal(slots_B, torch.arange(slots))
        # One layer at a time: all of them at once would take as much memory as is kept.
        for number, layer_BSE in enumerate(self.steps.projected(memory)):
            layer_BSE = layer_BSE.float()
            if whole:
                self._memory.append(layer_BSE.contiguous())
                continue
            if first:
                self._memory.append(torch.empty(slots, self.source, layer_BSE.shape[-1]))
            self._memory[number][slots_B, :S] = layer_BSE
        if first:
            addresses = [kept.data_ptr() for kept in self._memory]
            self._addresses = (ctypes.c_void_p * len(addresses))(*addresses)
            self._call.memory = ctypes.addressof(self._addresses)
        self.lengths_B[slots_B] = lengths_B.long()
        self.limits_B[slots_B] = limits_B
        self.steps_B[slots_B] = 0
        self.finished_B[slots_B] = 0
        self.scores_BN[slots_B] = -torch.inf
        self.reached_BN[slots_B] = -torch.inf
        self.reached_BN[slots_B, 0] = 0.0
        self._last_BN[slots_B, 0] = self._begin
        self.open_B[slots_B] = 1

    def advance(self, steps: int, seconds: float) -> list[bool]:
        """Steps of all slots, so many at least and for about that long; whether each still has
        work."""
        self.steps.advance(self._call, self._search, len(self.past_TLRE), steps, seconds)
        return self.open_B.bool().tolist()

    def found(self, slots: list[int]) -> list[list[tuple[list[int], float, float]]]:
        """The hypotheses of these slots, best first: tokens, score and log-probability."""
        every = []
        for slot in slots:
            scores, totals = self.scores_BN[slot].tolist(), self.totals_BN[slot].tolist()
            length = int(self.steps_B[slot])
            texts = self.found_BNT[slot, :, :length].tolist()
            each = zip(texts, scores, totals, strict=True)
            kept = [one for one in each if one[1] > -torch.inf]
            every.append(
                [(ids[: ids.index(self._end)], score, total) for ids, score, total in kept]
            )
        return every
