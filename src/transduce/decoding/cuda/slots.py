"""Continuous batching on a GPU: sentences take slots of a fixed size; steps are CUDA graphs.

Every row has its own step count, so when a sentence ends, the next one takes its slot while the
others continue. Everything that a step does, network and search, is recorded as a CUDA graph and
launched by one call; the host checks only now and then which sentences have ended. The hypotheses
are those of search/greedy.py and search/beam.py, which also handle constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.decoding.cuda.recorded import Recorded
from transduce.decoding.cuda.slot_search import SlotSearch
from transduce.decoding.search.continuous_batching import Job, Shape
from transduce.decoding.search.rules import at_limit, obey, too_early
from transduce.models import EncoderDecoder
from transduce.models.decoders import TransformerDecoder
from transduce.nn.attention.kv_slots import CrossAttentionSlots, SelfAttentionSlots
from transduce.nn.attention.short import LONGEST
from transduce.nn.masks import Mask, Segments, padding
from transduce.nn.triton import early, kernels

# Logits per Triton program, and its warps: for the best token alone, and for several tokens.
ONE_OF, MANY_OF = (4096, 8), (512, 1)
# Tiles of the kernel that also computes the logits: rows, tokens, inner block.
FEW_ROWS = {"ROWS": 16, "COLUMNS": 64, "BLOCK": 128, "num_warps": 4, "num_stages": 3}
SOME_ROWS = {"ROWS": 64, "COLUMNS": 128, "BLOCK": 64, "num_warps": 4, "num_stages": 4}
MANY_ROWS = {"ROWS": 128, "COLUMNS": 128, "BLOCK": 64, "num_warps": 8, "num_stages": 3}
STEPS = 8  # between two checks by the host


class Slots(SlotSearch):
    """A pool of slots, and the step that advances all of them."""

    def __init__(self, network: EncoderDecoder, shape: Shape) -> None:
        decoder = network.decoder
        assert isinstance(decoder, TransformerDecoder)
        weight = network.head.weight
        super().__init__(shape, weight.device)
        self.network, self.decoder = network, decoder
        B, N, S, T = shape.slots, shape.beam, shape.source, shape.target
        E = 2 * decoder.stack[0].self_attention.width
        self.own = [
            SelfAttentionSlots(weight.new_zeros(B * N, T, E), self.steps_R, self.origin_RT)
            for _ in decoder.blocks
        ]
        self.source = [
            CrossAttentionSlots(weight.new_zeros(B, S, E), self.source_lengths_B, N)
            for _ in decoder.blocks
        ]
        self.report_BNE = torch.zeros(
            B, shape.nbest, 3 + T, dtype=torch.float64, device=self.device
        )  # each slot's hypotheses: whether it is open, score, log-probability, tokens
        self._last_report = np.zeros(self.report_BNE.shape)
        self._advance = Recorded(self._steps, network)
        self._entries: dict[int, tuple[Tensor, Recorded]] = {}

    def free(self) -> None:
        """Free its CUDA graphs; it is not used any more."""
        for recorded in (self._advance, *(enter for _, enter in self._entries.values())):
            recorded.free()
        self._entries.clear()

    # ------------------------------------------------------------------------------ in and out

    def fill(self, slots: list[int], jobs: Sequence[Job]) -> None:
        """Put new sentences into these slots."""
        count = 1 << (len(jobs) - 1).bit_length()
        # Powers of two, for few different graphs; the rest repeats the last sentence.
        rows = np.zeros((count, 3 + self.shape.source), np.int64)
        lengths = np.array([len(job.source) for job in jobs])
        rows[: len(jobs), 0] = slots
        rows[: len(jobs), 1] = [job.limit for job in jobs]
        rows[: len(jobs), 2] = lengths + 1
        tokens = chain.from_iterable(job.source for job in jobs)
        sources = rows[: len(jobs), 3:]
        sources[np.arange(self.shape.source) < lengths[:, None]] = np.fromiter(
            tokens, np.int64, int(lengths.sum())
        )
        sources[np.arange(len(jobs)), lengths] = END
        rows[len(jobs) :] = rows[len(jobs) - 1]
        if count not in self._entries:
            still_BE = torch.zeros(rows.shape, dtype=torch.int64, device=self.device)
            enter = Recorded(partial(self._enter, still_BE), self.network)
            self._entries[count] = (still_BE, enter)
        still_BE, enter = self._entries[count]
        still_BE.copy_(torch.from_numpy(rows))
        enter()

    def _enter(self, rows_BE: Tensor) -> None:
        """Encode sentences, given slot, limit, length and tokens, and reset their slots."""
        slots_B, limits_B, lengths_B, source_BS = torch.split(
            rows_BE, [1, 1, 1, self.shape.source], dim=1
        )
        slots_B, lengths_B = slots_B.squeeze(1), lengths_B.squeeze(1)
        states_BSD = self._encode(source_BS, lengths_B)
        for block, past in zip(self.decoder.stack, self.source, strict=True):
            memory_BSE = block.project_memory(states_BSD)
            wide(past.store_BSE).index_copy_(0, slots_B, wide(memory_BSE))
        self._reset(slots_B, lengths_B, limits_B.squeeze(1), BEGIN)

    def _encode(self, source_BS: Tensor, lengths_B: Tensor) -> Tensor:
        """The encoder's states; those after a source's end are not used."""
        B, S = source_BS.shape
        network, x_BSD = self.network, self.network.front(source_BS)
        half = x_BSD.is_cuda and x_BSD.dtype == torch.bfloat16
        if not half or S > LONGEST or not network.packs(S):
            memory = network.encoder(x_BSD, lengths_B, padding(lengths_B, S))
            return memory.states_BSD  # type: ignore[no-any-return]
        # Packed into one row, for the kernels of short sequences: each source, then its padding.
        starts_B = torch.arange(0, B * S, S, device=self.device)
        ends_2B = torch.stack([starts_B + lengths_B, starts_B + S], dim=1).flatten()
        offsets = torch.cat([starts_B[:1], ends_2B]).int()
        mask = Mask(segments=Segments(offsets, offsets, S))
        memory = network.encoder(x_BSD.view(1, B * S, -1), offsets, mask)
        return memory.states_BSD.view(B, S, -1)  # type: ignore[no-any-return]

    def go(self) -> list[bool]:
        """Advance by STEPS steps; whether each slot still has work."""
        self._advance()
        self._last_report = self.report_BNE.cpu().numpy()
        working: list[bool] = (self._last_report[:, 0, 0] != 0).tolist()
        return working

    def _report(self, slots: list[int]) -> NDArray[np.float64]:
        return self._last_report[slots]

    # ------------------------------------------------------------------------------- one step

    def _steps(self) -> None:
        for _ in range(STEPS):
            self._step()
        # Everything the host reads is in one tensor: each copy from the device synchronizes.
        open_BN = self.open_B[:, None].expand_as(self.ended_BN)
        values_BN3 = torch.stack([open_BN.float(), self.ended_BN, self.total_BN], dim=2)
        self.report_BNE[:, :, :3] = values_BN3
        self.report_BNE[:, :, 3:] = self.ended_BNT

    def _step(self) -> None:
        features_RD = self.decoder.advance(self.tokens_R, self.own, self.source)
        if self.shape.beam == 1:
            self._choose(features_RD)
        else:
            scores_RC, token_RC, masses_RC = self._top(features_RD, 2 * self.shape.beam)
            self._beam(scores_RC - masses_RC.logsumexp(dim=-1, keepdim=True), token_RC)

    def _choose(self, features_RD: Tensor) -> None:
        """Greedy search: the best token of each row."""
        found = self._top(features_RD, 1)
        if self.device.type == "cuda":
            self._settle(*found)
            return
        scores_BC, tokens_BC, masses_BC = found
        best_B1 = scores_BC.argmax(dim=-1, keepdim=True)
        scores_B = scores_BC.gather(1, best_B1).squeeze(1) - masses_BC.logsumexp(dim=-1)
        self._greedy(scores_B, tokens_BC.gather(1, best_B1).squeeze(1))

    def _settle(self, scores_BC: Tensor, tokens_BC: Tensor, masses_BC: Tensor) -> None:
        """The rest of a greedy step in one kernel."""
        kernels().settle[(self.shape.slots,)](
            scores_BC,
            tokens_BC,
            masses_BC,
            self.tokens_R,
            self.open_B,
            self.steps_R,
            self.written_BNT,
            self.reached_BN,
            self.ended_BN,
            self.total_BN,
            scores_BC.shape[1],
            self.shape.target,
            self.shape.length_penalty,
            END=END,
            WIDTH=1 << (scores_BC.shape[1] - 1).bit_length(),
            num_warps=1,
            **early(self.device),
        )

    def _top(self, features_RD: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and tokens that include the `count` most likely allowed tokens of each row.

        The third result holds partial log-sum-exps of each row, over all tokens.
        """
        head, shape = self.network.head, self.shape
        if count == 1 and features_RD.is_cuda and head.weight.dtype == torch.bfloat16:
            return self._best(head.narrow(features_RD).contiguous())
        logits_RV = head.products(features_RD)
        R, V = logits_RV.shape
        if self.device.type == "cuda":
            chunk, warps = ONE_OF if count == 1 else MANY_OF
            chunks = -(-V // chunk)
            values_RC = torch.empty(R, chunks * count, device=self.device)
            tokens_RC = torch.empty(R, chunks * count, dtype=torch.int64, device=self.device)
            masses_RC = torch.empty(R, chunks, device=self.device)
            kernels().top_tokens[(R, chunks)](
                logits_RV, head.bias, self.steps_R, self.limits_B, values_RC, tokens_RC, masses_RC,
                V, shape.beam, shape.least,
                C=count, PAD=PAD, BEGIN=BEGIN, END=END, BLOCK=chunk, num_warps=warps,
                **early(self.device),
            )  # fmt: skip
            return values_RC, tokens_RC, masses_RC
        logits_RV = logits_RV + head.bias
        masses_R1 = logits_RV.logsumexp(dim=-1, keepdim=True)
        last_R = at_limit(self.steps_R, self.limits_B.repeat_interleave(shape.beam))
        obey(logits_RV, too_early(self.steps_R, shape.least), last_R)
        found = logits_RV.topk(min(count, V), dim=-1)
        return found.values, found.indices, masses_R1

    def _best(self, narrow_RE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same for the best token alone, by a kernel that never stores the logits."""
        head, (R, E) = self.network.head, narrow_RE.shape
        V = len(head.weight)
        tile = FEW_ROWS if R <= 16 else SOME_ROWS if R <= 64 else MANY_ROWS
        chunks = -(-V // tile["COLUMNS"])
        values_RC, masses_RC = torch.empty(2, R, chunks, device=self.device)
        tokens_RC = torch.empty(R, chunks, dtype=torch.int64, device=self.device)
        kernels().best_tokens[(-(-R // tile["ROWS"]), chunks)](
            narrow_RE, head.weight, head.bias, self.steps_R, self.limits_B,
            values_RC, tokens_RC, masses_RC, R, E, V, self.shape.least,
            PAD=PAD, BEGIN=BEGIN, END=END, **tile, **early(self.device),
        )  # fmt: skip
        return values_RC, tokens_RC, masses_RC


def wide(x: Tensor) -> Tensor:
    """A view as int64: torch copies rows element by element."""
    return x.view(torch.int64) if x.shape[-1] * x.itemsize % 8 == 0 else x
