"""How a model is asked to search, checked before any work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

from transduce.errors import ModelError


@dataclass(frozen=True)
class Settings:
    """How to search; None stands for what the model's recipe says."""

    beam: int | None = None
    nbest: int = 1
    length_penalty: float | None = None
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    @property
    def hypotheses(self) -> int:
        """Hypotheses of one source side by side."""
        return 1 if self.sample else max(self.beam or 1, self.nbest)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "sample" or (value is None and name in ("beam", "length_penalty")):
                continue
            whole = name in ("beam", "nbest", "top_k", "seed")
            fits = isinstance(value, Integral if whole else Real) and math.isfinite(value)
            _require(fits, name, repr(value), "a whole number" if whole else "a number")
        _require(self.beam is None or self.beam >= 1, "beam", self.beam, "1 or more")
        _require(self.nbest >= 1, "nbest", self.nbest, "1 or more")
        _require(self.temperature > 0, "temperature", self.temperature, "above 0")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (no limit) or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        power = self.length_penalty or 0.0
        _require(abs(power) <= 10, "length_penalty", power, "between -10 and 10")
        if not self.sample and (self.temperature, self.top_k, self.top_p) != (1.0, 0, 1.0):
            raise ModelError("temperature, top_k and top_p shape sampling: ask for sample too")


def _require(fits: bool, name: str, value: object, range_: str) -> None:
    if not fits:
        raise ModelError(f"{name} is {value}; it must be {range_}")
