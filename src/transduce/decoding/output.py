"""Outputs of models, and scores of given targets."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TimedWord:
    """A word (or phone, or segment) with its timestamps in seconds and its confidence."""

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
    """The output of a model for one source."""

    text: str
    score: float
    """The log-probability divided by the length penalty; for a label, its probability."""
    tokens: list[str] = field(default_factory=list)
    """The output's tokens, or the tags of a tagger."""
    source_tokens: list[str] = field(default_factory=list)
    log_probability: float = 0.0
    """Of all tokens, END included."""
    probabilities: list[float] = field(default_factory=list)
    """The probability of each label; for audio with times=True, of each token."""
    confidence: float | None = None
    """For audio: confidence in the whole output, from 0 to 1; for a transcript, the geometric mean
    of the probabilities of its tokens, END included. See confidence.py."""
    attention: NDArray[np.float32] | None = None
    """Attention to the source: [layers, heads, target tokens, source tokens], END included."""
    alternatives: list[Output] = field(default_factory=list)
    """The n-best list, this one first; empty with nbest=1."""
    warning: str = ""
    """What could not be done, and why; usually empty."""
    ids: list[int] = field(default_factory=list)
    """The token ids, without END."""
    parts: dict[str, float] = field(default_factory=dict)
    """For audio with times=True: the unweighted log-probability by each scorer (attention, ctc,
    language_model), and the length penalty that divides their weighted sum."""
    segments: list[TimedWord] = field(default_factory=list)
    """For audio: the transcript of each segment between silences."""
    words: list[TimedWord] = field(default_factory=list)
    """For audio with times=True: word (or phone) timestamps."""
    listed: tuple[str, ...] = ()
    """Which of `segments` and `words` were asked for: `to_json` has them also where there are none,
    as of a silent recording."""
    reached_max_length: bool = False
    """Whether the maximum length ended the text, and not the model."""
    failed: bool = False
    """Whether the source could not be used; `warning` says why."""
    language: str = ""
    """The language of the audio, of a model that knows several, such as en."""
    language_probability: float | None = None
    """Of a language that was detected."""

    def to_json(self) -> dict[str, Any]:
        """The output as JSON values, as `transduce run --json` prints it."""
        score = self.score if math.isfinite(self.score) else None  # JSON has no infinity
        values: dict[str, Any] = {"text": self.text, "score": score, "tokens": self.tokens}
        if self.confidence is not None:
            values["confidence"] = round(self.confidence, 4)
        if self.probabilities:
            values["probabilities"] = [round(value, 6) for value in self.probabilities]
        if self.source_tokens and (self.attention is not None or self.probabilities):
            values["source_tokens"] = self.source_tokens
        if self.attention is not None:
            values["attention"] = (
                self.attention.mean(axis=(0, 1), dtype=np.float64).round(4).tolist()
            )
        if self.parts:
            values["parts"] = {name: round(value, 4) for name, value in self.parts.items()}
        for name, timed in (("segments", self.segments), ("words", self.words)):
            if timed or name in self.listed:
                values[name] = [one.to_json() for one in timed]
        if self.language:
            values["language"] = self.language
        if self.language_probability is not None:
            values["language_probability"] = round(self.language_probability, 4)
        if self.alternatives:
            values["nbest"] = [{"text": o.text, "score": o.score} for o in self.alternatives]
        if self.reached_max_length:
            values["finish_reason"] = "length"
        if self.warning:
            values["warning"] = self.warning
        return values

    def note_length(self, limit: int) -> None:
        """limit: the maximum length of it and its alternatives in tokens, END included."""
        for one in (self, *self.alternatives):
            one.reached_max_length = len(one.ids) >= limit - 1


@dataclass(frozen=True)
class Score:
    """The log-probabilities that a model assigns to one target."""

    tokens: list[str]
    """The target's tokens, END included."""
    token_log_probabilities: list[float]
    source_tokens: list[str] = field(default_factory=list)
    """With attention: the source's tokens, END included."""
    attention: NDArray[np.float32] | None = None
    """Attention to the source: [layers, heads, target tokens, source tokens], END included."""

    @property
    def log_probability(self) -> float:
        """The log-probability of the whole target: the sum over its tokens."""
        return math.fsum(self.token_log_probabilities)

    @property
    def perplexity(self) -> float:
        """Perplexity per token: exp of the mean negative log-probability."""
        return perplexity(self.log_probability, len(self.tokens))

    def to_json(self) -> dict[str, Any]:
        """The score as JSON values."""
        values: dict[str, Any] = {
            "log_probability": self.log_probability,
            "perplexity": self.perplexity,
            "tokens": self.tokens,
            "token_log_probabilities": self.token_log_probabilities,
        }
        if self.attention is not None:
            values["source_tokens"] = self.source_tokens
            values["attention"] = (
                self.attention.mean(axis=(0, 1), dtype=np.float64).round(4).tolist()
            )
        return values


def perplexity(log_probability: float, tokens: int) -> float:
    try:
        return math.exp(-log_probability / max(tokens, 1))
    except OverflowError:
        return math.inf
