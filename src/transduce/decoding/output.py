"""What a model gives back: its outputs, and what it thinks of somebody else's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TimedWord:
    """What is said from one second of a recording to another, and how sure the model is of it."""

    text: str
    start: float
    end: float
    confidence: float
    """From 0 to 1."""

    def to_json(self) -> dict[str, Any]:
        times = {"start": round(self.start, 3), "end": round(self.end, 3)}
        return {"text": self.text, **times, "confidence": round(self.confidence, 4)}


@dataclass(slots=True)  # frozen, each would take three times as long to make
class Output:
    """What a model made of one source."""

    text: str
    score: float
    tokens: list[str] = field(default_factory=list)
    source_tokens: list[str] = field(default_factory=list)
    log_probability: float = 0.0
    probabilities: list[float] = field(default_factory=list)
    """Of labels, and of audio where times were asked for: how sure the model is of each token."""
    confidence: float | None = None
    """Of audio: how sure the model is of all of it, from 0 to 1; of a text, the geometric mean of
    its tokens' probabilities, END included. See confidence.py."""
    attention: NDArray[np.float32] | None = None
    """Attention to the source: [layers, heads, target tokens, source tokens], END included."""
    alternatives: list[Output] = field(default_factory=list)
    """All nbest hypotheses, this one first; empty unless more than one was asked for."""
    warning: str = ""
    """Why this is not all that was asked for; mostly empty."""
    ids: list[int] = field(default_factory=list)
    """The numbers of the tokens, without END."""
    parts: dict[str, float] = field(default_factory=dict)
    """Of audio, where times were asked for: what each judge found, as log-probabilities that are
    not weighted yet (attention, ctc, language_model), and the length penalty that divides them."""
    stretches: list[TimedWord] = field(default_factory=list)
    """Of audio: what is said between two pauses."""
    words: list[TimedWord] = field(default_factory=list)
    """Of audio, where times were asked for: each word, or phone."""
    failed: bool = False
    """Whether the source could not be used at all; `warning` says why."""

    def to_json(self) -> dict[str, Any]:
        score = self.score if math.isfinite(self.score) else None  # JSON has no infinity
        values: dict[str, Any] = {"text": self.text, "score": score, "tokens": self.tokens}
        if self.confidence is not None:
            values["confidence"] = round(self.confidence, 4)
        if self.probabilities:
            values["probabilities"] = [round(value, 6) for value in self.probabilities]
        if self.source_tokens and (self.attention is not None or self.probabilities):
            values["source_tokens"] = self.source_tokens
        if self.attention is not None:
            values["attention"] = self.attention.mean(axis=(0, 1)).round(4).tolist()
        if self.parts:
            values["parts"] = {name: round(value, 4) for name, value in self.parts.items()}
        for name, spoken in (("stretches", self.stretches), ("words", self.words)):
            if spoken:
                values[name] = [one.to_json() for one in spoken]
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
    source_tokens: list[str] = field(default_factory=list)
    """Where attention was asked for: the source's tokens, END included."""
    attention: NDArray[np.float32] | None = None
    """Attention to the source: [layers, heads, target tokens, source tokens], END included."""

    @property
    def log_probability(self) -> float:
        return math.fsum(self.token_log_probabilities)

    @property
    def perplexity(self) -> float:
        """Of a token: the number of equally likely ones it was chosen from, so to speak."""
        return perplexity(self.log_probability, len(self.tokens))

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "log_probability": self.log_probability,
            "perplexity": self.perplexity,
            "tokens": self.tokens,
            "token_log_probabilities": self.token_log_probabilities,
        }
        if self.attention is not None:
            values["source_tokens"] = self.source_tokens
            values["attention"] = self.attention.mean(axis=(0, 1)).round(4).tolist()
        return values


def perplexity(log_probability: float, tokens: int) -> float:
    try:
        return math.exp(-log_probability / max(tokens, 1))
    except OverflowError:
        return math.inf
