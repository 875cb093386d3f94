"""Decoding settings: beam, sampling, penalties, weights; validated before any work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TypedDict

from transduce.errors import ModelError

WHOLE = (
    "beam",
    "nbest",
    "groups",
    "top_k",
    "seed",
    "samples",
    "no_repeat_ngram",
    "min_length",
    "max_length",
)
FLAGS = ("sample", "unknown", "geometric", "scores")
OTHERS = ("only", "mbr")
FROM_RECIPE = (
    "beam",
    "length_penalty",
    "coverage_penalty",
    "patience",
    "no_repeat_ngram",
    "ctc_weight",
)
OPTIONAL = (*FROM_RECIPE, "max_length", "chunk_ms")
UTILITIES = ("chrf", "bleu")
# Larger values would never finish, or leave no number that float32 can hold.
MAXIMA = {
    "beam": 10_000,
    "nbest": 10_000,
    "groups": 10_000,
    "samples": 10_000,
    "min_length": 100_000,
    "max_length": 100_000,
    "coverage_penalty": 100,
    "patience": 10_000,
    "diversity": 10_000,
    "temperature": 10_000,
    "rerank_weight": 10_000,
    "lm_weight": 10_000,
    "chunk_ms": 1_000_000,
}
SMALLEST = 1e-6  # of what is above 0: less is nothing in float32


@dataclass(frozen=True)
class Settings:
    """Decoding settings: keywords of `model.run`. None: the value of the model's recipe."""

    beam: int | None = None
    """Hypotheses kept at each step; 1 is greedy search."""
    nbest: int = 1
    """Outputs for each source, in `Output.alternatives`."""
    length_penalty: float | None = None
    """p: scores are divided by ((5 + length) / 6) ** p."""
    coverage_penalty: float | None = None
    """Lowers the score for source tokens that were not attended to."""
    patience: float | None = None
    """Beam search stops after patience x beam finished hypotheses. With a large one (100), and with
    null in a recipe, it goes on while a better one is possible."""
    groups: int = 1
    """Diverse beam search: groups of the beam that penalize each other's tokens."""
    diversity: float = 0.5
    """How much they penalize them."""
    sample: bool = False
    """Draw tokens by their probabilities instead of searching."""
    temperature: float = 1.0
    """Of sampling: below 1 prefers likely tokens, above 1 flattens the distribution."""
    top_k: int = 0
    """Sample only from so many of the likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Sample only from the likeliest tokens that together have this probability."""
    seed: int = 1
    """Of sampling."""
    mbr: str | None = None
    """Minimum Bayes risk decoding by "chrf" or "bleu"."""
    samples: int = 32
    """Samples for minimum Bayes risk decoding."""
    no_repeat_ngram: int | None = None
    """No sequence of so many tokens occurs twice."""
    min_length: int = 0
    """The least number of tokens of an output."""
    max_length: int | None = None
    """The greatest number of tokens of an output."""
    only: Sequence[str] | None = None
    """Only tokens of these texts may be used."""
    unknown: bool = True
    """Whether outputs may contain the unknown token."""
    geometric: bool = False
    """Average log-probabilities, not probabilities, in an ensemble."""
    rerank_weight: float = 1.0
    """Weight of the reranker's log-probability."""
    scores: bool = True
    """Whether scores are needed; an engine that can search without may return NaN."""
    ctc_weight: float | None = None
    """Weight of CTC in the score of speech models; 1: CTC alone."""
    lm_weight: float = 0.3
    """Weight of the language model in shallow fusion."""
    chunk_ms: float | None = None
    """A streaming encoder reads in chunks of so many milliseconds; None: whole recordings."""

    @property
    def draws(self) -> int:
        """Number of samples per source; 0 without sampling."""
        return self.samples if self.mbr else self.nbest if self.sample else 0

    @property
    def hypotheses(self) -> int:
        """Number of hypotheses per source in parallel."""
        return self.draws or max(self.beam or 1, self.nbest, self.groups)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in FLAGS or name in OTHERS or (value is None and name in OPTIONAL):
                continue
            whole = name in WHOLE
            fits = isinstance(value, Integral) or (
                not whole and isinstance(value, Real) and math.isfinite(value)
            )
            _require(fits, name, repr(value)[:40], "a whole number" if whole else "a number")
        for name, least in [
            ("beam", 1),
            ("nbest", 1),
            ("groups", 1),
            ("samples", 2),
            ("max_length", 1),
        ]:
            value = getattr(self, name)
            _require(value is None or value >= least, name, value, f"{least} or more")
        for name, most in MAXIMA.items():
            value = getattr(self, name)
            _require(value is None or value <= most, name, value, f"at most {most:,}")
        for name in ("temperature", "top_p", "patience", "chunk_ms"):
            value = getattr(self, name)
            if value is not None and value > 0:
                _require(value >= SMALLEST, name, value, f"at least {SMALLEST:.6f}")
        for name in ("no_repeat_ngram", "min_length", "coverage_penalty", "diversity", "lm_weight"):
            value = getattr(self, name)
            _require(value is None or value >= 0, name, value, "0 (off) or more")
        _require(self.patience is None or self.patience > 0, "patience", self.patience, "above 0")
        _require(self.chunk_ms is None or self.chunk_ms > 0, "chunk_ms", self.chunk_ms, "above 0")
        _require(self.temperature > 0, "temperature", self.temperature, "above 0")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (no limit) or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _require(
            0 <= (self.ctc_weight or 0.0) <= 1,
            "ctc_weight",
            self.ctc_weight,
            "between 0 (off) and 1 (CTC alone)",
        )
        most = MAXIMA["rerank_weight"]
        _require(
            self.rerank_weight >= -most, "rerank_weight", self.rerank_weight, f"-{most:,} or more"
        )
        power = self.length_penalty or 0.0
        _require(abs(power) <= 10, "length_penalty", power, "between -10 and 10")
        known = self.mbr is None or self.mbr in UTILITIES
        _require(known, "mbr", repr(self.mbr), " or ".join(UTILITIES))
        listed = self.only is None or not isinstance(self.only, str)
        _require(listed, "only", repr(self.only), "a list of strings")
        self._check_together()

    def _check_together(self) -> None:
        drawn = self.sample or self.mbr is not None
        if not drawn and (self.temperature, self.top_k, self.top_p) != (1.0, 0, 1.0):
            raise ModelError("temperature, top_k and top_p are for sampling; set sample as well")
        if drawn and self.groups > 1:
            raise ModelError(
                "groups (diverse beam search) and sampling cannot be combined; leave one out"
            )
        if self.max_length is not None and self.max_length < self.min_length:
            raise ModelError(
                f"min_length is {self.min_length}, above max_length, {self.max_length}; lower it"
            )
        if self.mbr and self.nbest > self.samples:
            raise ModelError(
                f"nbest is {self.nbest}, but mbr has only {self.samples} samples; raise samples"
            )


class DecodingKeywords(TypedDict, total=False):
    """The fields of `Settings` as keywords, which editors and type checkers read."""

    beam: int | None
    nbest: int
    length_penalty: float | None
    coverage_penalty: float | None
    patience: float | None
    groups: int
    diversity: float
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int
    mbr: str | None
    samples: int
    no_repeat_ngram: int | None
    min_length: int
    max_length: int | None
    only: Sequence[str] | None
    unknown: bool
    geometric: bool
    rerank_weight: float
    scores: bool
    ctc_weight: float | None
    lm_weight: float
    chunk_ms: float | None


def _require(fits: bool, name: str, value: object, range_: str) -> None:
    if not fits:
        raise ModelError(f"{name} is {str(value)[:40]}; it must be {range_}")
