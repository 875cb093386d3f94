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
    norm_epsilon: float | None = None,
    rotary_base: float = 10000.0,
    head_width: int | None = None,
    relative_buckets: int = 32,
    relative_distance: int = 128,
    scale_embeddings: bool = True,
    norm_embeddings: bool = False,
) -> EncoderDecoder:
    """A Transformer encoder-decoder (Vaswani et al. 2017) with random weights.

    A source is token ids source_BS and lengths_B, which stays on the CPU; a target is BEGIN … END,
    padded with PAD. The ids 0 to 3 are PAD, UNKNOWN, BEGIN and END.

        network = Transformer(8000, 8000, width=256, heads=4, layers=3, feed_forward=1024)
        network.loss(source_BS, lengths_B, target_BT)              # sums over tokens, for training
        network.logits(source_BS, lengths_B, target_BT[:, :-1])    # [B, T - 1, V]
        state = network.start(source_BS, lengths_B)                # then token by token:
        log_probabilities_BV, state = network.step(tokens_B, state)

    Args:
        source_vocabulary: number of source tokens, the four special ones included.
        target_vocabulary: number of target tokens, the four special ones included.
        width: width of the states.
        heads: attention heads of each layer.
        layers: layers of the encoder, and of the decoder if decoder_layers is None.
        feed_forward: width of the hidden layer of the feed-forward networks.
        decoder_layers: layers of the decoder.
        dropout: of embeddings and of the output of each sublayer.
        attention_dropout: of the attention weights.
        activation_dropout: of the hidden layer of the feed-forward networks.
        tie_embeddings: "target" (target and output share one table), "all" (the source too) or
            "none".
        activation: "relu", "gelu", "swiglu" or another of `nn.activation`.
        norm: "layer" (LayerNorm) or "rms" (RMSNorm).
        norm_position: "pre" (Xiong et al. 2020, https://arxiv.org/abs/2002.04745), or the paper's
            "post".
        positions: "sinusoidal", "fourier", "learned", "rotary" (Su et al. 2021,
            https://arxiv.org/abs/2104.09864), "relative" (a bias, as in T5) or "none".
        combine: "add" positions to the embeddings, or "concatenate" them, half of the width each.
        max_positions: the longest sequence with learned positions.
        norm_epsilon: added to the variance in norms; None is the usual value of the norm.
        rotary_base: of the wavelengths of rotary positions.
        head_width: width of one head, if it is not width / heads.
        relative_buckets: number of buckets of distances with relative positions.
        relative_distance: distances from here on share a bucket.
        scale_embeddings: multiply embeddings by the square root of the width.
        norm_embeddings: a norm after embeddings and positions, as in BART.

    Raises:
        ValueError: for numbers that do not fit together.
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
        norm_epsilon=norm_epsilon,
        rotary_base=rotary_base,
        head_width=head_width,
        relative_buckets=relative_buckets,
        relative_distance=relative_distance,
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
    norm_epsilon: float | None
    rotary_base: float
    head_width: int | None
    relative_buckets: int
    relative_distance: int
    scale_embeddings: bool
    norm_embeddings: bool


def TransformerLanguageModel(
    vocabulary: int, *, tie_embeddings: bool = True, **numbers: Unpack[Numbers]
) -> LanguageModelNetwork:
    """A Transformer decoder without an encoder, which predicts the next token.

        network = TransformerLanguageModel(8000, width=256, heads=4, layers=6, feed_forward=1024)
        network.logits(tokens_BT)             # [B, T, V], of the next token; starts with BEGIN
        state = network.read(tokens_BT)       # then token by token:
        log_probabilities_BV, state = network.step(tokens_B, state)

    Args:
        vocabulary: number of tokens, the four special ones included.
        tie_embeddings: whether input and output share one table.
        **numbers: the other keywords of `Transformer`, and its ValueError.
    """
    shape = Shape(**numbers)
    check_vocabularies(vocabulary=vocabulary)
    decoder = shape.decoder(shape.embedding(vocabulary), shape.layers, alone=True)
    return assemble_language_model(decoder, shape.width, "target" if tie_embeddings else "none")


def TransformerClassifier(
    vocabulary: int, labels: int, *, pooling: str = "mean", **numbers: Unpack[Numbers]
) -> Labeller:
    """A Transformer encoder with pooling, which gives a whole source one of several labels.

        network = TransformerClassifier(20_000, labels=2, width=128, heads=4, layers=2)
        network.logits(source_BS, lengths_B)           # [B, 1, labels]; lengths_B stays on the CPU

    Args:
        vocabulary: number of source tokens, the four special ones included.
        labels: number of labels; label n is token n + 4 of a target.
        pooling: "mean", "attention" or "last".
        **numbers: the other keywords of `Transformer`, and its ValueError.
    """
    check_choice("pooling", pooling, ("mean", "attention", "last"))
    return _labeller(vocabulary, labels, pooling, Shape(**numbers))


def TransformerTagger(vocabulary: int, labels: int, **numbers: Unpack[Numbers]) -> Labeller:
    """A Transformer encoder, which gives each token of a source one of several labels.

        network = TransformerTagger(20_000, labels=17, width=128, heads=4, layers=2)
        network.logits(source_BS, lengths_B)           # [B, S, labels]; lengths_B stays on the CPU

    Args:
        vocabulary: number of source tokens, the four special ones included.
        labels: number of labels; label n is token n + 4 of a target.
        **numbers: the other keywords of `Transformer`, and its ValueError.
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
    norm_epsilon: float | None = None
    rotary_base: float = 10000.0
    head_width: int | None = None
    relative_buckets: int = 32
    relative_distance: int = 128
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
        kinds = ("sinusoidal", "fourier", "learned", "rotary", "relative", "none")
        check_choice("positions", self.positions, kinds)
        if self.head_width is None:
            check_heads(self.width, self.heads, self.positions)
        else:
            check_sizes(heads=self.heads, head_width=self.head_width)
        check_positions_width(self.width, self.positions, self.combine)

    def positional(self) -> Positioned | None:
        return build_positions(
            self.positions, self.width, combine=self.combine, max_length=self.max_positions
        )

    def embedding(self, vocabulary: int) -> TokenEmbedding:
        positions = self.positional()
        inner = width_of_content(positions, self.width)
        norm = (
            build_norm(self.norm, self.width, self.norm_epsilon) if self.norm_embeddings else None
        )
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
            "rotary_base": self.rotary_base,
            "norm_epsilon": self.norm_epsilon,
            "head_width": self.head_width,
            "relative": (self.relative_buckets, self.relative_distance)
            if self.positions == "relative"
            else None,
        }
