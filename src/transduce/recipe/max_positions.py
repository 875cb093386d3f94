"""The longest sequence that a model has position embeddings for."""

from __future__ import annotations

import sys

from transduce.recipe.model import (
    ConvolutionalDecoder,
    ConvolutionalEncoder,
    Decoder,
    Encoder,
    Model,
    TransformerDecoder,
    TransformerEncoder,
)
from transduce.recipe.recurrent import RecurrentDecoder

LIMITED = (TransformerEncoder, TransformerDecoder, ConvolutionalEncoder, ConvolutionalDecoder)


def max_source_length(model: Model) -> int:
    """The longest source, including END, that a model has positions for."""
    encoder, decoder = model.encoder, model.decoder
    if isinstance(decoder, RecurrentDecoder) and decoder.attention == "location":
        return min(max_length_of(encoder), decoder.max_positions)
    return max_length_of(encoder)


def max_length_of(part: Encoder | Decoder | None) -> int:
    """The longest sequence that an encoder or decoder has positions for."""
    if isinstance(part, LIMITED) and part.positions == "learned":
        return part.max_positions
    return sys.maxsize
