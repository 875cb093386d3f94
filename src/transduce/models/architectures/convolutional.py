"""Gated convolutions: sequence to sequence, and language models."""

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
from transduce.models.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.models.encoder_decoder import EncoderDecoder, assemble
from transduce.models.language_model import LanguageModelNetwork, assemble_language_model
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.positions import build_positions

POSITIONS = ("sinusoidal", "learned", "none")


def ConvolutionalSeq2Seq(
    source_vocabulary: int,
    target_vocabulary: int,
    *,
    width: int = 512,
    layers: int = 4,
    kernel: int = 3,
    decoder_layers: int | None = None,
    positions: str = "sinusoidal",
    max_positions: int = 1024,
    dropout: float = 0.1,
    tie_embeddings: str = "target",
) -> EncoderDecoder:
    """A convolutional encoder-decoder (Gehring et al. 2017, https://arxiv.org/abs/1705.03122).

    Its weights are random; it is called like `Transformer`.

    Args:
        source_vocabulary: number of source tokens, the four special ones included.
        target_vocabulary: number of target tokens, the four special ones included.
        width: width of the states.
        layers: layers of the encoder, and of the decoder if decoder_layers is None.
        kernel: number of tokens that a convolution sees; odd.
        decoder_layers: layers of the decoder.
        positions: "sinusoidal", "learned" (the paper's) or "none".
        max_positions: the longest sequence with learned positions.
        dropout: of embeddings and of the input of each layer.
        tie_embeddings: "target" (target and output share one table), "all" (the source too) or
            "none".

    Raises:
        ValueError: for numbers that do not fit together.
    """
    check_both_sides(source_vocabulary, target_vocabulary, tie_embeddings)
    decoder_layers = layers if decoder_layers is None else decoder_layers
    check_sizes(layers=layers, decoder_layers=decoder_layers)
    check_odd("kernel", kernel)
    source = _embedding(source_vocabulary, width, positions, max_positions, dropout)
    target = _embedding(target_vocabulary, width, positions, max_positions, dropout)
    encoder = ConvolutionalEncoder(width, layers, kernel, dropout)
    decoder = ConvolutionalDecoder(target, width, decoder_layers, kernel, dropout)
    return assemble(source, encoder, decoder, width, tie_embeddings)


def ConvolutionalLanguageModel(
    vocabulary: int,
    *,
    width: int = 512,
    layers: int = 4,
    kernel: int = 3,
    positions: str = "sinusoidal",
    max_positions: int = 1024,
    dropout: float = 0.1,
    tie_embeddings: bool = True,
) -> LanguageModelNetwork:
    """A language model of gated convolutions (Dauphin et al. 2017).

    https://arxiv.org/abs/1612.08083.

    `network.logits(tokens_BT)` are [B, T, V], of the token after each; tokens begin with BEGIN.

    Args:
        vocabulary: number of tokens, the four special ones included.
        width: width of the states.
        layers: number of layers; together they see layers · (kernel − 1) tokens back.
        kernel: number of tokens that a convolution sees; here it may be even.
        positions: "sinusoidal", "learned" or "none".
        max_positions: the longest sequence with learned positions.
        dropout: of embeddings and of the input of each layer.
        tie_embeddings: whether input and output share one table.

    Raises:
        ValueError: for numbers that do not fit together.
    """
    check_vocabularies(vocabulary=vocabulary)
    check_sizes(layers=layers, kernel=kernel)
    embedding = _embedding(vocabulary, width, positions, max_positions, dropout)
    decoder = ConvolutionalDecoder(embedding, width, layers, kernel, dropout, alone=True)
    return assemble_language_model(decoder, width, "target" if tie_embeddings else "none")


def _embedding(
    vocabulary: int, width: int, positions: str, max_positions: int, dropout: float
) -> TokenEmbedding:
    check_width(width)
    check_sizes(max_positions=max_positions)
    check_choice("positions", positions, POSITIONS)
    check_shares(dropout=dropout)
    # Learned ones are as large as the embeddings, as in the paper.
    positional = build_positions(positions, width, max_length=max_positions, std=1.0)
    return TokenEmbedding(vocabulary, width, positional, dropout)
