"""The settings of live recognition: when an utterance is over (endpointing), and those of a
streaming encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from transduce.decoding.combine.ngram import NgramModel
from transduce.decoding.constraints.hotwords import HOTWORD_BEAM
from transduce.decoding.settings import check_number
from transduce.decoding_settings import default
from transduce.errors import ModelError
from transduce.recipe import Chunk, Recipe
from transduce.recipe.model import no_multiple
from transduce.tasks.language_model import LanguageModel

SENTENCE_ENDS = (".", "?", "!", "…", "。", "？", "！", "।", "؟", "።")


@dataclass(frozen=True)
class Endpointing:
    """Rules as in Kaldi (online2/online-endpoint.h): any one of them ends an utterance. Times are
    in seconds of silence, at the end of what was heard.
    """

    silence: float = 0.8
    """After speech."""
    sentence_silence: float = 0.4
    """After speech whose transcript ends a sentence with a punctuation mark."""
    no_speech: float = 5.0
    """Without any speech; no transcript is given then."""
    longest: float = 20.0
    """The longest utterance, with or without silence."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            known = isinstance(value, int | float) and not isinstance(value, bool)
            if not known or not 0 < value < 1e6:
                raise ModelError(f"{name} is {value!r}; it must be a number of seconds above 0")

    @classmethod
    def take(cls, settings: dict[str, Any]) -> Endpointing:
        """Those rules that are among `settings`, which are removed from them."""
        known = cls.__dataclass_fields__
        return cls(**{name: settings.pop(name) for name in list(settings) if name in known})

    def ends(self, text: str, silence: float, length: float) -> bool:
        """Whether an utterance is over: its text so far, the seconds of silence at its end, and
        its length in seconds with that silence."""
        if length >= self.longest:
            return True
        if not text.strip():
            return silence >= self.no_speech
        sentence = text.rstrip().endswith(SENTENCE_ENDS)
        return silence >= (min(self.silence, self.sentence_silence) if sentence else self.silence)


@dataclass(frozen=True)
class StreamingSettings:
    """What can be chosen; the recipe has the values that are not."""

    chunk_ms: float
    """Audio that is recognised at a time: longer ones appear later, and are more accurate."""
    beam: int
    ctc_weight: float
    """Weight of CTC against the decoder at the end of an utterance; 1: the decoder is not used."""
    language_model: LanguageModel | NgramModel | None = None
    lm_weight: float = 0.3
    hotwords: Sequence[str] = ()
    hotword_bonus: float = default("hotword_bonus")
    skip_blank: float = 0.999
    """Frames whose blank is more probable than this are not searched; 1: all are."""
    endpointing: Endpointing = field(default_factory=Endpointing)

    def __post_init__(self) -> None:
        for name in ("chunk_ms", "beam", "ctc_weight", "lm_weight", "hotword_bonus"):
            check_number(name, getattr(self, name))
        blank = self.skip_blank
        if not isinstance(blank, int | float) or not 0 <= blank <= 1:
            raise ModelError(f"skip_blank is {blank!r}; it must be a number from 0 to 1")
        model = self.language_model
        if model is not None and not isinstance(model, LanguageModel | NgramModel):
            raise ModelError(
                "language_model must be a model of task: language_modeling, or an n-gram model"
            )

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
        if given.get("hotwords"):
            values["beam"] = max(recipe.decode.beam, HOTWORD_BEAM)
        values |= {name: given[name] for name in known if given.get(name) is not None}
        usual = {"longest": min(Endpointing().longest, longest)}
        chosen = {name: given[name] for name in rules if given.get(name) is not None}
        return cls(**values, endpointing=Endpointing(**{**usual, **chosen}))


def chunk_states(chunk_ms: float, state_ms: float) -> int:
    """The encoder states of a chunk. Raises ModelError where they are not a whole number."""
    if why := no_multiple(chunk_ms, state_ms):
        raise ModelError(f"chunk_ms is {chunk_ms:g}, {why}")
    return round(chunk_ms / state_ms)
