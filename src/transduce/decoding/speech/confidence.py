"""Confidence of outputs for audio, and when it is unusually low.

A model outputs text for any audio: noise, music, another language. Such outputs have a lower
probability than those for audio like its training data. The usual confidence is measured on the
validation set during training and saved with the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Self

MIN_OUTPUTS = 10  # for a calibration
LOW = 0.8  # of the median
LOWEST = 0.5  # of the median: what is below is unusual, even if a model is often unsure
KEY = "confidence"  # in the metadata of the weights


@dataclass(frozen=True)
class Calibration:
    """The usual confidence, and one that few outputs of the validation set are below."""

    usual: float
    minimum: float

    @property
    def threshold(self) -> float:
        """Below it, confidence is unusually low: `minimum`, but not less than half of the usual. A
        model that is wrong in one of ten validation outputs would else never doubt noise."""
        return max(self.minimum, LOWEST * self.usual)

    @classmethod
    def of(cls, confidences: Sequence[float]) -> Self | None:
        """From the confidences of validation outputs; None where these are too few.

        `minimum` is the lower of 0.8 times the median and the 5th percentile.
        """
        if len(confidences) < MIN_OUTPUTS:
            return None
        usual = median(confidences)
        return cls(usual, min(LOW * usual, quantiles(confidences, n=20)[0]))

    def warning(self, confidence: float) -> str:
        """The warning for an output of low confidence; empty otherwise."""
        if confidence >= self.threshold:
            return ""
        return (
            f"low confidence ({confidence:.2f}, usually {self.usual:.2f}); this audio differs from "
            f"the training data"
        )

    def metadata(self) -> dict[str, list[float]]:
        """As metadata of the weights."""
        return {KEY: [round(self.usual, 6), round(self.minimum, 6)]}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self | None:
        """From the metadata of the weights; None where it is absent or invalid."""
        try:
            usual, minimum = (float(value) for value in metadata[KEY])
        except (KeyError, ValueError, TypeError):
            return None
        return cls(usual, minimum) if 0 <= minimum <= usual <= 1 else None


def geometric_mean(log_probability: float, tokens: int) -> float:
    """The geometric mean of the probabilities of tokens, including END; 0 without an output."""
    if not math.isfinite(log_probability):
        return 0.0
    return math.exp(min(0.0, log_probability / max(tokens, 1)))
