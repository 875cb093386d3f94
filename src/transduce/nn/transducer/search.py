"""Search with a transducer, frame by frame as they arrive, over many sequences at a time.

Greedy search takes the most probable token at each node of the lattice. Beam search is time
synchronous (Saon et al. 2020, section 2, https://arxiv.org/abs/2010.13878): at each state, all
hypotheses are extended by labels, one more at each round, and the best that a blank then ends go on
to the next state. Alignments that give the same labels are one hypothesis.

    N hypotheses   U labels of a hypothesis   X hypotheses of all rounds   R rows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.nn.ctc.prefix_beam import MULTIPLIER
from transduce.nn.transducer.lattice import NEG_INF

CAPACITY = 32  # labels: tensors have room for multiples of it, so that they seldom grow
NO_LIMIT = 2**31
MAX_SYMBOLS = 10  # labels at one state: a network that is not trained might never go on

Bonus = Callable[[Tensor, Tensor], Tensor]
"""Hypotheses tokens_RU and lengths_R to what is added to the log-probability [R, V] of each next
label: that of a language model, times a weight, or a bonus for the next token of a hotword, which
is taken back by another label than that. Of the blank nothing is read."""


class Network(Protocol):
    """What search needs of a transducer."""

    def first_features(self, rows: int, device: torch.device) -> tuple[Tensor, list[Tensor]]: ...

    def next_features(
        self, labels_R: Tensor, state: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]: ...

    def log_probs(self, states: Tensor, features: Tensor) -> Tensor: ...


@dataclass
class Hypotheses:
    """The N best hypotheses of each of B sequences, the best first; those that do not exist have a
    score of −∞.

    Two hypotheses are the same if their hashes of 64 bits are.
    """

    log_prob_BN: Tensor
    """ln p over the alignments that were not dropped."""
    bonus_BN: Tensor
    hash_BN: Tensor
    lengths_BN: Tensor
    marks_BNU2: Tensor
    """Labels, and the frames at which they are emitted."""
    spoken_BNU: Tensor
    """ln p of each label at that frame."""
    features_BND: Tensor
    """The prediction network's."""
    state: list[Tensor]
    """Its state, tensors [B, N, …]."""
    frames_B: Tensor
    """Frames so far."""
    limit_B: Tensor
    """The most labels of a hypothesis."""

    @property
    def score_BN(self) -> Tensor:
        return self.log_prob_BN + self.bonus_BN

    @property
    def tokens_BNU(self) -> Tensor:
        return self.marks_BNU2[..., 0]

    def select(self, rows_B: Tensor) -> Hypotheses:
        """The same for some of the sequences."""
        return self._each(lambda x_B: x_B.index_select(0, rows_B))

    def put(self, rows_B: Tensor, other: Hypotheses) -> None:
        """Replace some of the sequences."""
        U = max(self.marks_BNU2.shape[2], other.marks_BNU2.shape[2])
        self.widen(U)
        other.widen(U)
        for own, new in zip(self._tensors(), other._tensors(), strict=True):
            own.index_copy_(0, rows_B, new)

    def widen(self, U: int) -> None:
        """Make room for U labels."""
        missing = U - self.marks_BNU2.shape[2]
        if missing > 0:
            self.marks_BNU2 = F.pad(self.marks_BNU2, (0, 0, 0, missing))
            self.spoken_BNU = F.pad(self.spoken_BNU, (0, missing))

    def pick(self, from_BN: Tensor) -> Hypotheses:
        """Those at these places of each sequence; a place may come several times."""
        row_B1 = torch.arange(len(from_BN), device=from_BN.device)[:, None]
        return self._each(lambda x_BN: x_BN if x_BN.ndim == 1 else x_BN[row_B1, from_BN])

    def append(self, label_BN: Tensor, spoken_BN: Tensor) -> None:
        """Write a label at the end of each; the prediction network has not read it yet."""
        at_BN1 = self.lengths_BN[..., None]
        frame_BN = self.frames_B[:, None].expand_as(label_BN)
        mark_BN12 = torch.stack((label_BN, frame_BN), dim=-1)[:, :, None].int()
        at_BN12 = at_BN1[..., None].expand(-1, -1, -1, 2)
        self.marks_BNU2 = self.marks_BNU2.scatter(2, at_BN12, mark_BN12)
        self.spoken_BNU = self.spoken_BNU.scatter(2, at_BN1, spoken_BN[..., None].float())
        self.hash_BN = self.hash_BN * MULTIPLIER + label_BN + 1
        self.lengths_BN = self.lengths_BN + 1

    def read(self, network: Network, label_BN: Tensor) -> None:
        """The prediction network reads the label that was appended to each."""
        B, N = label_BN.shape
        flat = [x_BN.flatten(0, 1) for x_BN in self.state]
        features_RD, state = network.next_features(label_BN.flatten(), flat)
        self.features_BND = _by_row(features_RD, B, N)
        self.state = [_by_row(x_R, B, N) for x_R in state]

    def bonuses(self, bonus: Bonus) -> Tensor:
        """The bonus_BNV of each next label."""
        B, N = self.lengths_BN.shape
        flat_RU = self.tokens_BNU.flatten(0, 1)
        longest = int(self.lengths_BN.max())
        return _by_row(bonus(flat_RU[:, :longest], self.lengths_BN.flatten()), B, N).double()

    def _tensors(self) -> list[Tensor]:
        own = (getattr(self, one.name) for one in fields(self) if one.name != "state")
        return [*own, *self.state]

    def _each(self, change: Callable[[Tensor], Tensor]) -> Hypotheses:
        values = {
            one.name: change(getattr(self, one.name)) for one in fields(self) if one.name != "state"
        }
        return Hypotheses(**values, state=[change(x_BN) for x_BN in self.state])


@dataclass(frozen=True)
class TransducerSearch:
    """The settings of a search; a beam of 1 is greedy search."""

    network: Network
    beam: int = 1
    blank: int = 0
    max_symbols: int = MAX_SYMBOLS
    banned: tuple[int, ...] = ()
    """Labels that are never emitted."""

    def start(self, B: int, device: torch.device, limit_B: Tensor | None = None) -> Hypotheses:
        """Empty hypotheses, before the first frame. limit_B: the most labels of each sequence."""
        N = self.beam
        features_RD, state = self.network.first_features(B * N, device)
        log_prob_BN = torch.full((B, N), NEG_INF, dtype=torch.float64, device=device)
        log_prob_BN[:, 0] = 0.0
        whole_BN = torch.zeros(B, N, dtype=torch.int64, device=device)
        return Hypotheses(
            log_prob_BN,
            torch.zeros_like(log_prob_BN),
            whole_BN,
            whole_BN.clone(),
            torch.zeros(B, N, 0, 2, dtype=torch.int32, device=device),
            torch.zeros(B, N, 0, device=device),
            _by_row(features_RD, B, N),
            [_by_row(x_R, B, N) for x_R in state],
            whole_BN[:, 0].clone(),
            torch.full((B,), NO_LIMIT, device=device) if limit_B is None else limit_B.to(device),
        )

    def advance(
        self,
        hypotheses: Hypotheses,
        states_BSD: Tensor,
        counts_B: Tensor,
        bonus: Bonus | None = None,
    ) -> tuple[Hypotheses, Tensor]:
        """The hypotheses after more frames, counts_B of each sequence, and ln p_BS of the blank
        after the best hypothesis at each frame; counts_B is on the CPU."""
        B, S, _ = states_BSD.shape
        step = self._greedy_step if self.beam == 1 else self._beam_step
        blank_BS = states_BSD.new_zeros((B, S), dtype=torch.float64)
        # Sequences with the most frames first: those with a frame left are then the first rows.
        counts_B, order_B = torch.sort(counts_B, descending=True, stable=True)
        order_B = order_B.to(states_BSD.device)
        every, ended = hypotheses.select(order_B), []
        for frame in range(int(counts_B.max()) if B else 0):
            active = int((counts_B > frame).sum())
            if active < len(every.frames_B):
                ended.append(_rows(every, slice(active, None)))
                every = _rows(every, slice(active))
            rows_B = order_B[:active]
            every, blank_BS[rows_B, frame] = step(every, states_BSD[rows_B, frame], bonus)
            every.frames_B = every.frames_B + 1
        whole = _joined([every, *ended[::-1]])
        return whole.select(torch.argsort(order_B)), blank_BS

    def _greedy_step(
        self, old: Hypotheses, states_BD: Tensor, bonus: Bonus | None
    ) -> tuple[Hypotheses, Tensor]:
        """Labels while they are more probable than the blank."""
        first_B = states_BD.new_zeros(len(states_BD), dtype=torch.float64)
        open_B = torch.arange(len(states_BD), device=states_BD.device)
        for number in range(self.max_symbols + 1):
            some = old.select(open_B)
            log_probs_BV = self._log_probs(states_BD[open_B], some)[:, 0]
            if number == 0:
                first_B = log_probs_BV[:, self.blank]
            if number == self.max_symbols:
                scores_BV = torch.full_like(log_probs_BV, NEG_INF)
            else:
                scores_BV = self._labels_only(log_probs_BV[:, None], some)[:, 0]
                if bonus is not None:
                    scores_BV = scores_BV + some.bonuses(bonus)[:, 0]
            score_B, label_B = scores_BV.max(dim=1)
            blank_B = log_probs_BV[:, self.blank]
            goes_on_B = score_B <= blank_B
            token_B = torch.where(goes_on_B, self.blank, label_B)
            spoken_B = log_probs_BV.gather(1, token_B[:, None])[:, 0]
            some.log_prob_BN = some.log_prob_BN + spoken_B[:, None]
            gained_B = torch.where(goes_on_B, 0.0, score_B - spoken_B)
            some.bonus_BN = some.bonus_BN + gained_B[:, None]
            writes_B = (~goes_on_B).nonzero()[:, 0]
            if not len(writes_B):
                old.put(open_B, some)
                break
            some.widen(_capacity(int(some.lengths_BN.max()) + 1))
            longer = some.select(writes_B)
            labels_B1 = label_B[writes_B, None]
            longer.append(labels_B1, spoken_B[writes_B, None])
            longer.read(self.network, labels_B1)
            some.put(writes_B, longer)
            old.put(open_B, some)
            open_B = open_B[writes_B]
        return old, first_B

    def _beam_step(
        self, old: Hypotheses, states_BD: Tensor, bonus: Bonus | None
    ) -> tuple[Hypotheses, Tensor]:
        rounds: list[Hypotheses] = []
        grown, first_B = old, old.log_prob_BN[:, 0]
        for number in range(self.max_symbols + 1):
            log_probs_BNV = self._log_probs(states_BD, grown)
            blank_BN = log_probs_BNV[..., self.blank]
            if number == 0:
                first_B = blank_BN[:, 0]
            ended = grown.pick(_every(grown))
            ended.log_prob_BN = grown.log_prob_BN + blank_BN
            rounds.append(ended)
            if number == self.max_symbols:
                break
            labels_BNV = self._labels_only(log_probs_BNV, grown)
            scores_BNV = grown.score_BN[..., None] + labels_BNV
            gains_BNV = None if bonus is None else grown.bonuses(bonus)
            if gains_BNV is not None:
                scores_BNV = scores_BNV + gains_BNV
            best_BN, chosen_BN = scores_BNV.flatten(1).topk(self.beam, dim=1)
            # What is less probable than N that a blank has ended will not come before them.
            worst_B = _merged(rounds).score_BN.topk(self.beam, dim=1).values[:, -1]
            over_B = best_BN[:, 0] <= worst_B
            if bool(over_B.all()):
                break
            V = labels_BNV.shape[2]
            from_BN, label_BN = chosen_BN // V, chosen_BN % V
            spoken_BN = labels_BNV.flatten(1).gather(1, chosen_BN)
            grown = grown.pick(from_BN)
            grown.widen(_capacity(int(grown.lengths_BN.max()) + 1))
            grown.append(label_BN, spoken_BN)
            grown.read(self.network, label_BN)
            grown.log_prob_BN = grown.log_prob_BN + spoken_BN
            grown.log_prob_BN = grown.log_prob_BN.masked_fill(over_B[:, None], NEG_INF)
            if gains_BNV is not None:
                grown.bonus_BN = grown.bonus_BN + gains_BNV.flatten(1).gather(1, chosen_BN)
        merged = _merged(rounds)
        return merged.pick(merged.score_BN.topk(self.beam, dim=1).indices), first_B

    def _log_probs(self, states_BD: Tensor, hypotheses: Hypotheses) -> Tensor:
        return self.network.log_probs(states_BD[:, None], hypotheses.features_BND).double()

    def _labels_only(self, log_probs_BNV: Tensor, hypotheses: Hypotheses) -> Tensor:
        """The log-probabilities of labels that may be emitted; −∞ of others."""
        full_BN = hypotheses.lengths_BN >= hypotheses.limit_B[:, None]
        labels_BNV = log_probs_BNV.masked_fill(full_BN[..., None], NEG_INF)
        labels_BNV[..., [self.blank, *self.banned]] = NEG_INF
        return labels_BNV


def _merged(rounds: Sequence[Hypotheses]) -> Hypotheses:
    """The hypotheses of all rounds [B, X], where those that are the same are one: at the place of
    the more probable one, the others have a score of −∞."""
    if len(rounds) == 1:
        return rounds[0].pick(_every(rounds[0]))
    widest = max(one.marks_BNU2.shape[2] for one in rounds)
    for one in rounds:
        one.widen(widest)
    every = _joined(rounds, dim=1)
    same_BXX = every.hash_BN[:, :, None] == every.hash_BN[:, None, :]
    scores_BXX = every.log_prob_BN[:, None, :].masked_fill(~same_BXX, NEG_INF)
    best_BX = scores_BXX.argmax(dim=2)
    place_X = torch.arange(best_BX.shape[1], device=best_BX.device)
    every.log_prob_BN = scores_BXX.logsumexp(dim=2).where(best_BX == place_X, NEG_INF)
    return every


def _joined(several: Sequence[Hypotheses], dim: int = 0) -> Hypotheses:
    """One after the other: sequences, or with dim 1 hypotheses of the same sequences."""
    widest = max(one.marks_BNU2.shape[2] for one in several)
    for one in several:
        one.widen(widest)
    names = [one.name for one in fields(Hypotheses) if one.name != "state"]
    values = {name: [getattr(one, name) for one in several] for name in names}
    of_sequences = {name: values.pop(name) for name in ("frames_B", "limit_B")}
    return Hypotheses(
        **{name: torch.cat(tensors, dim) for name, tensors in values.items()},
        state=[
            torch.cat(parts, dim) for parts in zip(*(one.state for one in several), strict=True)
        ],
        **{name: x[0] if dim else torch.cat(x) for name, x in of_sequences.items()},
    )


def _rows(hypotheses: Hypotheses, rows: slice) -> Hypotheses:
    return hypotheses._each(lambda x_B: x_B[rows])


def _every(hypotheses: Hypotheses) -> Tensor:
    """All places, for a copy."""
    B, N = hypotheses.lengths_BN.shape
    return torch.arange(N, device=hypotheses.lengths_BN.device).expand(B, N)


def _capacity(labels: int) -> int:
    return CAPACITY * -(-labels // CAPACITY)


def _by_row(x_R: Tensor, B: int, N: int) -> Tensor:
    """[B · N, …] as [B, N, …]."""
    return x_R.view(B, N, *x_R.shape[1:])
