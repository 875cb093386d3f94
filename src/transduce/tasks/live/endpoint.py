"""Endpointing: when an utterance of a live session is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transduce.errors import ModelError

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
