"""Decoding settings: beam, sampling, penalties, weights; validated before any work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from transduce.decoding_settings import SETTINGS, default
from transduce.errors import ModelError

FROM_RECIPE = tuple(name for name, setting in SETTINGS.items() if setting.in_recipe)


@dataclass(frozen=True)
class Settings:
    """Decoding settings: keywords of `model.run`. None: the value of the model's recipe.

    What each does, its default and its limits: `transduce.decoding_settings` and
    docs/guides/decoding.md.
    """

    beam: int | None = default("beam")
    nbest: int = default("nbest")
    length_penalty: float | None = default("length_penalty")
    coverage_penalty: float | None = default("coverage_penalty")
    patience: float | None = default("patience")
    groups: int = default("groups")
    diversity: float = default("diversity")
    bidirectional: bool | None = default("bidirectional")
    sample: bool = default("sample")
    temperature: float = default("temperature")
    top_k: int = default("top_k")
    top_p: float = default("top_p")
    seed: int = default("seed")
    mbr: str | None = default("mbr")
    samples: int = default("samples")
    no_repeat_ngram: int | None = default("no_repeat_ngram")
    min_length: int = default("min_length")
    max_length: int | None = default("max_length")
    only: Sequence[str] | None = default("only")
    unknown: bool = default("unknown")
    geometric: bool = default("geometric")
    rerank_weight: float = default("rerank_weight")
    scores: bool = default("scores")
    ctc_weight: float | None = default("ctc_weight")
    lm_weight: float = default("lm_weight")
    hotword_bonus: float = default("hotword_bonus")
    chunk_ms: float | None = default("chunk_ms")

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
            setting = SETTINGS[name]
            if value is None and setting.optional:
                continue
            if setting.plain_type in (int, float):
                check_number(name, value)
            elif setting.choices:
                known = value in setting.choices
                _require(known, name, repr(value), " or ".join(setting.choices))
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


def check_number(name: str, value: object) -> None:
    """Raise ModelError for what is not a value of a setting that is a number."""
    setting = SETTINGS[name]
    whole = setting.plain_type is int
    fits = isinstance(value, Integral) or (
        not whole and isinstance(value, Real) and math.isfinite(value)
    )
    _require(fits, name, repr(value)[:40], "a whole number" if whole else "a number")
    misfit = setting.misfit(value)
    _require(not misfit, name, value, misfit)


def _require(fits: bool, name: str, value: object, range_: str) -> None:
    if not fits:
        raise ModelError(f"{name} is {str(value)[:40]}; it must be {range_}")
