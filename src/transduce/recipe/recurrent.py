"""Recurrent encoders and decoders in the `model` section of a recipe."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from transduce.recipe.section import InvalidValue, Section

Cell = Literal["elman", "gru", "lstm", "lstm-peephole"]
Score = Literal[
    "cosine",
    "additive",
    "location-aware",
    "location",
    "general",
    "dot",
    "scaled-dot",
    "additive-free",
    "none",
]


class RecurrentEncoder(Section):
    """Recurrent encoder (RNN, GRU, LSTM): forwards, backwards or bidirectional."""

    kind: Literal["recurrent"] = Field("recurrent", description="recurrent network")
    cell: Cell = Field("lstm", description="the recurrent cell")
    layers: PositiveInt = Field(1, description="number of layers")
    bidirectional: bool = Field(
        True, description="bidirectional: half of the width runs over the source backwards"
    )
    reverse: bool = Field(False, description="read the source backwards (Sutskever 2014)")
    skip: bool = Field(
        False,
        description="skip connections from the input to every layer and from every layer to the "
        "output (Graves 2013)",
    )


class RecurrentDecoder(Section):
    """Recurrent decoder (RNN, GRU, LSTM), with or without attention to the source."""

    kind: Literal["recurrent"] = Field("recurrent", description="recurrent network")
    cell: Cell = Field("lstm", description="the recurrent cell")
    layers: PositiveInt = Field(1, description="number of layers")
    attention: Score = Field(
        "general",
        description="attention score function; none: the decoder gets only the encoder's final "
        "state; location-aware: additive, with the attention weights of the previous step as input "
        "(Chorowski 2015; for speech); location: from the target state alone (Luong 2015)",
    )
    context: Literal["input", "output", "both"] = Field(
        "output",
        description="where the context vector enters: the next input (input feeding), the output, "
        "or both",
    )
    max_positions: PositiveInt = Field(
        1024, description="maximum source length of location attention"
    )
    location_filters: PositiveInt = Field(
        10, description="number of convolution filters of location-aware attention"
    )
    location_kernel: PositiveInt = Field(51, description="kernel size of these filters; odd")
    skip: bool = Field(
        False,
        description="skip connections from the input to every layer and from every layer to the "
        "output (Graves 2013)",
    )

    @model_validator(mode="after")
    def _check_kernel(self) -> Self:
        check_odd("location_kernel", self.location_kernel)
        return self


def check_odd(key: str, kernel: int) -> None:
    """Raise InvalidValue for the size of a kernel that is even."""
    if kernel % 2 == 0:
        raise InvalidValue(key, f"is {kernel}; it must be odd")
