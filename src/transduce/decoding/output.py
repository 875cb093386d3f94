"""What a model gives back: its outputs, and what it thinks of somebody else's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Output:
    """What a model made of one source."""

    text: str
    score: float
    tokens: list[str] = field(default_factory=list)
    source_tokens: list[str] = field(default_factory=list)
    log_probability: float = 0.0
    probabilities: list[float] = field(default_factory=list)
    """Of labels: how sure the model is of each of the tokens."""
    attention: NDArray[np.float32] | None = None
    """Attention to the source: [layers, heads, target tokens, source tokens], END included."""
    alternatives: list[Output] = field(default_factory=list)
    """All nbest hypotheses, this one first; empty unless more than one was asked for."""
    warning: str = ""
    """Why this is not all that was asked for; mostly empty."""
    ids: list[int] = field(default_factory=list)
    """The numbers of the tokens, without END."""

    def to_json(self) -> dict[str, Any]:
        score = self.score if math.isfinite(self.score) else None  # JSON has no infinity
        values: dict[str, Any] = {"text": self.text, "score": score, "tokens": self.tokens}
        if self.probabilities:
            values["probabilities"] = [round(value, 6) for value in self.probabilities]
        if self.attention is not None or self.probabilities:
            values["source_tokens"] = self.source_tokens
        if self.attention is not None:
            values["attention"] = self.attention.mean(axis=(0, 1)).round(4).tolist()
        if self.alternatives:
            values["nbest"] = [{"text": o.text, "score": o.score} for o in self.alternatives]
        if self.warning:
            values["warning"] = self.warning
        return values


@dataclass(frozen=True)
class Score:
    """What a model thinks of one target."""

    tokens: list[str]
    """The target's tokens, END included."""
    token_log_probabilities: list[float]

    @property
    def log_probability(self) -> float:
        return math.fsum(self.token_log_probabilities)

    @property
    def perplexity(self) -> float:
        """Of a token: the number of equally likely ones it was chosen from, so to speak."""
        return perplexity(self.log_probability, len(self.tokens))

    def to_json(self) -> dict[str, Any]:
        return {
            "log_probability": self.log_probability,
            "perplexity": self.perplexity,
            "tokens": self.tokens,
            "token_log_probabilities": self.token_log_probabilities,
        }


def perplexity(log_probability: float, tokens: int) -> float:
    try:
        return math.exp(-log_probability / max(tokens, 1))
    except OverflowError:
        return math.inf
