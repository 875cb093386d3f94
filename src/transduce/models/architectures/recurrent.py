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
    """A recurrent encoder-decoder with newly drawn weights; its calls are those of `Transformer`.

    Without attention (None) that of Sutskever et al. 2014, https://arxiv.org/abs/1409.3215, who
    read the source in `reverse`. With "additive" attention and context="input" that of Bahdanau et
    al. 2015, https://arxiv.org/abs/1409.0473; with "general" and context="output" that of Luong et
    al. 2015, https://arxiv.org/abs/1508.04025.

    cell: "lstm", "gru", "elman" or "lstm-peephole". layers: of the encoder, and of the decoder
    where `decoder_layers` is None. bidirectional: each direction of the encoder has half of the
    width. skip: the input reaches every layer, and every layer the output (Graves 2013).
    attention: also "dot", "scaled-dot", "cosine", "additive-free", "location" (over at most
    `max_positions` source states) or "location-aware" (Chorowski et al. 2015; with
    `location_filters` of `location_kernel` states).

    Raises ValueError, in one sentence, for numbers that do not fit together.
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
    """A recurrent language model (Mikolov et al. 2010; Graves 2013, arXiv:1308.0850).

    `network.logits(tokens_BT)` are [B, T, V], of the token after each; tokens begin with BEGIN.
    For the numbers and what is raised, see `RecurrentSeq2Seq`.
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
