"""When each token of a text was said: the most probable CTC labelling of the frames that says it.

Viterbi over 2U + 1 states, a gap before and after every token. As in Kürzinger et al. 2020,
https://arxiv.org/abs/2007.09127, but a text and a recording may differ within as well: audio that
no token says, and tokens that nobody says, have a price instead of a place.

Memory stays small for hours of audio: of a block of frames only where every state came from at its
beginning is kept. From the end backwards that tells where the best path enters and leaves each
block, and then its course is found again in the few states between the two.

    U tokens    G gaps, U + 1; state 2g is gap g, state 2u + 1 is token u    X block of frames
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
NEVER = -torch.inf

States = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]
Gaps = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What may differ between a text and a recording, as natural logarithms of probabilities."""

    unwritten: float = -2.0
    """For each frame of audio that no token says, where the text allows a break."""
    unread: float = -6.0
    """For each token that is left out."""
    unread_line: float | None = None
    """For each token of all that is left out from one break to another; None: as any other.

    Lines that begin alike would otherwise share what one of them has: its first words here, its
    last ones there."""

    def __post_init__(self) -> None:
        if self.unwritten > 0 or self.unread > 0 or (self.unread_line or 0) > 0:
            raise ValueError("A tolerance is the logarithm of a probability: zero or less.")


@dataclass(frozen=True, eq=False)
class Alignment:
    """Where each token was said; tensors on the CPU."""

    first_U: Tensor
    """First frame of each token; −1 of those that were left out."""
    last_U: Tensor
    """Last frame of each token, itself included; −1 of those that were left out."""
    confidence_U: Tensor
    """Geometric mean of the token's probability over its frames; 0 of those left out."""
    scores_S: Tensor
    """ln p of each frame's label on the path, or what was charged for it."""

    @property
    def left_out_U(self) -> Tensor:
        return self.first_U < 0

    def segment_confidence(self, start: int, end: int, window: int = 30) -> float:
        """How surely tokens start … end − 1 are what was said: the worst mean over any window.

        Kürzinger et al. 2020, section 2.3: one wrong word in a long line must show. A natural
        logarithm; −∞ where fewer than half of the tokens were found.
        """
        found = ~self.left_out_U[start:end]
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
    tolerance: Tolerance | None = None,
    breaks_G: Tensor | None = None,
) -> Alignment:
    """The best alignment of tokens [U] with frames [S, V], where the frames are.

    With a tolerance, audio and text may differ; `breaks_G` [U + 1] says before which tokens audio
    may come that is not in the text (and, the last, after all of them): both ends if not given.
    Raises ValueError where there are too few frames for the tokens.
    """
    lattice = _Lattice(log_probs_SV, tokens_U, blank, tolerance, breaks_G)
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
    """The best score of each state, and the state it comes from: itself unless told."""

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
    """The states of a text and how well they do, frame by frame."""

    def __init__(
        self,
        log_probs_SV: Tensor,
        tokens_U: Tensor,
        blank: int,
        tolerance: Tolerance | None,
        breaks_G: Tensor | None,
    ) -> None:
        self.log_probs_SV = log_probs_SV.float()
        self.tokens_U = tokens_U.to(log_probs_SV.device)
        self.blank = blank
        self.tolerance = tolerance
        self.frames, self.count = len(log_probs_SV), len(tokens_U)
        device = log_probs_SV.device
        if breaks_G is None:
            breaks_G = torch.zeros(self.count + 1, dtype=torch.bool)
            breaks_G[[0, -1]] = True
        self.breaks_G = breaks_G.to(device)
        # From one token to the next without a blank, but never between equal ones.
        self.bar_U = torch.zeros(self.count, dtype=torch.float64, device=device)
        self.bar_U[1:].masked_fill_(self.tokens_U[1:] == self.tokens_U[:-1], NEVER)
        # Sums over hours of frames need float64.
        self.token_U = torch.full_like(self.bar_U, NEVER)
        self.gap_G = torch.full((self.count + 1,), NEVER, dtype=torch.float64, device=device)
        self.gap_G[0] = 0.0
        self.gap_G, _ = self._skip(self.gap_G, self.breaks_G)

    def origins(self, start: int) -> Tensor:
        """Go on over a block of frames; the state at its start from which each state comes."""
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
        """The state in which the best path ends: the last gap, or a token with none read after."""
        unread = self.tolerance.unread if self.tolerance else NEVER
        after_U = torch.arange(self.count - 1, -1, -1, device=self.bar_U.device)
        rest_U = torch.where(after_U > 0, after_U * unread, 0.0)
        ends = torch.cat((self.gap_G[-1:], self.token_U + rest_U))
        best = int(ends.argmax())
        if not ends[best] > NEVER:
            raise ValueError(
                f"{self.count} tokens cannot be aligned with {self.frames} frames: there are too "
                f"few frames, or a token has probability zero in all of them."
            )
        return 2 * self.count if best == 0 else 2 * best - 1

    def path(self, start: int, first: int, end: int) -> States:
        """The states of a block of frames, from state `first` before it to `end` at its end."""
        tokens = slice(first // 2, min(end // 2 + 1, self.count))
        size = tokens.stop - tokens.start
        token_U = torch.full_like(self.bar_U[tokens], NEVER)
        gap_G = torch.full_like(self.gap_G[: size + 1], NEVER)
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
        if self.tolerance:
            charged_S = scores_S.clamp(min=self.tolerance.unwritten)
            scores_S = torch.where(~on_token_S & self.breaks_G[at_S], charged_S, scores_S)
        spoken, where_S = at_S[on_token_S], frame_S[on_token_S]
        room_U = torch.full_like(self.tokens_U, -1)
        last_U = room_U.scatter_reduce(0, spoken, where_S, "amax", include_self=False)
        first_U = room_U.scatter_reduce(0, spoken, where_S, "amin", include_self=False)
        sums_U = torch.zeros_like(self.bar_U).scatter_add(0, spoken, scores_S[on_token_S])
        confidence_U = (sums_U / (last_U - first_U + 1)).exp().masked_fill(first_U < 0, 0.0)
        found = (first_U, last_U, confidence_U.float(), scores_S.float())
        return Alignment(*(tensor.cpu() for tensor in found))

    def _step(self, token_U: Tensor, gap_G: Tensor, t: int, tokens: slice) -> _Step:
        """One frame more, for some neighbouring tokens and the gaps around them."""
        before_G = F.pad(token_U, (1, 0), value=NEVER)
        best_U = torch.maximum(token_U, gap_G[:-1])
        moving_U = before_G[:-1] + self.bar_U[tokens]
        emission_V = self.log_probs_SV[t]
        emission_U = emission_V.index_select(0, self.tokens_U[tokens])
        pause = emission_V[self.blank]
        skipped_from_G = None
        new_gap_G = torch.maximum(gap_G, before_G)
        if self.tolerance is None:
            new_gap_G += pause
        else:
            breaks_G = self.breaks_G[tokens.start : tokens.stop + 1]
            charged = pause.clamp(min=self.tolerance.unwritten)
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
        """Each gap, or an earlier one and all tokens between left out, and which."""
        if self.tolerance is None:
            return gap_G, None
        some = self.tolerance.unread
        best_G, from_G = _skip_at(gap_G, some)
        if self.tolerance.unread_line is None:
            return best_G, from_G
        # The rest of a line, whole lines, the beginning of another.
        whole_G, line_G = _skip_at(best_G.masked_fill(~breaks_G, NEVER), self.tolerance.unread_line)
        better_G = breaks_G & (whole_G > best_G)
        from_G = torch.where(better_G, from_G[line_G], from_G)
        best_G, last_G = _skip_at(torch.where(better_G, whole_G, best_G), some)
        return best_G, from_G[last_G]


def _skip_at(gap_G: Tensor, price: float) -> tuple[Tensor, Tensor]:
    """The best of each gap and all before it, so much for every token between, and which."""
    price_G = price * torch.arange(len(gap_G), device=gap_G.device).double()
    best_G, from_G = (gap_G - price_G).cummax(dim=0)
    return best_G + price_G, from_G


def _trace(how_XU: Codes, said_XG: Codes, skipped_XG: Gaps, end: int) -> States:
    """The state at each frame of a block, from the last backwards."""
    state, path = end, np.empty(len(how_XU), dtype=np.int64)
    for x in reversed(range(len(how_XU))):
        if state % 2 == 0:
            state = 2 * int(skipped_XG[x, state // 2])  # the rest was left out in this very frame
        path[x] = state
        state -= int((how_XU if state % 2 else said_XG)[x, state // 2])
    return path
