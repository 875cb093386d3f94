"""The configuration of a realtime transcription session: what a client asks for, checked.

There are two shapes: the present one, session.update with audio.input, and that of the beta,
transcription_session.update with input_audio_format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.serving.live.engine import LiveEngine
from transduce.serving.live.g711 import A_LAW, MU_LAW, decode
from transduce.serving.live.stream import pcm16
from transduce.serving.models import Served
from transduce.serving.protocols.openai.audio import listed_names
from transduce.serving.protocols.parameters import ParameterError
from transduce.whisper import WhisperModel

RATE = 24_000
FORMATS = {
    "audio/pcm": "pcm16",
    "audio/pcmu": "g711_ulaw",
    "audio/pcma": "g711_alaw",
}
NAMES = {short: name for name, short in FORMATS.items()}
TELEPHONE = 8_000
SILENCE_MS = 500  # OpenAI's own


@dataclass(frozen=True)
class Configuration:
    """What a session does; `turns` False: only a commit ends an item, which may have several
    utterances."""

    model: str | None = None
    format: str = "audio/pcm"
    rate: int = RATE
    language: str | None = None
    prompt: str = ""
    turns: bool = True
    silence_ms: int = SILENCE_MS

    def updated(self, session: Any, beta: bool) -> Configuration:
        """With what a client has sent. Raises ParameterError."""
        given = _object(session, "session")
        if beta:
            audio = {
                name: given[key]
                for name, key in (
                    ("format", "input_audio_format"),
                    ("transcription", "input_audio_transcription"),
                    ("turn_detection", "turn_detection"),
                )
                if key in given
            }
            path = "session"
        else:
            if given.get("type", "transcription") != "transcription":
                raise ParameterError(
                    "this server transcribes; session.type must be transcription", "session.type"
                )
            audio = _object(given.get("audio") or {}, "session.audio")
            audio = _object(audio.get("input") or {}, "session.audio.input")
            path = "session.audio.input"
        made = self
        if audio.get("format") is not None:
            made = made._with_format(audio["format"], f"{path}.format")
        if audio.get("transcription") is not None:
            made = made._with_transcription(audio["transcription"], f"{path}.transcription")
        if "turn_detection" in audio:
            made = made._with_turns(audio["turn_detection"], f"{path}.turn_detection")
        return made

    def _with_format(self, given: Any, path: str) -> Configuration:
        if isinstance(given, str):
            name, rate = NAMES.get(given), None
        else:
            given = _object(given, path)
            name, rate = given.get("type", self.format), given.get("rate")
        if not isinstance(name, str) or name not in FORMATS:
            known = ", ".join([*FORMATS, *NAMES])
            raise ParameterError(f"the audio format {given!r:.60} is not known: {known}", path)
        usual = RATE if name == "audio/pcm" else TELEPHONE
        rate = usual if rate is None else rate
        if isinstance(rate, bool) or rate != usual:
            raise ParameterError(f"the rate of {name} is {usual}, not {rate!r:.40}", f"{path}.rate")
        return replace(self, format=name, rate=usual)

    def _with_transcription(self, given: Any, path: str) -> Configuration:
        given = _object(given, path)
        found: dict[str, Any] = {}
        for name in ("model", "language", "prompt"):
            value = given.get(name)
            if value is not None:
                if not isinstance(value, str):
                    raise ParameterError(
                        f"{name} must be text, not {value!r:.40}", f"{path}.{name}"
                    )
                found[name] = value
        return replace(self, **found)

    def _with_turns(self, given: Any, path: str) -> Configuration:
        if given is None:
            return replace(self, turns=False)
        given = _object(given, path)
        kind = given.get("type", "server_vad")
        if kind != "server_vad":
            raise ParameterError(
                f"turn_detection is {kind!r:.40}; it can be server_vad or null", f"{path}.type"
            )
        silence = given.get("silence_duration_ms")
        silence = SILENCE_MS if silence is None else silence
        if isinstance(silence, bool) or not isinstance(silence, int) or not 0 < silence <= 60_000:
            raise ParameterError(
                f"silence_duration_ms is {silence!r:.40}; it must be from 1 to 60000",
                f"{path}.silence_duration_ms",
            )
        return replace(self, turns=True, silence_ms=silence)

    def check(self, live: LiveEngine) -> Served:
        """The model. Raises ServiceError where it cannot do what is asked."""
        served = live.find(self.model)
        listed = isinstance(served.model, WhisperModel) or listed_names(self.prompt)
        if self.prompt and not listed:
            raise ParameterError(
                f"{served.name} takes no prompt but a list of names, as in Quilter, Ann Brown",
                "prompt",
            )
        if isinstance(served.model, WhisperModel) and self.language:
            known = served.model.prompt_tokens.languages
            if self.language not in known:
                raise ParameterError(f"{served.name} has no language {self.language!r}", "language")
        return served

    def settings(self, served: Served) -> dict[str, Any]:
        """Of `live_recogniser`."""
        found: dict[str, Any] = {}
        if self.turns:
            seconds = self.silence_ms / 1000
            found = {"silence": seconds, "sentence_silence": seconds}
        if isinstance(served.model, WhisperModel):
            found |= {"language": self.language} if self.language else {}
            found |= {"prompt": self.prompt} if self.prompt else {}
        elif self.prompt:
            found["hotwords"] = listed_names(self.prompt)
        return found

    @property
    def decoder(self) -> Callable[[bytes], NDArray[np.int16]]:
        if self.format == "audio/pcm":
            return pcm16
        table = MU_LAW if self.format == "audio/pcmu" else A_LAW
        return lambda data: decode(data, table)

    def to_json(self, beta: bool) -> dict[str, Any]:
        """As the server tells it: what is in effect. Other settings are not, and are left out."""
        turns = {"type": "server_vad", "silence_duration_ms": self.silence_ms}
        detection = turns if self.turns else None
        transcription = {"model": self.model, "language": self.language, "prompt": self.prompt}
        if beta:
            return {
                "input_audio_format": FORMATS[self.format],
                "input_audio_transcription": transcription,
                "turn_detection": detection,
            }
        form = {"type": self.format}
        return {
            "type": "transcription",
            "object": "realtime.transcription_session",
            "audio": {
                "input": {
                    "format": form | ({"rate": RATE} if self.format == "audio/pcm" else {}),
                    "transcription": transcription,
                    "noise_reduction": None,
                    "turn_detection": detection,
                }
            },
        }


def _object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ParameterError(f"{path} must be an object, not {value!r:.40}", path)
    return value
