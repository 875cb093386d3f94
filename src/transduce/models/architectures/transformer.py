"""The Transformer: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762.

As an encoder-decoder, as a decoder alone (a language model), as an encoder alone (a classifier, a
tagger).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from transduce.models.architectures.checks import (
    check_both_sides,
    check_choice,
    check_heads,
    check_positions_width,
    check_shares,
    check_sizes,
    check_vocabularies,
    check_width,
)
from transduce.models.decoders import TransformerDecoder
from transduce.models.encoder_decoder import EncoderDecoder, assemble
from transduce.models.encoders import TransformerEncoder
from transduce.models.labeller import Labeller, assemble_labeller
from transduce.models.language_model import LanguageModelNetwork, assemble_language_model
from transduce.models.word_embedding import WordEmbedding
from transduce.nn.activation import ACTIVATIONS
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.positions import Positioned, build_positions, width_of_content
from transduce.nn.transformer import build_norm


def Transformer(
    source_vocabulary: int,
    target_vocabulary: int,
    *,
    width: int = 512,
    heads: int = 8,
    layers: int = 6,
    feed_forward: int = 2048,
    decoder_layers: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    tie_embeddings: str = "target",
    activation: str = "relu",
    norm: str = "layer",
    norm_position: str = "pre",
    positions: str = "sinusoidal",
    combine: str = "add",
    max_positions: int = 1024,
    scale_embeddings: bool = True,
    norm_embeddings: bool = False,
) -> EncoderDecoder:
    """A Transformer encoder-decoder (Vaswani et al. 2017) with newly drawn weights.

    Vocabularies count the four special tokens: PAD 0, UNKNOWN 1, BEGIN 2, END 3. A source is token
    ids source_BS and lengths_B, which stays on the CPU; a target is BEGIN … END, padded with PAD.

        network.loss(source_BS, lengths_B, target_BT)              sums over tokens, to train by
        network.logits(source_BS, lengths_B, target_BT[:, :-1])    [B, T - 1, V]
        network.start(source_BS, lengths_B), network.step(tokens_B, state)    token by token

    layers: of the encoder, and of the decoder where `decoder_layers` is None.
    tie_embeddings: "target" (target and output share one table), "all" (source too), "none".
    activation: "relu", "gelu", "swiglu" or another of nn.activation. norm: "layer" or "rms".
    norm_position: "pre" (Xiong et al. 2020, https://arxiv.org/abs/2002.04745), or the paper's
    "post". positions: "sinusoidal", "fourier", "learned" (at most `max_positions`), "rotary" (Su et
    al. 2021, https://arxiv.org/abs/2104.09864) or "none". combine: "add" positions to the
    embeddings, or "concatenate" them, half of the width each. scale_embeddings: by the square root
    of the width. norm_embeddings: a norm of the embeddings with their positions, as in BART.

    Raises ValueError, in one sentence, for numbers that do not fit together.
    """
    shape = Shape(
        width=width,
        heads=heads,
        layers=layers,
        feed_forward=feed_forward,
        dropout=dropout,
        attention_dropout=attention_dropout,
        activation_dropout=activation_dropout,
        activation=activation,
        norm=norm,
        norm_position=norm_position,
        positions=positions,
        combine=combine,
        max_positions=max_positions,
        scale_embeddings=scale_embeddings,
        norm_embeddings=norm_embeddings,
    )
    check_both_sides(source_vocabulary, target_vocabulary, tie_embeddings)
    decoder_layers = layers if decoder_layers is None else decoder_layers
    check_sizes(decoder_layers=decoder_layers)
    source, target = shape.embedding(source_vocabulary), shape.embedding(target_vocabulary)
    encoder = shape.encoder()
    decoder = shape.decoder(target, decoder_layers)
    return assemble(source, encoder, decoder, width, tie_embeddings)


class Numbers(TypedDict, total=False):
    """The keywords of the other constructors; their defaults are those of `Transformer`."""

    width: int
    heads: int
    layers: int
    feed_forward: int
    dropout: float
    attention_dropout: float
    activation_dropout: float
    activation: str
    norm: str
    norm_position: str
    positions: str
    combine: str
    max_positions: int
    scale_embeddings: bool
    norm_embeddings: bool


def TransformerLanguageModel(
    vocabulary: int, *, tie_embeddings: bool = True, **numbers: Unpack[Numbers]
) -> LanguageModelNetwork:
    """A Transformer decoder without an encoder, which predicts the next token.

    `network.logits(tokens_BT)` are [B, T, V], of the token after each; tokens begin with BEGIN.
    `network.read(tokens_BT)` gives a state, and `network.step(tokens_B, state)` goes on from it.
    For the other keywords and what is raised, see `Transformer`.
    """
    shape = Shape(**numbers)
    check_vocabularies(vocabulary=vocabulary)
    decoder = shape.decoder(shape.embedding(vocabulary), shape.layers, alone=True)
    return assemble_language_model(decoder, shape.width, "target" if tie_embeddings else "none")


def TransformerClassifier(
    vocabulary: int, labels: int, *, pooling: str = "mean", **numbers: Unpack[Numbers]
) -> Labeller:
    """A Transformer encoder with pooling, which gives a whole source one of `labels`.

    `network.logits(source_BS, lengths_B)` are [B, 1, labels]; lengths_B stays on the CPU. pooling:
    "mean", "attention" or "last". For the other keywords and what is raised, see `Transformer`.
    """
    check_choice("pooling", pooling, ("mean", "attention", "last"))
    return _labeller(vocabulary, labels, pooling, Shape(**numbers))


def TransformerTagger(vocabulary: int, labels: int, **numbers: Unpack[Numbers]) -> Labeller:
    """A Transformer encoder, which gives each token of a source one of `labels`.

    `network.logits(source_BS, lengths_B)` are [B, S, labels]; lengths_B stays on the CPU. For the
    keywords and what is raised, see `Transformer`.
    """
    return _labeller(vocabulary, labels, None, Shape(**numbers))


def _labeller(vocabulary: int, labels: int, pooling: str | None, shape: Shape) -> Labeller:
    check_vocabularies(vocabulary=vocabulary)
    check_sizes(labels=labels)
    if shape.norm_embeddings or not shape.scale_embeddings:
        raise ValueError(
            "norm_embeddings and scale_embeddings are for encoder-decoders and language models; "
            "leave them out."
        )
    positions = shape.positional()
    inner = width_of_content(positions, shape.width)
    front = WordEmbedding(vocabulary, inner, positions, shape.dropout)
    return assemble_labeller(front, shape.encoder(), shape.width, labels, pooling)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The numbers of an encoder or a decoder, checked, and the parts that they give."""

    width: int = 512
    heads: int = 8
    layers: int = 6
    feed_forward: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: str = "relu"
    norm: str = "layer"
    norm_position: str = "pre"
    positions: str = "sinusoidal"
    combine: str = "add"
    max_positions: int = 1024
    scale_embeddings: bool = True
    norm_embeddings: bool = False

    def __post_init__(self) -> None:
        check_width(self.width)
        check_sizes(
            layers=self.layers, feed_forward=self.feed_forward, max_positions=self.max_positions
        )
        check_shares(
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            activation_dropout=self.activation_dropout,
        )
        check_choice("activation", self.activation, tuple(ACTIVATIONS))
        check_choice("norm", self.norm, ("layer", "rms"))
        check_choice("norm_position", self.norm_position, ("pre", "post"))
        kinds = ("sinusoidal", "fourier", "learned", "rotary", "none")
        check_choice("positions", self.positions, kinds)
        check_heads(self.width, self.heads, self.positions)
        check_positions_width(self.width, self.positions, self.combine)

    def positional(self) -> Positioned | None:
        return build_positions(
            self.positions, self.width, combine=self.combine, max_length=self.max_positions
        )

    def embedding(self, vocabulary: int) -> TokenEmbedding:
        positions = self.positional()
        inner = width_of_content(positions, self.width)
        norm = build_norm(self.norm, self.width) if self.norm_embeddings else None
        return TokenEmbedding(
            vocabulary, inner, positions, self.dropout, scaled=self.scale_embeddings, norm=norm
        )

    def encoder(self) -> TransformerEncoder:
        return TransformerEncoder(layers=self.layers, **self._blocks())

    def decoder(
        self, embedding: TokenEmbedding, layers: int, alone: bool = False
    ) -> TransformerDecoder:
        return TransformerDecoder(embedding, layers=layers, alone=alone, **self._blocks())

    def _blocks(self) -> dict[str, Any]:
        return {
            "width": self.width,
            "heads": self.heads,
            "feed_forward": self.feed_forward,
            "activation": self.activation,
            "norm": self.norm,
            "norm_position": self.norm_position,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation_dropout": self.activation_dropout,
            "rotary": self.positions == "rotary",
        }
