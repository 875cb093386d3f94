"""Continuous batching on a GPU: sentences take slots of a fixed size; steps are CUDA graphs.

Every row has its own step count, so when a sentence ends, the next one takes its slot while the
others continue. Everything that a step does, network and search, is recorded as a CUDA graph and
launched by one call; the host checks only now and then which sentences have ended. The hypotheses
are those of search/greedy.py and search/beam.py, which also handle constraints.

Recordings take slots likewise, with two differences: their encoder runs outside the graph, as its
work is large enough to hide the launches; and with rules on which tokens may come next, outputs
begin after a prompt, which is read there too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.decoding.search.beam import (
    Ended,
    add_ended,
    best_candidates,
    extended,
    is_done,
    that_stay_open,
)
from transduce.decoding.search.continuous_batching import Job, Shape
from transduce.decoding.search.hypothesis import Hypothesis, penalty
from transduce.decoding.search.rules import NEG_INF, at_limit, cut, obey, too_early
from transduce.models import EncoderDecoder
from transduce.models.decoders import TransformerDecoder
from transduce.models.encoder_output import EncoderOutput
from transduce.models.speech import SpeechEncoderDecoder
from transduce.nn.attention.short import LONGEST
from transduce.nn.attention.static_kv_cache import (
    StaticCrossAttentionCache,
    StaticSelfAttentionCache,
)
from transduce.nn.masks import Mask, Segments, padding
from transduce.nn.triton import early, kernels


class Recorded:
    """Work on tensors at fixed addresses; on a GPU the second call records it as a CUDA graph."""

    def __init__(self, work: Callable[[], None], network: EncoderDecoder) -> None:
        self.work, self.network = work, network
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._read: list[Tensor] = []

    def __call__(self) -> None:
        self._calls += 1
        device = self.network.head.weight.device
        if device.type != "cuda" or self._calls == 1:  # the first call compiles the kernels
            self.work()
            return
        if self._graph is None:
            torch.cuda.synchronize(device)
            self._graph = torch.cuda.CUDAGraph()
            # thread_local: what another thread does with the device does not end the recording.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self.work()
            # A position table that grows is replaced; the graph still reads the old one.
            self._read = list(self.network.buffers())
        self._graph.replay()

    def free(self) -> None:
        """Free the graph now: the garbage collector might do so while another is recorded."""
        if self._graph is not None:
            torch.cuda.synchronize(self.network.head.weight.device)
            self._graph.reset()
        self._graph, self._calls = None, 0


# ------------------------------------------------------------------------------------------- slots


# Logits per Triton program, and its warps: for the best token alone, and for several tokens.
ONE_OF, MANY_OF = (4096, 8), (512, 1)
# Tiles of the kernel that also computes the logits: rows, tokens, inner block.
FEW_ROWS = {"ROWS": 16, "COLUMNS": 64, "BLOCK": 128, "num_warps": 4, "num_stages": 3}
SOME_ROWS = {"ROWS": 64, "COLUMNS": 128, "BLOCK": 64, "num_warps": 4, "num_stages": 4}
MANY_ROWS = {"ROWS": 128, "COLUMNS": 128, "BLOCK": 64, "num_warps": 4, "num_stages": 3}
# The widest beam of a step in one kernel, which holds the square of its candidates: Triton takes no
# tensor of more than 2**20 elements, and registers are few.
WIDEST_BEAM = 32
MAX_INT = 2**31 - 1  # of int32
STEPS, STEPS_OF_AUDIO = 8, 4  # between two checks by the host, which let others in
STEPS_OF_GRAPH = 4  # the GPU begins when the first of these graphs is there, not all steps
ALIGNED = 16  # bytes: kernels read as many at once where an address is such a multiple
AHEAD = 2  # graphs that wait for the GPU before the host reads the report of the first
TOGETHER = 128  # sentences that are encoded first: the host prepares others meanwhile


class Report(NamedTuple):
    """What the host reads of the slots, in one block of memory: one copy brings it from a GPU, and
    no kernel has to gather it."""

    memory: Tensor
    tokens_BNT: Tensor
    score_BN: Tensor
    total_BN: Tensor
    open_B: Tensor

    @classmethod
    def empty(cls, shape: Shape, device: torch.device, pinned: bool = False) -> Report:
        B, N, T = shape.slots, shape.nbest, shape.target
        parts = (
            (torch.int64, (B, N, T)),
            (torch.float32, (B, N)),
            (torch.float32, (B, N)),
            (torch.bool, (B,)),
        )
        sizes = [math.prod(size) * kind.itemsize for kind, size in parts]
        starts = [0, *accumulate(-(-size // ALIGNED) * ALIGNED for size in sizes)]
        memory = torch.zeros(starts[-1], dtype=torch.uint8, device=device, pin_memory=pinned)
        views = (
            memory[start : start + size].view(kind).view(shaped)
            for start, size, (kind, shaped) in zip(starts, sizes, parts, strict=False)
        )
        return cls(memory, *views)

    def of(self, slots: list[int]) -> tuple[NDArray[Any], ...]:
        """Tokens, scores and log-probabilities of the hypotheses in some slots."""
        parts = (self.tokens_BNT, self.score_BN, self.total_BN)
        if not self.memory.is_cuda:  # torch would divide this little among all its threads
            return tuple(part.numpy()[slots] for part in parts)
        places_B = torch.tensor(slots, device=self.memory.device)
        return tuple(part[places_B].cpu().numpy() for part in parts)


class HostReport:
    """A report as it was some steps ago, in the memory of the host."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.seen = Report.empty(shape, torch.device("cpu"), pinned=on_gpu)
        self._written = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def write(self, report: Report) -> None:
        """Once the GPU has come so far; the host does not wait."""
        self.seen.memory.copy_(report.memory, non_blocking=True)
        if self._written is not None:
            self._written.record()

    def wait(self) -> None:
        if self._written is not None:
            self._written.synchronize()


class TokenRules(Protocol):
    """Which tokens may come next; its values are part of a recorded graph."""

    def ban(self, logits_RV: Tensor, last: tuple[Tensor, Tensor, Tensor], length_R: Tensor) -> None:
        """Write NEG_INF where a token is banned. last: the last token of each row, the one before
        it, and 1 more than the number of its last timestamp, or 0. length_R: tokens so far."""

    first_time: int
    """The first timestamp; those after it are timestamps too."""


class BestOfChunks(NamedTuple):
    """Of each chunk of `size` tokens: the logit of its best allowed token, this token, and the
    log-sum-exp over all; and the logits of all tokens where they are kept, NEG_INF where one is
    not allowed."""

    values_RC: Tensor
    tokens_RC: Tensor
    masses_RC: Tensor
    logits_RV: Tensor | None
    size: int


class Slots:
    """A pool of slots, and the step that advances all of them.

    With rules, the target of its shape holds the prompt too.
    """

    def __init__(
        self, network: EncoderDecoder, shape: Shape, rules: TokenRules | None = None
    ) -> None:
        decoder = network.decoder
        assert isinstance(decoder, TransformerDecoder)
        self.network, self.decoder, self.shape, self.rules = network, decoder, shape, rules
        self.audio = isinstance(network, SpeechEncoderDecoder)
        weight = network.head.weight
        self.device = device = weight.device
        B, N, S, T = shape.slots, shape.beam, shape.source, shape.target

        # Where each sentence is, and what it has found.
        self.steps_R = torch.zeros(B * N, dtype=torch.int32, device=device)
        self.source_lengths_B = torch.zeros(B, dtype=torch.int32, device=device)
        self.limits_B = torch.ones(B, dtype=torch.int32, device=device)
        self.tokens_R = torch.full((B * N,), PAD, device=device)
        self._report = Report.empty(shape, device)
        self.open_B = self._report.open_B
        self.ended = Ended(self._report.score_BN, self._report.tokens_BNT, self._report.total_BN)
        for part, value in zip(self.ended, (NEG_INF, PAD, NEG_INF), strict=True):
            part.fill_(value)
        # Greedy search has one text, open or ended.
        self.written_BNT = (
            self.ended.tokens_BNT if N == 1 else torch.full((B, N, T), PAD, device=device)
        )
        self.reached_BN = torch.full((B, N), NEG_INF, device=device)
        self.count_B = torch.zeros(B, dtype=torch.int32, device=device)  # of finished hypotheses

        # The KV cache. Its lengths are those of the outputs, and with rules that of the prompt too.
        self.lengths_R = self.steps_R if rules is None else torch.zeros_like(self.steps_R)
        self.before_R, self.latest_R = self.tokens_R.new_zeros(2, B * N)  # as in TokenRules
        rows_R = torch.arange(B * N, dtype=torch.int32, device=device)
        self.origin_RT = rows_R[:, None].repeat(1, T) if N > 1 else None
        E = 2 * decoder.stack[0].self_attention.width
        self.own = [
            StaticSelfAttentionCache(weight.new_zeros(B * N, T, E), self.lengths_R, self.origin_RT)
            for _ in decoder.blocks
        ]
        self.source = [
            StaticCrossAttentionCache(weight.new_zeros(B, S, E), self.source_lengths_B, N)
            for _ in decoder.blocks
        ]

        # The oldest comes first; the last `launched` of them are not read yet.
        self._reports = deque(HostReport(shape, device) for _ in range(AHEAD))
        self.launched = 0
        self.steps_since_entry = 0
        self._advance = Recorded(self._some_steps, network)
        self._entries: dict[int, tuple[Tensor, Recorded]] = {}

    def free(self) -> None:
        """Free its CUDA graphs; it is not used any more."""
        entries = (enter for _, enter in self._entries.values())
        for recorded in (self._advance, *entries):
            recorded.free()
        self._entries.clear()

    # ------------------------------------------------------------------------------ in and out

    def fill(self, slots: list[int], jobs: Sequence[Job]) -> None:
        """Put new sentences into these slots."""
        self.launched = self.steps_since_entry = 0  # what an error has left alone is over
        start = 0
        while start < len(jobs):
            # While the GPU encodes some, the host prepares as many again.
            some = slice(start, start + max(TOGETHER, start))
            self._fill(slots[some], jobs[some])
            start = some.stop

    def _fill(self, slots: list[int], jobs: Sequence[Job]) -> None:
        count = 1 << (len(jobs) - 1).bit_length()
        # Powers of two, for few different graphs; the rest repeats the last sentence. In pinned
        # memory, as the host would otherwise wait for the device before it copies.
        given_BE = torch.zeros(
            count, 3 + self.shape.source, dtype=torch.int64, pin_memory=self.device.type == "cuda"
        )
        rows = given_BE.numpy()
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
        still_BE.copy_(given_BE, non_blocking=True)
        enter()

    def _enter(self, rows_BE: Tensor) -> None:
        """Encode sentences, given slot, limit, length and tokens, and reset their slots."""
        slots_B, limits_B, lengths_B, source_BS = torch.split(
            rows_BE, [1, 1, 1, self.shape.source], dim=1
        )
        slots_B, lengths_B = slots_B.squeeze(1), lengths_B.squeeze(1)
        states_BSD = self._encode(source_BS, lengths_B)
        for block, past in zip(self.decoder.stack, self.source, strict=True):
            _put(past.store_BSE, slots_B, block.project_memory(states_BSD))
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

    def fill_encoded(
        self,
        slots: Sequence[int],
        memory: EncoderOutput,
        prompt: Sequence[int],
        limits: Sequence[int],
    ) -> None:
        """Put recordings that are encoded into these slots, and read the prompt in one pass; its
        last token is left to the first step. Only slots with rules have a longer prompt.

        limits: the maximum length of each output, with END.
        """
        slots_B = torch.tensor(slots, device=self.device)
        N, P = self.shape.beam, len(prompt) - 1
        assert self.rules is not None or P == 0
        state = self.decoder.start(
            replace(memory, states_BSD=memory.states_BSD.to(self.network.head.weight.dtype))
        )
        for past, memory_BSE in zip(self.source, state.memory, strict=True):
            _put(past.store_BSE[:, : memory_BSE.shape[1]], slots_B, memory_BSE)
        if P:
            before_T = torch.tensor(prompt[:-1], device=self.device)
            self.decoder.read(before_T.expand(len(slots), -1), state)
            for own, cache in zip(self.own, state.caches, strict=True):
                sides = (side_BHPK.transpose(1, 2).flatten(2) for side_BHPK in cache.stored())
                _put(own.store_RTE[:, :P], slots_B * N, torch.cat([*sides], dim=-1))
            if self.origin_RT is not None:  # all hypotheses read the prompt in the first one's row
                first_BNP = (slots_B * N).int()[:, None, None].expand(-1, N, P)
                origin_BNT = self.origin_RT.view(-1, N, self.shape.target)
                origin_BNT[:, :, :P].index_copy_(0, slots_B, first_BNP)
        limits_B = torch.tensor(limits, device=self.device)
        self._reset(slots_B, memory.lengths_B.to(self.device), limits_B, prompt[-1])
        if self.rules is not None:
            for of_rows, value in ((self.lengths_R, P), (self.before_R, 0), (self.latest_R, 0)):
                of_rows.view(-1, N).index_fill_(0, slots_B, value)

    def _reset(self, slots_B: Tensor, lengths_B: Tensor, limits_B: Tensor, token: int) -> None:
        """Slots whose outputs begin after this token."""
        beam = self.shape.beam
        self.source_lengths_B.index_copy_(0, slots_B, lengths_B.int())
        self.limits_B.index_copy_(0, slots_B, limits_B.int())
        self.open_B.index_fill_(0, slots_B, value=True)
        self.steps_R.view(-1, beam).index_fill_(0, slots_B, 0)
        self.tokens_R.view(-1, beam).index_fill_(0, slots_B, token)
        self.reached_BN.index_fill_(0, slots_B, NEG_INF)
        self.reached_BN[:, :1].index_fill_(0, slots_B, 0.0)
        self.ended.score_BN.index_fill_(0, slots_B, NEG_INF)
        self.count_B.index_fill_(0, slots_B, 0)

    def move_from(self, other: Slots, slots: Sequence[int]) -> None:
        """Take over what is in these slots of another pool, into the first of this one."""
        N, slots_B = self.shape.beam, torch.tensor(slots, device=self.device)
        place_B = torch.arange(len(slots), device=self.device)
        rows_N = torch.arange(N, device=self.device)
        here_R, there_R = ((x_B[:, None] * N + rows_N).flatten() for x_B in (place_B, slots_B))
        for mine, theirs in zip(self._of_rows, other._of_rows, strict=True):
            mine[here_R] = theirs[there_R]
        for mine, theirs in zip(self._of_slots, other._of_slots, strict=True):
            mine[place_B] = theirs[slots_B]
        if self.origin_RT is not None:  # rows have other numbers here
            self.origin_RT[here_R] += (here_R - there_R).int()[:, None]
        other.open_B[slots_B] = False

    @property
    def _of_rows(self) -> list[Tensor]:
        """What there is of each hypothesis."""
        return [
            *(one.store_RTE for one in self.own),
            *([] if self.origin_RT is None else [self.origin_RT]),
            *(self.steps_R, self.lengths_R, self.tokens_R, self.before_R, self.latest_R),
        ]

    @property
    def _of_slots(self) -> list[Tensor]:
        return [
            *(one.store_BSE for one in self.source),
            *(self.source_lengths_B, self.limits_B, self.open_B, self.count_B),
            *(self.written_BNT, self.reached_BN, *self.ended),
        ]

    def close(self, slots: list[int]) -> None:
        """What is in these slots is no longer needed."""
        self.open_B[slots] = False

    def launch(self, steps: int = STEPS) -> bool:
        """Begin to advance; the GPU works while the host does other things."""
        steps = STEPS_OF_AUDIO if self.audio else steps
        for _ in range(steps // STEPS_OF_GRAPH):
            self._advance()
        if not self.audio:  # whose outputs are long: only those that have ended are read
            self._reports[0].write(self._report)
            self._reports.rotate(-1)
        self.launched += 1
        self.steps_since_entry += steps
        return True

    def launch_ahead(self, limit: int) -> None:
        """Launch steps before the report of the last ones is read: the GPU need not wait for the
        host. No sentence may enter until all reports are read. limit: the greatest number of steps
        that those in the slots take."""
        while self.launched < AHEAD and self.steps_since_entry < limit:
            self.launch(STEPS_OF_GRAPH)

    def go(self) -> list[bool]:
        """Advance by some steps; whether each slot still has work."""
        if not self.launched:
            self.launch()
        self.launched -= 1
        working: list[bool]
        if self.audio:
            working = self.open_B.tolist()
        else:
            self._last_report.wait()
            working = self._last_report.seen.open_B.tolist()
        return working

    @property
    def _last_report(self) -> HostReport:
        return self._reports[-1 - self.launched]

    def take(self, slots: list[int]) -> list[list[Hypothesis]]:
        """The hypotheses of what is in these slots, best first."""
        report = self._report if self.audio else self._last_report.seen
        tokens, scores, totals = report.of(slots)
        texts = tokens.reshape(-1, self.shape.target)
        ends = (texts == END).argmax(axis=1)
        # As lists: iterating over numpy values takes several times as long.
        columns = (texts, ends, scores.ravel(), totals.ravel())
        each = [
            Hypothesis(ids[:end], score, total)
            for ids, end, score, total in zip(*(x.tolist() for x in columns), strict=True)
        ]
        nbest = self.shape.nbest
        # NaN is no score either: there is nothing where weights are no numbers.
        return [
            [hypothesis for hypothesis in each[start : start + nbest] if hypothesis.score > NEG_INF]
            for start in range(0, len(each), nbest)
        ]

    # ------------------------------------------------------------------------------- one step

    def _some_steps(self) -> None:
        for _ in range(STEPS_OF_GRAPH):
            self._step()

    def _step(self) -> None:
        """No operation on a GPU has a shape that depends on values, and none waits for it."""
        features_RD = self.decoder.advance(self.tokens_R, self.own, self.source)
        last_R = self.tokens_R if self.rules is None else self.tokens_R.clone()
        parent_R = None
        if self.shape.beam == 1:
            self._greedy(*self._top(features_RD, 1))
        elif self._by_kernels:
            self._settle_beams(self._best_of_chunks(features_RD, keep=True))
        else:
            parent_R = self._beam(*self._top(features_RD, 2 * self.shape.beam))
        if self.rules is not None:
            self._remember(last_R, parent_R, self.rules.first_time)
        if self.audio:
            # Cross-attention takes most of a step: of a recording that has ended nothing is read.
            self.source_lengths_B *= self.open_B

    def _count(self, steps_R: Tensor) -> None:
        """Increment the step of open rows; others stay, so that nothing overflows."""
        steps_R.view(-1, self.shape.beam).add_(self.open_B[:, None])

    def _remember(self, last_R: Tensor, parent_R: Tensor | None, first_time: int) -> None:
        """What rules read of a hypothesis. last_R: the tokens before this step."""
        latest_R = self.latest_R
        if parent_R is not None:
            last_R, latest_R = last_R[parent_R], latest_R[parent_R]
        self.before_R.copy_(last_R)
        number_R = self.tokens_R - first_time + 1
        self.latest_R.copy_(torch.where(number_R > 0, number_R, latest_R))
        self._count(self.lengths_R)

    def _greedy(self, scores_BC: Tensor, tokens_BC: Tensor, masses_BC: Tensor) -> None:
        """Append the best token of each row; rows that have ended do not change."""
        if self.device.type == "cuda":
            self._settle(scores_BC, tokens_BC, masses_BC)
            return
        best_B1 = scores_BC.argmax(dim=-1, keepdim=True)
        scores_B = scores_BC.gather(1, best_B1).squeeze(1) - masses_BC.logsumexp(dim=-1)
        tokens_B = tokens_BC.gather(1, best_B1).squeeze(1)
        reached_B = self.reached_BN[:, 0]
        reached_B += torch.where(self.open_B, scores_B, 0.0)
        open_B = self.open_B.nonzero().squeeze(1)
        self.written_BNT[open_B, 0, self.steps_R[open_B].long()] = tokens_B[open_B]
        self.tokens_R[open_B] = tokens_B[open_B]
        ends_B = self.open_B & (tokens_B == END)
        score_B = reached_B / penalty(self.steps_R + 1, self.shape.length_penalty)
        self.ended.score_BN[ends_B, 0] = score_B[ends_B].to(self.ended.score_BN)
        self.ended.total_BN[ends_B, 0] = reached_B[ends_B]
        self.open_B &= ~ends_B
        self._count(self.steps_R)

    def _settle(self, scores_BC: Tensor, tokens_BC: Tensor, masses_BC: Tensor) -> None:
        """The same in one kernel."""
        kernels().settle[(self.shape.slots,)](
            scores_BC,
            tokens_BC,
            masses_BC,
            self.tokens_R,
            self.open_B,
            self.steps_R,
            self.written_BNT,
            self.reached_BN,
            self.ended.score_BN,
            self.ended.total_BN,
            scores_BC.shape[1],
            self.shape.target,
            self.shape.length_penalty,
            END=END,
            WIDTH=_power_of_two(scores_BC.shape[1]),
            num_warps=1,
            **early(self.device),
        )

    def _beam(self, scores_RC: Tensor, token_RC: Tensor, masses_RC: Tensor) -> Tensor:
        """As in search/beam.py, each row at its own step and all in place; the row of each
        hypothesis's parent. Tokens include the best 2N of each hypothesis."""
        shape, N = self.shape, self.shape.beam
        step_B = self.steps_R.view(-1, N)[:, 0].long()
        log_probs_RC = scores_RC - masses_RC.logsumexp(dim=-1, keepdim=True)
        made = best_candidates(log_probs_RC, token_RC, self.reached_BN, 2 * N, torch.topk)
        divisor_B1 = penalty(step_B + 1, shape.length_penalty)[:, None]
        ended, last_BN = add_ended(self.ended, made, self.written_BNT, step_B, divisor_B1)
        for still, part in zip(self.ended, ended, strict=True):
            open_B = self.open_B.view(-1, *[1] * (part.dim() - 1))
            still.copy_(torch.where(open_B, part, still))
        reached_BN, parent_BN, tokens_BN = that_stay_open(made, N)
        mildest_B = torch.maximum(
            penalty(self.limits_B, shape.length_penalty),
            penalty(step_B + 2, shape.length_penalty),
        )
        if shape.maximum is not None:
            self.count_B += (last_BN > NEG_INF).sum(dim=1)
        last_B = at_limit(step_B, self.limits_B)
        done_B = is_done(self.ended, reached_BN, mildest_B, last_B, self.count_B, shape.maximum)
        self.written_BNT.copy_(extended(self.written_BNT, parent_BN, step_B, tokens_BN))
        self.reached_BN.copy_(reached_BN)
        self.tokens_R.copy_(tokens_BN.flatten())
        rows_R = torch.arange(len(self.tokens_R), device=self.device)
        parent_R = (parent_BN + rows_R[::N, None]).flatten()
        # Reorder the KV cache by table: it says in which row each step of a hypothesis is.
        assert self.origin_RT is not None
        at_R1 = self.lengths_R.long()[:, None]
        written_RT = self.origin_RT.scatter(1, at_R1, rows_R.int()[:, None])
        self.origin_RT.copy_(written_RT[parent_R])
        self.open_B &= ~done_B
        self._count(self.steps_R)
        return parent_R

    def _settle_beams(self, best: BestOfChunks) -> None:
        """The same in one kernel, which reads only the chunks of tokens with the best ones."""
        shape, N = self.shape, self.shape.beam
        assert best.logits_RV is not None
        assert self.origin_RT is not None
        kernels().settle_beams[(shape.slots,)](
            best.logits_RV,
            best.values_RC,
            best.masses_RC,
            self.tokens_R,
            self.open_B,
            self.steps_R,
            self.limits_B,
            self.written_BNT,
            self.reached_BN,
            self.origin_RT,
            self.ended.score_BN,
            self.ended.tokens_BNT,
            self.ended.total_BN,
            self.count_B,
            best.logits_RV.shape[1],
            best.values_RC.shape[1],
            shape.target,
            shape.length_penalty,
            MAX_INT if shape.maximum is None else shape.maximum,
            N=N,
            NBEST=shape.nbest,
            END=END,
            ROWS=_power_of_two(N),
            BESTS=_power_of_two(shape.nbest),
            MADE=_power_of_two(2 * N),
            WIDTH=_power_of_two(best.values_RC.shape[1]),
            CHUNK=best.size,
            BLOCK=32,
            num_warps=4,
            **early(self.device),
        )

    # --------------------------------------------------------------------- the tokens of a step

    @property
    def _by_kernels(self) -> bool:
        """Rules and wide beams need the logits of all tokens."""
        plain = self.rules is None and self.shape.beam <= WIDEST_BEAM
        return self.device.type == "cuda" and plain

    def _top(self, features_RD: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and tokens that include the `count` most likely allowed tokens of each row.

        The third result holds partial log-sum-exps of each row, over all tokens.
        """
        if self._by_kernels:
            assert count == 1
            return self._best_of_chunks(features_RD, keep=False)[:3]
        head, shape = self.network.head, self.shape
        logits_RV = head.products(features_RD) + head.bias
        mass_R1 = logits_RV.logsumexp(dim=-1, keepdim=True)
        limit_R = self.limits_B[:, None].expand(-1, shape.beam).reshape(-1)
        last_R = at_limit(self.steps_R, limit_R)
        if self.rules is not None:
            last = (self.tokens_R, self.before_R, self.latest_R)
            self.rules.ban(logits_RV, last, self.steps_R)
            # Where a timestamp has to come next, an output of the greatest length ends without it.
            cut(logits_RV, last_R & (logits_RV[:, END] == NEG_INF), mass_R1.squeeze(1))
        obey(logits_RV, too_early(self.steps_R, shape.minimum), last_R)
        if count == 1:
            return *logits_RV.max(dim=-1, keepdim=True), mass_R1
        return *logits_RV.topk(min(count, logits_RV.shape[1]), dim=-1), mass_R1

    def _best_of_chunks(self, features_RD: Tensor, keep: bool) -> BestOfChunks:
        """In bfloat16 the kernel computes the logits too; without `keep` it never stores them."""
        head, shape = self.network.head, self.shape
        half = head.weight.dtype == torch.bfloat16
        R, V = len(features_RD), len(head.weight)
        tile = FEW_ROWS if R <= 16 else SOME_ROWS if R <= 64 else MANY_ROWS
        size, warps = (tile["COLUMNS"], 0) if half else MANY_OF if keep else ONE_OF
        chunks = -(-V // size)
        values_RC, masses_RC = torch.empty(2, R, chunks, device=self.device)
        tokens_RC = torch.empty(R, chunks, dtype=torch.int64, device=self.device)
        state = (self.steps_R, self.limits_B, values_RC, tokens_RC, masses_RC)
        more = {"KEEP": keep, "PAD": PAD, "BEGIN": BEGIN, "END": END, **early(self.device)}
        if half:
            projected_RE = head.narrow(features_RD).contiguous()
            E = projected_RE.shape[1]
            logits_RV = torch.empty(R, V, device=self.device) if keep else None
            kernels().best_tokens[(-(-R // tile["ROWS"]), chunks)](
                projected_RE, head.weight, head.bias, *state,
                values_RC if logits_RV is None else logits_RV,
                R, E, V, shape.beam, shape.minimum, **tile, **more,
            )  # fmt: skip
        else:
            logits_RV = head.products(features_RD)
            kernels().best_of_chunks[(R, chunks)](
                logits_RV, head.bias, *state, V, shape.beam, shape.minimum,
                BLOCK=size, num_warps=warps, **more,
            )  # fmt: skip
        return BestOfChunks(values_RC, tokens_RC, masses_RC, logits_RV, size)


def _power_of_two(count: int) -> int:
    """The next one from `count` on."""
    return 1 << (count - 1).bit_length()


def _put(store_BTE: Tensor, rows_B: Tensor, new_BTE: Tensor) -> None:
    """Write rows of a KV cache, seen as int64 where possible: torch copies element by element."""
    if new_BTE.shape[-1] * new_BTE.itemsize % 8 == 0:
        store_BTE, new_BTE = store_BTE.view(torch.int64), new_BTE.view(torch.int64)
    store_BTE.index_copy_(0, rows_B, new_BTE)
