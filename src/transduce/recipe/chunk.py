"""The section `model.encoder.chunk` of a recipe: an encoder that reads audio as it arrives."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from transduce.recipe.audio import Audio
from transduce.recipe.section import InvalidValue, Section

CHUNK = (
    "for audio, an encoder that can read in chunks, for live recognition (Zhang et al. 2020); "
    "null: only whole recordings"
)


class Chunk(Section):
    """A streaming encoder: attention sees its own chunk and some before it, convolutions only the
    past; chunks of changing sizes in training (Zhang et al. 2020)."""

    ms: PositiveFloat = Field(
        640.0, description="chunk of live recognition in milliseconds, unless another is asked for"
    )
    trained: Annotated[list[PositiveFloat], Field(min_length=2, max_length=2)] = Field(
        [80.0, 1280.0],
        description="shortest and longest chunk in training, in milliseconds; each batch has one "
        "size, drawn between them",
    )
    whole: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="share of training batches in which attention sees whole recordings"
    )
    left_chunks: PositiveInt = Field(
        16, description="chunks before its own that a state attends to, at any chunk size"
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        least, most = self.trained
        if least > most:
            raise InvalidValue("trained", f"is {[least, most]}; give the shortest first")
        return self


def check_chunk(encoder: Section | None, audio: Audio | None, ctc_weight: float) -> None:
    """What the chunks of an encoder require of the rest of a recipe. Raises InvalidValue."""
    key, chunk = "model.encoder.chunk", getattr(encoder, "chunk", None)
    if not isinstance(chunk, Chunk):
        return
    if audio is None:
        raise InvalidValue(key, "is given, but only speech to text is read in chunks; leave it out")
    if audio.features != "kaldi":
        raise InvalidValue(
            key, f"is given, but audio.features: {audio.features} need the whole recording"
        )
    if audio.normalize != "global":
        raise InvalidValue(
            key,
            "is given, but audio.normalize is utterance, which needs the whole recording; set "
            "audio.normalize to global",
        )
    if not ctc_weight:
        raise InvalidValue(
            key, "is given, but live recognition needs CTC; set model.ctc_weight, such as 0.5"
        )
    for name, values in (("ms", [chunk.ms]), ("trained", chunk.trained)):
        for value in values:
            if why := no_multiple(value, audio.state_ms):
                raise InvalidValue(f"{key}.{name}", f"has {value:g} ms, {why}")


def no_multiple(ms: float, state_ms: float) -> str:
    """Why a chunk cannot have so many milliseconds; empty: it can."""
    states = max(1, round(ms / state_ms))
    if abs(states * state_ms - ms) <= 1e-6 * ms:
        return ""
    return (
        f"which is not a multiple of the {state_ms:g} ms from one encoder state to the next; the "
        f"nearest is {states * state_ms:.6f}".rstrip("0").rstrip(".")
    )
