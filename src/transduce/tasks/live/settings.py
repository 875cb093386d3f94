"""The settings of live recognition with a streaming encoder."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any

from transduce.errors import ModelError
from transduce.recipe import Chunk, Recipe
from transduce.recipe.model import no_multiple
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.live.endpoint import Endpointing


@dataclass(frozen=True)
class StreamingSettings:
    """What can be chosen; the recipe has the values that are not."""

    chunk_ms: float
    """Audio that is recognised at a time: longer ones appear later, and are more accurate."""
    beam: int
    ctc_weight: float
    """Weight of CTC against the decoder at the end of an utterance; 1: the decoder is not used."""
    language_model: LanguageModel | None = None
    lm_weight: float = 0.3
    skip_blank: float = 0.999
    """Frames whose blank is more probable than this are not searched; 1: all are."""
    endpointing: Endpointing = field(default_factory=Endpointing)

    def __post_init__(self) -> None:
        beam: Any = self.beam
        whole = isinstance(beam, Integral) and not isinstance(beam, bool)
        _require(whole and 1 <= beam <= 1000, "beam", beam, "a whole number from 1 to 1,000")
        for name, minimum, maximum in (
            ("chunk_ms", 0.0, 60_000.0),
            ("ctc_weight", 0.0, 1.0),
            ("lm_weight", 0.0, 100.0),
            ("skip_blank", 0.0, 1.0),
        ):
            value = getattr(self, name)
            fits = isinstance(value, int | float) and math.isfinite(value)
            fits = fits and minimum <= value <= maximum
            _require(fits, name, value, f"a number from {minimum:g} to {maximum:,.0f}")
        model = self.language_model
        if model is not None and not isinstance(model, LanguageModel):
            raise ModelError("language_model must be a model of task: language_modeling")

    @classmethod
    def of(cls, recipe: Recipe, longest: float, given: dict[str, Any]) -> StreamingSettings:
        """The given settings, with the recipe's values for others; `longest` is the usual limit of
        an utterance, in seconds. Raises ModelError."""
        chunk = getattr(recipe.model.encoder, "chunk", None)
        assert isinstance(chunk, Chunk)
        known = [one.name for one in fields(cls) if one.name != "endpointing"]
        rules = [one.name for one in fields(Endpointing)]
        for name in given:
            if name not in (*known, *rules):
                every = ", ".join((*known, *rules))
                raise ModelError(f"live recognition has no setting {name}; choose among {every}")
        values: dict[str, Any] = {
            "chunk_ms": chunk.ms,
            "beam": recipe.decode.beam,
            "ctc_weight": recipe.decode.ctc_weight,
        }
        values |= {name: given[name] for name in known if given.get(name) is not None}
        usual = {"longest": min(Endpointing().longest, longest)}
        chosen = {name: given[name] for name in rules if given.get(name) is not None}
        return cls(**values, endpointing=Endpointing(**{**usual, **chosen}))


def chunk_states(chunk_ms: float, state_ms: float) -> int:
    """The encoder states of a chunk. Raises ModelError where they are not a whole number."""
    if why := no_multiple(chunk_ms, state_ms):
        raise ModelError(f"chunk_ms is {chunk_ms:g}, {why}")
    return round(chunk_ms / state_ms)


def _require(fits: bool, name: str, value: object, what: str) -> None:
    if not fits:
        raise ModelError(f"{name} is {value!r}; it must be {what}")
