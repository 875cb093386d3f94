"""CTC prefix beam search, frame by frame as they arrive, over many sequences at a time.

Graves et al. 2006, section 3.2; Hannun et al. 2014, https://arxiv.org/abs/1408.2873. All paths that
give the same labels are one hypothesis (a prefix), whose probability is kept in two parts: that of
the paths that end in a blank, and that of those that end in its last label.

    N prefixes   K labels that may follow   U labels of a prefix
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NEG_INF = -math.inf
MULTIPLIER = 6364136223846793005  # of the hashes of prefixes: Knuth's for 64 bits
NO_PARENT = -(2**62)

Language = Callable[[Tensor, Tensor], Tensor]
"""Prefixes tokens_RU and lengths_R to the weighted log-probabilities [R, V] of the next token."""


@dataclass
class Prefixes:
    """The N best prefixes of each of B sequences, the best first; those that do not exist have a
    score of −∞.

    Two prefixes are the same if their hashes of 64 bits are.
    """

    label_BN: Tensor
    blank_BN: Tensor
    hash_BN: Tensor
    parent_BN: Tensor
    """The hash of the prefix without its last label."""
    last_BN: Tensor
    """The last label; the blank of an empty prefix."""
    lengths_BN: Tensor
    marks_BNU2: Tensor
    """Labels, and the frames at which they are most probable."""
    spoken_BNU: Tensor
    """ln p of each label at that frame."""
    language_BN: Tensor
    """The weighted score of the language model; zero without one."""
    next_BNV: Tensor
    """Its scores of the next token; V is 0 without one."""
    frames_B: Tensor
    """Frames so far."""

    @classmethod
    def start(
        cls, B: int, N: int, blank: int, device: torch.device | str | None = None
    ) -> Prefixes:
        """Empty prefixes."""
        exact = torch.full((B, N), NEG_INF, dtype=torch.float64, device=device)
        blank_BN = exact.clone()
        blank_BN[:, 0] = 0.0
        whole = torch.zeros(B, N, dtype=torch.int64, device=device)
        hash_BN, parent_BN = _unlike(N, device)[:, None].repeat(1, B, 1)
        hash_BN[:, 0] = 0
        return cls(
            exact,
            blank_BN,
            hash_BN,
            parent_BN,
            torch.full_like(whole, blank),
            whole.clone(),
            torch.zeros(B, N, 0, 2, dtype=torch.int32, device=device),
            torch.zeros(B, N, 0, device=device),
            torch.zeros_like(exact),
            torch.zeros(B, N, 0, device=device),
            whole[:, 0].clone(),
        )

    @property
    def ctc_BN(self) -> Tensor:
        """ln p of each prefix by CTC, over the paths that were not dropped."""
        return torch.logaddexp(self.label_BN, self.blank_BN)

    @property
    def score_BN(self) -> Tensor:
        return self.ctc_BN + self.language_BN

    @property
    def tokens_BNU(self) -> Tensor:
        return self.marks_BNU2[..., 0]

    def select(self, rows_B: Tensor) -> Prefixes:
        """The same for some of the sequences."""
        return Prefixes(*(getattr(self, one.name).index_select(0, rows_B) for one in fields(self)))

    def put(self, rows_B: Tensor, other: Prefixes) -> None:
        """Replace some of the sequences."""
        U = max(self.marks_BNU2.shape[2], other.marks_BNU2.shape[2])
        self.widen(U)
        other.widen(U)
        for one in fields(self):
            getattr(self, one.name).index_copy_(0, rows_B, getattr(other, one.name))

    def widen(self, U: int) -> None:
        """Make room for prefixes of U labels."""
        missing = U - self.marks_BNU2.shape[2]
        if missing > 0:
            self.marks_BNU2 = F.pad(self.marks_BNU2, (0, 0, 0, missing))
            self.spoken_BNU = F.pad(self.spoken_BNU, (0, missing))


class _Frame(NamedTuple):
    """A frame of each sequence that has one."""

    number_B: Tensor
    log_probs_BV: Tensor
    best_BK: Tensor
    """ln p of the labels that may follow a prefix."""
    token_BK: Tensor
    unlike_2N: Tensor
    """Hashes and parents of prefixes that do not exist."""


@dataclass(frozen=True)
class PrefixSearch:
    """The settings of a search."""

    beam: int
    blank: int = 0
    candidates: int | None = None
    """Only so many of a frame's most probable labels begin new prefixes; None: all."""
    skip: float | None = None
    """A frame whose blank is more probable than this is taken for a blank: no label is considered
    in it; None: all are searched."""
    banned: tuple[int, ...] = ()
    """Labels that begin no prefix."""

    def start(
        self, B: int, language: Language | None = None, device: torch.device | str | None = None
    ) -> Prefixes:
        """Empty prefixes, before the first frame; `advance` must have the same language model."""
        prefixes = Prefixes.start(B, self.beam, self.blank, device)
        if language is not None:
            empty_1U = torch.zeros(1, 0, dtype=torch.int32, device=device)
            next_1V = language(empty_1U, torch.zeros_like(prefixes.lengths_BN[0, :1]))
            prefixes.next_BNV = next_1V[:, None].repeat(B, self.beam, 1).float()
        return prefixes

    def advance(
        self,
        prefixes: Prefixes,
        log_probs_BSV: Tensor,
        counts_B: Tensor,
        language: Language | None = None,
    ) -> Prefixes:
        """The prefixes after more frames, counts_B of each sequence; counts_B is on the CPU."""
        B, S, V = log_probs_BSV.shape
        counts_B = counts_B.to(log_probs_BSV.device)
        order_BX, pauses_BX, number_B = self._searched(log_probs_BSV[..., self.blank], counts_B)
        # Sequences with the most frames first: those with a frame left are then the first rows.
        number_B, rows_B = torch.sort(number_B, descending=True, stable=True)
        each = number_B.tolist()
        steps = max(each, default=0)
        state = prefixes.select(rows_B)
        state.widen(_capacity(int(state.lengths_BN.max()) + steps))
        order_BX, pauses_BX = order_BX[rows_B], pauses_BX[rows_B]
        frames_BX = order_BX[:, :steps].clamp(max=S - 1)
        log_probs_BXV = log_probs_BSV[rows_B[:, None], frames_BX].double()
        usable_BXV = log_probs_BXV.clone()
        for label in (self.blank, *self.banned):
            usable_BXV[..., label] = NEG_INF
        best_BXK, token_BXK = usable_BXV.topk(min(self.candidates or V, V), dim=-1)
        frames_BX = frames_BX + state.frames_B[:, None]
        unlike_2N = _unlike(self.beam, log_probs_BSV.device)
        for step in range(steps):
            active = sum(count > step for count in each)
            some = _first(state, active)
            _pause(some, pauses_BX[:active, step])
            frame = _Frame(
                frames_BX[:active, step],
                log_probs_BXV[:active, step],
                best_BXK[:active, step],
                token_BXK[:active, step],
                unlike_2N,
            )
            new = self._step(some, frame, language)
            state = new if active == B else _overwrite(state, new, active)
        # The blanks after each sequence's last searched frame.
        _pause(state, pauses_BX.gather(1, number_B[:, None])[:, 0])
        state.frames_B = state.frames_B + counts_B[rows_B]
        return state.select(torch.argsort(rows_B))

    def _searched(self, blank_BS: Tensor, counts_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The frames to search, first in order_BX [B, S + 1]; ln p of the blanks since the one
        before each, and after the last one; and how many there are."""
        S = blank_BS.shape[1]
        real_BS = torch.arange(S, device=blank_BS.device) < counts_B[:, None]
        said_BS = real_BS
        if self.skip is not None:
            said_BS = real_BS & (blank_BS <= math.log(self.skip))
        # Below zero even if a probability is rounded to one: zero is for no blank at all.
        paused_BS = blank_BS.double().clamp(max=-1e-12) * (real_BS & ~said_BS)
        sums_BX = F.pad(paused_BS, (0, 1)).cumsum(dim=1)
        number_B = said_BS.sum(dim=1)
        order_BX = F.pad(torch.argsort((~said_BS).int(), dim=1, stable=True), (0, 1))
        order_BX.scatter_(1, number_B[:, None], S)
        pauses_BX = sums_BX.gather(1, order_BX)
        first_B1 = torch.zeros_like(pauses_BX[:, :1])
        return order_BX, torch.diff(pauses_BX, dim=1, prepend=first_B1), number_B

    def _step(self, old: Prefixes, frame: _Frame, language: Language | None) -> Prefixes:
        frame_B, log_probs_BV, best_BK, token_BK, _ = frame
        B, N = old.label_BN.shape
        K = token_BK.shape[1]
        total_BN = old.ctc_BN
        again_BN = log_probs_BV.gather(1, old.last_BN)
        blank_BN = total_BN + log_probs_BV[:, self.blank, None]
        # A prefix m may also be another one, n, and its last label.
        parent_BNM = old.hash_BN[:, :, None] == old.parent_BN[:, None, :]
        same_BNM = old.last_BN[:, :, None] == old.last_BN[:, None, :]
        ready_BNM = torch.where(same_BNM, old.blank_BN[:, :, None], total_BN[:, :, None])
        grown_BM = ready_BNM.masked_fill(~parent_BNM, NEG_INF).amax(dim=1)
        label_BN = torch.logaddexp(old.label_BN, grown_BM) + again_BN
        label_BN = label_BN.masked_fill(old.last_BN == self.blank, NEG_INF)
        # Prefixes that are one label longer, and not there yet.
        repeats_BNK = old.last_BN[:, :, None] == token_BK[:, None, :]
        there_BNK = (parent_BNM.float() @ repeats_BNK.float()) > 0
        longer_BNK = torch.where(repeats_BNK, old.blank_BN[..., None], total_BN[..., None])
        longer_BNK = (longer_BNK + best_BK[:, None]).masked_fill(there_BNK, NEG_INF)
        language_BNK = old.language_BN[..., None].expand_as(longer_BNK)
        if language is not None:
            tokens_BNK = token_BK[:, None].expand_as(longer_BNK)
            language_BNK = language_BNK + old.next_BNV.gather(2, tokens_BNK)
        stay_BN = torch.logaddexp(label_BN, blank_BN) + old.language_BN
        every_BX = torch.cat((stay_BN, (longer_BNK + language_BNK).flatten(1)), dim=1)
        score_BN, chosen_BN = every_BX.topk(N, dim=1)
        # What was chosen: a prefix that was there, or one of them and a label.
        grows_BN = chosen_BN >= N
        place_BN = (chosen_BN - N).clamp(min=0)
        from_BN = torch.where(grows_BN, place_BN // K, chosen_BN)
        which_BN = place_BN % K
        token_BN = token_BK.gather(1, which_BN)
        row_B1 = torch.arange(B, device=chosen_BN.device)[:, None]
        kept_hash_BN = old.hash_BN.gather(1, from_BN)
        lengths_BN = old.lengths_BN.gather(1, from_BN)
        marks_BNU2, spoken_BNU = old.marks_BNU2[row_B1, from_BN], old.spoken_BNU[row_B1, from_BN]
        # The last label is where it is most probable, be it a new one or not.
        label_here_BN = torch.where(grows_BN, token_BN, old.last_BN.gather(1, from_BN))
        at_BN1 = (lengths_BN - 1 + grows_BN).clamp(min=0)[..., None]
        before_BN1 = spoken_BNU.gather(2, at_BN1)
        now_BN1 = log_probs_BV.gather(1, label_here_BN).float()[..., None]
        moved_BN1 = grows_BN[..., None] | (now_BN1 > before_BN1)
        spoken_BNU.scatter_(2, at_BN1, torch.where(moved_BN1, now_BN1, before_BN1))
        at_BN12 = at_BN1[..., None].expand(-1, -1, -1, 2)
        mark_BN2 = torch.stack((label_here_BN, frame_B[:, None].expand(-1, N)), dim=-1).int()
        mark_BN12 = torch.where(
            moved_BN1[..., None], mark_BN2[:, :, None], marks_BNU2.gather(2, at_BN12)
        )
        marks_BNU2.scatter_(2, at_BN12, mark_BN12)
        new = Prefixes(
            torch.where(
                grows_BN,
                longer_BNK.flatten(1).gather(1, place_BN),
                label_BN.gather(1, from_BN),
            ),
            blank_BN.gather(1, from_BN).masked_fill(grows_BN, NEG_INF),
            torch.where(grows_BN, kept_hash_BN * MULTIPLIER + token_BN + 1, kept_hash_BN),
            torch.where(grows_BN, kept_hash_BN, old.parent_BN.gather(1, from_BN)),
            label_here_BN,
            lengths_BN + grows_BN,
            marks_BNU2,
            spoken_BNU,
            torch.where(
                grows_BN,
                language_BNK.flatten(1).gather(1, place_BN),
                old.language_BN.gather(1, from_BN),
            ),
            old.next_BNV[row_B1, from_BN] if language is not None else old.next_BNV,
            old.frames_B,
        )
        # Prefixes that do not exist must not be taken for others.
        dead_BN = score_BN == NEG_INF
        new.hash_BN = torch.where(dead_BN, frame.unlike_2N[0], new.hash_BN)
        new.parent_BN = torch.where(dead_BN, frame.unlike_2N[1], new.parent_BN)
        new.blank_BN = new.blank_BN.masked_fill(dead_BN, NEG_INF)
        new.label_BN = new.label_BN.masked_fill(dead_BN, NEG_INF)
        if language is not None:
            _score_grown(new, grows_BN & ~dead_BN, language)
        return new


def _unlike(N: int, device: torch.device | str | None) -> Tensor:
    """Hashes and parents of prefixes that do not exist: equal to those of no other."""
    parent_N = NO_PARENT - 2 * torch.arange(1, N + 1, device=device)
    return torch.stack((parent_N + 1, parent_N))


def _pause(prefixes: Prefixes, blanks_B: Tensor) -> None:
    """Frames that are taken for blanks; ln p of them all, zero where there are none."""
    had_B1 = (blanks_B != 0)[:, None]
    paused_BN = prefixes.ctc_BN + blanks_B[:, None]
    prefixes.blank_BN = torch.where(had_B1, paused_BN, prefixes.blank_BN)
    prefixes.label_BN = prefixes.label_BN.masked_fill(had_B1, NEG_INF)


def _first(prefixes: Prefixes, count: int) -> Prefixes:
    if count == len(prefixes.label_BN):
        return prefixes
    return Prefixes(*(getattr(prefixes, one.name)[:count] for one in fields(prefixes)))


def _overwrite(prefixes: Prefixes, new: Prefixes, count: int) -> Prefixes:
    """The first sequences replaced by new ones."""
    for one in fields(prefixes):
        getattr(prefixes, one.name)[:count] = getattr(new, one.name)
    return prefixes


def _score_grown(prefixes: Prefixes, grown_BN: Tensor, language: Language) -> None:
    """The language model's scores after the prefixes that have a new label."""
    rows, columns = grown_BN.nonzero(as_tuple=True)
    if len(rows):
        tokens_RU = prefixes.tokens_BNU[rows, columns]
        next_RV = language(tokens_RU, prefixes.lengths_BN[rows, columns])
        prefixes.next_BNV[rows, columns] = next_RV.to(prefixes.next_BNV.dtype)


def _capacity(labels: int) -> int:
    """Of few sizes, so that tensors seldom change theirs."""
    return 32 * -(-labels // 32)
