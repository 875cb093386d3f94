"""How long a sequence a model has positions for."""

from __future__ import annotations

import sys

from transduce.recipe.model import (
    ConvolutionalDecoder,
    ConvolutionalEncoder,
    Decoder,
    Encoder,
    Model,
    RecurrentDecoder,
    TransformerDecoder,
    TransformerEncoder,
)

LIMITED = (TransformerEncoder, TransformerDecoder, ConvolutionalEncoder, ConvolutionalDecoder)


def source_room(model: Model) -> int:
    """The longest source, END counted, that a model has positions for."""
    encoder, decoder = model.encoder, model.decoder
    if isinstance(decoder, RecurrentDecoder) and decoder.attention == "location":
        return min(room_of(encoder), decoder.max_positions)
    return room_of(encoder)


def room_of(part: Encoder | Decoder | None) -> int:
    """The longest sequence that a part has positions for."""
    if isinstance(part, LIMITED) and part.positions == "learned":
        return part.max_positions
    return sys.maxsize
