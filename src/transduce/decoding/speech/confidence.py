"""How sure a model is of what it made of audio, and when that is unusually little.

A model writes something whatever it hears: noise, music, another language. What it writes then is
less probable than what it writes of audio like that it has learnt. How sure it is of the latter,
validation tells while it trains; the model's weights carry it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Self

ENOUGH = 10  # outputs by which to tell what is usual
WELL_BELOW = 0.8  # of the median
KEY = "confidence"  # under which a file of weights has it


@dataclass(frozen=True)
class Calibration:
    """What confidence is usual, and below which it is unusual."""

    usual: float
    least: float

    @classmethod
    def of(cls, confidences: Sequence[float]) -> Self | None:
        """Of outputs on validation data; None where these are too few to tell.

        Unusual is what is well below the median, and below all but the lowest twentieth.
        """
        if len(confidences) < ENOUGH:
            return None
        usual = median(confidences)
        return cls(usual, min(WELL_BELOW * usual, quantiles(confidences, n=20)[0]))

    def warning(self, confidence: float) -> str:
        """What to say of an output, after its name; nothing of a usual one."""
        if confidence >= self.least:
            return ""
        return (
            f"the model is unsure of it (confidence {confidence:.2f}, usually {self.usual:.2f}): "
            f"this does not sound like what the model learnt"
        )

    def facts(self) -> dict[str, list[float]]:
        """As a file of weights carries it."""
        return {KEY: [round(self.usual, 6), round(self.least, 6)]}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self | None:
        """What a file of weights carries; None where that is nothing that makes sense."""
        try:
            usual, least = (float(value) for value in facts[KEY])
        except (KeyError, ValueError, TypeError):
            return None
        return cls(usual, least) if 0 <= least <= usual <= 1 else None


def geometric_mean(log_probability: float, tokens: int) -> float:
    """Of the probabilities of so many tokens, END counted; 0 where nothing was found."""
    if not math.isfinite(log_probability):
        return 0.0
    return math.exp(min(0.0, log_probability / max(tokens, 1)))
