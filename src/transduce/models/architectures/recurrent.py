"""Recurrent networks: sequence to sequence with attention or without, and language models."""

from __future__ import annotations

from transduce.models.architectures.checks import (
    check_both_sides,
    check_choice,
    check_odd,
    check_shares,
    check_sizes,
    check_vocabularies,
    check_width,
)
from transduce.models.decoders import RecurrentDecoder, build_attention
from transduce.models.encoder_decoder import EncoderDecoder, assemble
from transduce.models.encoders import RecurrentEncoder
from transduce.models.language_model import LanguageModelNetwork, assemble_language_model
from transduce.nn.attention.attention import SCORES
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.recurrent.cells import CELLS


def RecurrentSeq2Seq(
    source_vocabulary: int,
    target_vocabulary: int,
    *,
    width: int = 512,
    cell: str = "lstm",
    layers: int = 1,
    decoder_layers: int | None = None,
    bidirectional: bool = True,
    reverse: bool = False,
    attention: str | None = "general",
    context: str = "output",
    skip: bool = False,
    dropout: float = 0.1,
    tie_embeddings: str = "target",
    max_positions: int = 1024,
    location_filters: int = 10,
    location_kernel: int = 51,
) -> EncoderDecoder:
    """A recurrent encoder-decoder with random weights; it is called like `Transformer`.

        RecurrentSeq2Seq(8000, 8000, attention=None, reverse=True)           # Sutskever 2014
        RecurrentSeq2Seq(8000, 8000, attention="additive", context="input")    # Bahdanau 2015
        RecurrentSeq2Seq(8000, 8000, attention="general", context="output")    # Luong 2015

    https://arxiv.org/abs/1409.3215, https://arxiv.org/abs/1409.0473,
    https://arxiv.org/abs/1508.04025.

    Args:
        source_vocabulary: number of source tokens, the four special ones included.
        target_vocabulary: number of target tokens, the four special ones included.
        width: width of the states.
        cell: "lstm", "gru", "elman" or "lstm-peephole".
        layers: layers of the encoder, and of the decoder if decoder_layers is None.
        decoder_layers: layers of the decoder.
        bidirectional: the encoder reads in both directions, each with half of the width.
        reverse: the encoder reads the source from its end.
        attention: the score, "general", "dot", "scaled-dot", "cosine", "additive", "additive-free",
            "location" or "location-aware" (Chorowski et al. 2015); None: no attention.
        context: where the context vector goes: to the "input" of the decoder's cells, or to its
            "output".
        skip: the input reaches every layer, and every layer reaches the output (Graves 2013).
        dropout: between layers, and of embeddings and outputs.
        tie_embeddings: "target" (target and output share one table), "all" (the source too) or
            "none".
        max_positions: the longest source with attention="location".
        location_filters: convolution filters of "location-aware" attention.
        location_kernel: states that such a filter sees; odd.

    Raises:
        ValueError: for numbers that do not fit together.
    """
    check_both_sides(source_vocabulary, target_vocabulary, tie_embeddings)
    check_width(width)
    decoder_layers = layers if decoder_layers is None else decoder_layers
    check_sizes(
        layers=layers,
        decoder_layers=decoder_layers,
        max_positions=max_positions,
        location_filters=location_filters,
    )
    check_choice("cell", cell, tuple(CELLS))
    check_choice("attention", attention, (None, "location-aware", *SCORES))
    check_choice("context", context, ("input", "output", "both"))
    check_odd("location_kernel", location_kernel)
    check_shares(dropout=dropout)
    source = TokenEmbedding(source_vocabulary, width, None, dropout)
    target = TokenEmbedding(target_vocabulary, width, None, dropout)
    encoder = RecurrentEncoder(
        width,
        cell,
        layers,
        bidirectional=bidirectional,
        reverse=reverse,
        skip=skip,
        dropout=dropout,
    )
    decoder = RecurrentDecoder(
        target,
        width,
        cell,
        decoder_layers,
        attention=build_attention(
            attention,
            width,
            max_positions=max_positions,
            location_filters=location_filters,
            location_kernel=location_kernel,
        ),
        context=context,
        skip=skip,
        dropout=dropout,
        bridge=decoder_layers != layers,
    )
    return assemble(source, encoder, decoder, width, tie_embeddings)


def RecurrentLanguageModel(
    vocabulary: int,
    *,
    width: int = 512,
    cell: str = "lstm",
    layers: int = 1,
    skip: bool = False,
    dropout: float = 0.1,
    tie_embeddings: bool = True,
) -> LanguageModelNetwork:
    """A recurrent language model (Mikolov et al. 2010; Graves 2013).

    `network.logits(tokens_BT)` are [B, T, V], of the token after each; tokens begin with BEGIN.

    Args:
        vocabulary: number of tokens, the four special ones included.
        width: width of the states.
        cell: "lstm", "gru", "elman" or "lstm-peephole".
        layers: number of layers.
        skip: the input reaches every layer, and every layer reaches the output (Graves 2013).
        dropout: between layers, and of embeddings and outputs.
        tie_embeddings: whether input and output share one table.

    Raises:
        ValueError: for numbers that do not fit together.
    """
    check_vocabularies(vocabulary=vocabulary)
    check_width(width)
    check_sizes(layers=layers)
    check_choice("cell", cell, tuple(CELLS))
    check_shares(dropout=dropout)
    embedding = TokenEmbedding(vocabulary, width, None, dropout)
    decoder = RecurrentDecoder(
        embedding, width, cell, layers, skip=skip, dropout=dropout, alone=True
    )
    return assemble_language_model(decoder, width, "target" if tie_embeddings else "none")
