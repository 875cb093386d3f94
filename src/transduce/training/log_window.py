"""Statistics of the updates since the last line of the log."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor


class UpdateResult(NamedTuple):
    """Results of an update, on the device and not synchronised."""

    objective: Tensor
    """The objective, summed over tokens: with label smoothing, R-Drop and CTC."""
    gradient_norm: Tensor
    cross_entropy: Tensor
    """Negative log-likelihood −Σ ln p(target) of the same passes, with dropout."""
    tokens: Tensor
    """How many tokens the losses have scored: neither padding nor what a loss leaves out."""


@dataclass(frozen=True)
class Outcome:
    """One update: its objective, gradient norm and scored tokens; see `UpdateResult`."""

    objective: float
    gradient_norm: float
    tokens: int
    cross_entropy: float

    @property
    def usable(self) -> bool:
        """Whether it changed the weights: loss and gradient are finite, as `nonfinite` checks on
        the device.
        """
        return math.isfinite(self.objective) and math.isfinite(self.gradient_norm)

    @property
    def objective_per_token(self) -> float:
        return self.objective / max(self.tokens, 1)


@dataclass
class LogWindow:
    """Statistics since the last log line; numbers stay on the device until `look`, so that no
    update synchronises.
    """

    seen: list[Outcome] = field(default_factory=list)
    waiting: list[Tensor | list[float]] = field(default_factory=list)
    """Objective, norm, cross-entropy and tokens of updates not yet read from the device."""
    padding: float = 0.0
    seconds: float = 0.0
    batches: int = 0
    split: int = 0
    """Batches that ran out of memory and were split."""
    left_out: int = 0
    """Pairs that ran out of memory even alone."""

    def add(self, passed: UpdateResult) -> None:
        self.waiting.append(torch.stack([number.double() for number in passed]))

    def look(self) -> list[Outcome]:
        """The updates since the last call; synchronises with the device, once."""
        outcomes = self._outcomes()
        self.waiting = []
        self.seen += outcomes
        return outcomes

    def _outcomes(self) -> list[Outcome]:
        on_device = [values for values in self.waiting if isinstance(values, Tensor)]
        read = iter(torch.stack(on_device).tolist() if on_device else [])
        outcomes = []
        for values in self.waiting:
            objective, norm, plain, tokens = next(read) if isinstance(values, Tensor) else values
            outcomes.append(Outcome(objective, norm, int(tokens), plain))
        return outcomes

    def record(self) -> dict[str, float]:
        """Means for the log; those of losses and norm leave out skipped updates.

        `loss` is the cross-entropy, comparable with a validation's loss; `objective` is what is
        minimised.
        """
        used = [outcome for outcome in self.seen if outcome.usable]
        tokens = sum(outcome.tokens for outcome in used)
        all_tokens = sum(outcome.tokens for outcome in self.seen)
        return {
            "loss": sum(o.cross_entropy for o in used) / tokens if tokens else math.nan,
            "objective": sum(o.objective for o in used) / tokens if tokens else math.nan,
            "gradient_norm": sum(o.gradient_norm for o in used) / len(used) if used else math.nan,
            "padding": self.padding / max(self.batches, 1),
            "tokens_per_second": all_tokens / self.seconds if self.seconds else 0.0,
            "skipped": len(self.seen) - len(used),
            "split": self.split,
            "left_out": self.left_out,
        }

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint; does not count as a `look`, so that a resumed run is the same."""
        return {
            **vars(self),
            "seen": [list(vars(o).values()) for o in self.seen],
            "waiting": [
                [[o.objective, o.gradient_norm, o.cross_entropy], o.tokens]
                for o in self._outcomes()
            ],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> LogWindow:
        seen = [Outcome(*outcome) for outcome in values["seen"]]
        waiting = [[*numbers, tokens] for numbers, tokens in values["waiting"]]
        return cls(**{**values, "seen": seen, "waiting": waiting})
