"""CTC forced alignment: when each token of a transcript is spoken, by the Viterbi path.

Viterbi over 2U + 1 states: each token, and a gap (blank) before and after every token. As in
Kürzinger et al. 2020, https://arxiv.org/abs/2007.09127, but transcript and recording may also
differ: audio that is not in the transcript, and tokens that are not spoken, are allowed at a
penalty.

Memory stays small for hours of audio. Of each block of frames only the state at its beginning is
kept, for every state at its end (checkpointing). Going backwards, this gives the states in which
the best path enters and leaves each block; the path inside a block is then computed again.

    U tokens   G gaps, U + 1; state 2g is gap g, state 2u + 1 is token u   X block of frames
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 1024
NEG_INF = -torch.inf

States = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]
Gaps = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class MismatchPenalties:
    """Penalties for differences between transcript and audio, as natural log-probabilities."""

    insertion: float = -2.0
    """For each frame of audio that is not in the transcript, at a possible break."""
    deletion: float = -6.0
    """For each token that is not spoken (a deletion)."""
    line_deletion: float | None = None
    """For each token of a whole stretch that is deleted from one break to another; None: as others.

    Lines that begin alike would otherwise share what one of them has: its first words here, its
    last ones there."""

    def __post_init__(self) -> None:
        if self.insertion > 0 or self.deletion > 0 or (self.line_deletion or 0) > 0:
            raise ValueError("A penalty is the logarithm of a probability: zero or less.")


@dataclass(frozen=True, eq=False)
class Alignment:
    """Start, end and confidence of each token; tensors on the CPU."""

    first_U: Tensor
    """First frame of each token; −1 if deleted."""
    last_U: Tensor
    """Last frame of each token, inclusive; −1 if deleted."""
    confidence_U: Tensor
    """Geometric mean of the token's probability over its frames; 0 if deleted."""
    scores_S: Tensor
    """ln p of each frame's label on the path, or the penalty paid for it."""

    @property
    def deleted_U(self) -> Tensor:
        return self.first_U < 0

    def segment_confidence(self, start: int, end: int, window: int = 30) -> float:
        """Confidence of tokens start … end − 1: the lowest mean log-probability over any window.

        Kürzinger et al. 2020, section 2.3: one wrong word in a long line must show. A natural
        logarithm; −∞ where fewer than half of the tokens were found.
        """
        found = ~self.deleted_U[start:end]
        if 2 * int(found.sum()) < max(1, len(found)):
            return -float("inf")
        first = int(self.first_U[start:end][found].min())
        last = int(self.last_U[start:end].max())
        scores_1S = self.scores_S[None, first : last + 1]
        size = min(window, scores_1S.shape[1])
        return float(F.avg_pool1d(scores_1S, size, stride=1).min())


def align(
    log_probs_SV: Tensor,
    tokens_U: Tensor,
    blank: int = 0,
    penalties: MismatchPenalties | None = None,
    breaks_G: Tensor | None = None,
) -> Alignment:
    """The best alignment (Viterbi) of tokens [U] with log-probabilities of frames [S, V].

    With penalties, audio and transcript may differ; `breaks_G` [U + 1] says before which tokens
    there may be audio that is not in the transcript (the last entry: after all of them); by default
    at both ends. Raises ValueError where there are too few frames for the tokens.
    """
    lattice = _Lattice(log_probs_SV, tokens_U, blank, penalties, breaks_G)
    origins = [lattice.origins(start) for start in range(0, lattice.frames, BLOCK)]
    end = lattice.best_end()
    pieces = []
    for number in reversed(range(len(origins))):
        start = int(origins[number][end])
        pieces.append(lattice.path(number * BLOCK, start, end))
        end = start
    path_S = np.concatenate([np.empty(0, dtype=np.int64), *reversed(pieces)])
    return lattice.alignment(torch.from_numpy(path_S))


class _Step(NamedTuple):
    """The best score of each state, and its back-pointer: the state itself unless one of these says
    otherwise.
    """

    token_U: Tensor
    gap_G: Tensor
    entered_U: Tensor
    """From the gap before it."""
    moved_U: Tensor
    """From the token before it, whatever `entered_U` says."""
    said_G: Tensor
    """From the token before it."""
    skipped_from_G: Tensor | None
    """From this gap, in the same frame, all tokens between left out."""


class _Lattice:
    """The Viterbi lattice of a transcript: the score of each state, frame by frame."""

    def __init__(
        self,
        log_probs_SV: Tensor,
        tokens_U: Tensor,
        blank: int,
        penalties: MismatchPenalties | None,
        breaks_G: Tensor | None,
    ) -> None:
        self.log_probs_SV = log_probs_SV.float()
        self.tokens_U = tokens_U.to(log_probs_SV.device)
        self.blank = blank
        self.penalties = penalties
        self.frames, self.count = len(log_probs_SV), len(tokens_U)
        device = log_probs_SV.device
        if breaks_G is None:
            breaks_G = torch.zeros(self.count + 1, dtype=torch.bool)
            breaks_G[[0, -1]] = True
        self.breaks_G = breaks_G.to(device)
        # A transition from a token to the next without a blank, except between equal tokens.
        self.bar_U = torch.zeros(self.count, dtype=torch.float64, device=device)
        self.bar_U[1:].masked_fill_(self.tokens_U[1:] == self.tokens_U[:-1], NEG_INF)
        # Sums over hours of frames need float64.
        self.token_U = torch.full_like(self.bar_U, NEG_INF)
        self.gap_G = torch.full((self.count + 1,), NEG_INF, dtype=torch.float64, device=device)
        self.gap_G[0] = 0.0
        self.gap_G, _ = self._skip(self.gap_G, self.breaks_G)

    def origins(self, start: int) -> Tensor:
        """Advance over a block of frames; returns for each state its state at the start of the
        block.
        """
        state_N = torch.arange(2 * self.count + 1, dtype=torch.int32, device=self.gap_G.device)
        from_gap_G, from_token_U = state_N[0::2], state_N[1::2]
        everything = slice(0, self.count)
        for t in range(start, min(start + BLOCK, self.frames)):
            step = self._step(self.token_U, self.gap_G, t, everything)
            self.token_U, self.gap_G = step.token_U, step.gap_G
            before_G = F.pad(from_token_U, (1, 0))
            from_token_U = torch.where(step.entered_U, from_gap_G[:-1], from_token_U)
            from_token_U = torch.where(step.moved_U, before_G[:-1], from_token_U)
            from_gap_G = torch.where(step.said_G, before_G, from_gap_G)
            if step.skipped_from_G is not None:
                from_gap_G = from_gap_G[step.skipped_from_G]
        origins_N = torch.empty_like(state_N)
        origins_N[0::2], origins_N[1::2] = from_gap_G, from_token_U
        return origins_N

    def best_end(self) -> int:
        """The last state of the best path: the last gap, or a token after which all are deleted."""
        deletion = self.penalties.deletion if self.penalties else NEG_INF
        after_U = torch.arange(self.count - 1, -1, -1, device=self.bar_U.device)
        rest_U = torch.where(after_U > 0, after_U * deletion, 0.0)
        ends = torch.cat((self.gap_G[-1:], self.token_U + rest_U))
        best = int(ends.argmax())
        if not ends[best] > NEG_INF:
            raise ValueError(
                f"{self.count} tokens cannot be aligned with {self.frames} frames: there are too "
                f"few frames, or a token has probability zero in all of them."
            )
        return 2 * self.count if best == 0 else 2 * best - 1

    def path(self, start: int, first: int, end: int) -> States:
        """The states of a block of frames, from state `first` before it to `end` at its end."""
        tokens = slice(first // 2, min(end // 2 + 1, self.count))
        size = tokens.stop - tokens.start
        token_U = torch.full_like(self.bar_U[tokens], NEG_INF)
        gap_G = torch.full_like(self.gap_G[: size + 1], NEG_INF)
        (token_U if first % 2 else gap_G)[0] = 0.0
        stop = min(start + BLOCK, self.frames)
        how_XU = self.tokens_U.new_empty(stop - start, size, dtype=torch.uint8)
        said_XG = self.tokens_U.new_empty(stop - start, size + 1, dtype=torch.uint8)
        skipped_XG = self.tokens_U.new_empty(stop - start, size + 1, dtype=torch.int32)
        skipped_XG[:] = torch.arange(size + 1, device=gap_G.device)
        for x, t in enumerate(range(start, stop)):
            step = self._step(token_U, gap_G, t, tokens)
            token_U, gap_G = step.token_U, step.gap_G
            how_XU[x] = step.entered_U
            how_XU[x].masked_fill_(step.moved_U, 2)
            said_XG[x] = step.said_G
            if step.skipped_from_G is not None:
                skipped_XG[x] = step.skipped_from_G
        lowest = 2 * tokens.start
        codes = (how_XU.cpu().numpy(), said_XG.cpu().numpy(), skipped_XG.cpu().numpy())
        return lowest + _trace(*codes, end - lowest)

    def alignment(self, path_S: Tensor) -> Alignment:
        path_S = path_S.to(self.log_probs_SV.device)
        on_token_S = path_S % 2 == 1
        at_S = path_S // 2
        frame_S = torch.arange(self.frames, device=path_S.device)
        label_S = torch.full_like(path_S, self.blank)
        label_S[on_token_S] = self.tokens_U[at_S[on_token_S]]
        scores_S = self.log_probs_SV[frame_S, label_S].double()
        if self.penalties:
            charged_S = scores_S.clamp(min=self.penalties.insertion)
            scores_S = torch.where(~on_token_S & self.breaks_G[at_S], charged_S, scores_S)
        spoken, where_S = at_S[on_token_S], frame_S[on_token_S]
        empty_U = torch.full_like(self.tokens_U, -1)
        last_U = empty_U.scatter_reduce(0, spoken, where_S, "amax", include_self=False)
        first_U = empty_U.scatter_reduce(0, spoken, where_S, "amin", include_self=False)
        sums_U = torch.zeros_like(self.bar_U).scatter_add(0, spoken, scores_S[on_token_S])
        confidence_U = (sums_U / (last_U - first_U + 1)).exp().masked_fill(first_U < 0, 0.0)
        found = (first_U, last_U, confidence_U.float(), scores_S.float())
        return Alignment(*(tensor.cpu() for tensor in found))

    def _step(self, token_U: Tensor, gap_G: Tensor, t: int, tokens: slice) -> _Step:
        """One more frame, for a range of tokens and the gaps around them."""
        before_G = F.pad(token_U, (1, 0), value=NEG_INF)
        best_U = torch.maximum(token_U, gap_G[:-1])
        moving_U = before_G[:-1] + self.bar_U[tokens]
        emission_V = self.log_probs_SV[t]
        emission_U = emission_V.index_select(0, self.tokens_U[tokens])
        pause = emission_V[self.blank]
        skipped_from_G = None
        new_gap_G = torch.maximum(gap_G, before_G)
        if self.penalties is None:
            new_gap_G += pause
        else:
            breaks_G = self.breaks_G[tokens.start : tokens.stop + 1]
            charged = pause.clamp(min=self.penalties.insertion)
            new_gap_G += torch.where(breaks_G, charged, pause)
            new_gap_G, skipped_from_G = self._skip(new_gap_G, breaks_G)
        return _Step(
            token_U=torch.maximum(best_U, moving_U) + emission_U,
            gap_G=new_gap_G,
            entered_U=gap_G[:-1] > token_U,
            moved_U=moving_U > best_U,
            said_G=before_G > gap_G,
            skipped_from_G=skipped_from_G,
        )

    def _skip(self, gap_G: Tensor, breaks_G: Tensor) -> tuple[Tensor, Tensor | None]:
        """Deletions: each gap reached directly, or from an earlier gap with all tokens between
        deleted, and which.
        """
        if self.penalties is None:
            return gap_G, None
        some = self.penalties.deletion
        best_G, from_G = _skip_at(gap_G, some)
        if self.penalties.line_deletion is None:
            return best_G, from_G
        # The rest of a line, whole lines, and the beginning of another line.
        whole_G, line_G = _skip_at(
            best_G.masked_fill(~breaks_G, NEG_INF), self.penalties.line_deletion
        )
        better_G = breaks_G & (whole_G > best_G)
        from_G = torch.where(better_G, from_G[line_G], from_G)
        best_G, last_G = _skip_at(torch.where(better_G, whole_G, best_G), some)
        return best_G, from_G[last_G]


def _skip_at(gap_G: Tensor, price: float) -> tuple[Tensor, Tensor]:
    """The best of each gap and all gaps before it, at `price` for every token between, and
    which.
    """
    price_G = price * torch.arange(len(gap_G), device=gap_G.device).double()
    best_G, from_G = (gap_G - price_G).cummax(dim=0)
    return best_G + price_G, from_G


def _trace(how_XU: Codes, said_XG: Codes, skipped_XG: Gaps, end: int) -> States:
    """Backtrace: the state at each frame of a block, from the last frame backwards."""
    state, path = end, np.empty(len(how_XU), dtype=np.int64)
    for x in reversed(range(len(how_XU))):
        if state % 2 == 0:
            # the tokens between were deleted in this frame
            state = 2 * int(skipped_XG[x, state // 2])
        path[x] = state
        state -= int((how_XU if state % 2 else said_XG)[x, state // 2])
    return path
