"""The `model` section of a recipe: kinds of encoders and decoders, sizes, and their checks."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, PositiveInt, Tag, model_validator

from transduce.nn.activation import ACTIVATIONS
from transduce.recipe.presets import PRESETS, expand_preset
from transduce.recipe.section import InvalidValue, Section, Share

if TYPE_CHECKING:
    ActivationName = str
else:
    ActivationName = Literal[tuple(ACTIVATIONS)]


LAYER_HEADS = (
    "the self-attention heads of each layer where some were pruned, such as [8, 5]; each is "
    "width / heads wide"
)


def _check_heads(key: str, kept: list[int] | None, layers: int, heads: int) -> None:
    if kept is None:
        return
    if len(kept) != layers:
        raise InvalidValue(key, f"has {len(kept)} numbers for {layers} layers; give one for each")
    if max(kept) > heads:
        raise InvalidValue(key, f"has {max(kept)}, which is more than heads: {heads}")


class _Transformer(Section):
    kind: Literal["transformer"] = Field("transformer", description="blocks of self-attention")
    layers: PositiveInt = Field(6, description="number of blocks")
    heads: PositiveInt = Field(8, description="attention heads; must divide model.width")
    layer_heads: list[PositiveInt] | None = Field(None, description=LAYER_HEADS)
    feed_forward: PositiveInt = Field(2048, description="inner width of the feed-forward layers")
    activation: ActivationName = Field(
        "relu", description="activation of the feed-forward layers; swiglu is gated"
    )
    norm: Literal["layer", "rms"] = Field("layer", description="LayerNorm or RMSNorm")
    norm_position: Literal["pre", "post"] = Field(
        "pre",
        description="pre-norm, before each sublayer (trains more easily), or post-norm, after it "
        "(as in the paper)",
    )
    attention_dropout: Share = Field(0.0, description="dropout of attention weights")
    activation_dropout: Share = Field(0.0, description="dropout inside the feed-forward layers")
    positions: Literal["sinusoidal", "fourier", "learned", "rotary", "none"] = Field(
        "sinusoidal", description="positional encoding"
    )
    combine: Literal["add", "concatenate"] = Field(
        "add",
        description="add positions to the embeddings, or concatenate them, half of the width each",
    )
    max_positions: PositiveInt = Field(
        1024,
        description="maximum length for learned positions; half the period of fourier positions",
    )
    scale_embeddings: bool = Field(
        True, description="multiply token embeddings by the square root of the width"
    )
    norm_embeddings: bool = Field(
        False, description="norm of the embeddings with their positions (as in BART)"
    )

    @property
    def kept_heads(self) -> list[int]:
        """Of the self-attention of each layer."""
        return (self.layer_heads or [self.heads] * self.layers)[: self.layers]

    @property
    def is_pruned(self) -> bool:
        """Whether layers have fewer heads than they were trained with."""
        return self.layer_heads is not None or getattr(self, "cross_heads", None) is not None

    @model_validator(mode="after")
    def _heads_of_each_layer(self) -> Self:
        _check_heads("layer_heads", self.layer_heads, self.layers, self.heads)
        return self

    @model_validator(mode="after")
    def _check_combine(self) -> Self:
        if self.positions in ("rotary", "none") and self.combine == "concatenate":
            if self.positions == "rotary":
                why = "rotary positions rotate queries and keys and are never concatenated"
            else:
                why = "there are no positions to concatenate"
            raise InvalidValue("combine", f"is concatenate, but {why}; leave it out")
        return self


class TransformerEncoder(_Transformer):
    """Encoder: self-attention over the whole source (Vaswani et al. 2017)."""


class TransformerDecoder(_Transformer):
    """Decoder: causal self-attention, and cross-attention to the source."""

    cross_heads: list[PositiveInt] | None = Field(
        None, description="the cross-attention heads of each layer where some were pruned"
    )

    @model_validator(mode="after")
    def _cross_heads_of_each_layer(self) -> Self:
        _check_heads("cross_heads", self.cross_heads, self.layers, self.heads)
        return self


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


class ConformerEncoder(Section):
    """Conformer: self-attention and convolution in each block (Gulati et al. 2020)."""

    kind: Literal["conformer"] = Field("conformer", description="Conformer blocks")
    layers: PositiveInt = Field(12, description="number of blocks")
    heads: PositiveInt = Field(4, description="attention heads; must divide model.width")
    layer_heads: list[PositiveInt] | None = Field(None, description=LAYER_HEADS)
    feed_forward: PositiveInt = Field(1024, description="inner width of the feed-forward layers")
    kernel: PositiveInt = Field(31, description="kernel size of the convolutions; odd")
    positions: Literal["relative", "rotary", "sinusoidal", "none"] = Field(
        "rotary",
        description="positional encoding; relative: as in the paper; rotary: faster; sinusoidal: "
        "absolute, with which a decoder learns to attend sooner",
    )
    attention_dropout: Share = Field(0.0, description="dropout of attention weights")
    activation_dropout: Share = Field(0.0, description="dropout inside the feed-forward layers")

    @property
    def kept_heads(self) -> list[int]:
        """Of the self-attention of each layer."""
        return (self.layer_heads or [self.heads] * self.layers)[: self.layers]

    @model_validator(mode="after")
    def _heads_of_each_layer(self) -> Self:
        _check_heads("layer_heads", self.layer_heads, self.layers, self.heads)
        return self

    @model_validator(mode="after")
    def _check_kernel(self) -> Self:
        _check_odd("kernel", self.kernel)
        return self


class _Convolutional(Section):
    kind: Literal["convolutional"] = Field("convolutional", description="gated convolutions")
    layers: PositiveInt = Field(4, description="number of blocks")
    kernel: PositiveInt = Field(3, description="kernel size in tokens; odd in an encoder")
    positions: Literal["sinusoidal", "learned", "none"] = Field(
        "sinusoidal", description="positional encoding; learned: as in the paper"
    )
    max_positions: PositiveInt = Field(1024, description="maximum length for learned positions")


class ConvolutionalEncoder(_Convolutional):
    """Convolutional encoder: each layer widens the receptive field (Gehring et al. 2017)."""

    @model_validator(mode="after")
    def _check_kernel(self) -> Self:
        _check_odd("kernel", self.kernel)
        return self


class ConvolutionalDecoder(_Convolutional):
    """Convolutional decoder: causal convolutions, attention to the source in every layer."""


class PooledEncoder(Section):
    """Bag of words: the embeddings themselves, with no layers above them."""

    kind: Literal["pooled"] = Field("pooled", description="bag of words, without context")


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
        _check_odd("location_kernel", self.location_kernel)
        return self


def _check_odd(key: str, kernel: int) -> None:
    if kernel % 2 == 0:
        raise InvalidValue(key, f"is {kernel}; it must be odd")


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("kind", "transformer"))
    return str(getattr(value, "kind", "transformer"))


Encoder = Annotated[
    Annotated[TransformerEncoder, Tag("transformer")]
    | Annotated[ConformerEncoder, Tag("conformer")]
    | Annotated[RecurrentEncoder, Tag("recurrent")]
    | Annotated[ConvolutionalEncoder, Tag("convolutional")]
    | Annotated[PooledEncoder, Tag("pooled")],
    Discriminator(_kind),
]
Decoder = Annotated[
    Annotated[TransformerDecoder, Tag("transformer")]
    | Annotated[RecurrentDecoder, Tag("recurrent")]
    | Annotated[ConvolutionalDecoder, Tag("convolutional")],
    Discriminator(_kind),
]


class Characters(Section):
    """Character features of words, concatenated to word embeddings; they cover unknown words."""

    kind: Literal["lstm", "cnn"] = Field(
        "lstm",
        description="lstm: final states of a bidirectional character LSTM (Lample et al. 2016); "
        "cnn: character trigram convolution with max pooling (Ma and Hovy 2016)",
    )
    width: PositiveInt = Field(64, description="dimensions of model.width that they take; even")
    words: PositiveInt | None = Field(
        None,
        description="only this many of the most frequent words have an embedding of their own; "
        "rarer words are represented by their characters alone, as unknown words are; null: all",
    )


class NGrams(Section):
    """Word n-gram embeddings, added to the word embeddings (fastText, Joulin et al. 2017)."""

    max_n: Annotated[int, Field(ge=2, le=5)] = Field(
        2, description="longest n-gram: 2 for bigrams, 3 for bigrams and trigrams"
    )
    size: PositiveInt = Field(
        500_000, description="rows of the embedding table; n-grams are hashed, rows may collide"
    )


def _preset(name: str) -> str:
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PRESETS)}"
        raise InvalidValue("", f"is {name}, which is not a preset; {hint}")
    return name


class Model(Section):
    preset: Annotated[str, AfterValidator(_preset), "the name of a preset"] | None = Field(
        None, description="name of a predefined architecture; the other keys override it"
    )
    width: PositiveInt = Field(512, description="width of embeddings and hidden states (d_model)")
    dropout: Share = Field(0.1, description="dropout of embeddings and of each sublayer's output")
    tie_embeddings: Literal["all", "target", "none"] = Field(
        "target",
        description="tied embeddings: target (shared with the output layer), all (source, target "
        "and output layer), or none",
    )
    encoder: Encoder | None = Field(TransformerEncoder(), description="the encoder")
    decoder: Decoder | None = Field(TransformerDecoder(), description="the decoder")
    ctc_weight: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="for audio, weight of the CTC loss of the encoder (joint CTC/attention "
        "training); 0: off",
    )
    pooling: Literal["mean", "attention", "last"] = Field(
        "mean",
        description="pooling of encoder states, for a classifier: mean; attention (the mean, "
        "concatenated with dot-product attention pooling); or last state (bidirectional: the last "
        "of each direction)",
    )
    characters: Characters | None = Field(
        None, description="character features of words, for a tagger; null: off"
    )
    ngrams: NGrams | None = Field(
        None, description="word n-gram embeddings, for a classifier or a tagger; null: off"
    )
    word_dropout: Share = Field(
        0.0,
        description="word dropout, for a classifier or a tagger: share of words replaced by the "
        "unknown token during training",
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, values: Any) -> Any:
        return expand_preset(values) if isinstance(values, dict) else values

    @property
    def parts(self) -> dict[str, Encoder | Decoder]:
        """The encoder and the decoder, of those that the task has."""
        parts = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: part for name, part in parts.items() if part is not None}

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        if self.width % 2:
            raise InvalidValue(
                "width", f"is {self.width}; it must be even, as some layers use half of it"
            )
        for name, part in self.parts.items():
            if not isinstance(part, _Transformer | ConformerEncoder):
                continue
            share, rest = divmod(self.width, part.heads)
            if rest:
                raise InvalidValue(
                    f"{name}.heads",
                    f"is {part.heads}, which does not divide model.width, {self.width}",
                )
            if part.positions == "rotary" and share % 2:
                raise InvalidValue(
                    f"{name}.heads",
                    f"is {part.heads}, which leaves {share} of model.width, {self.width}, for each "
                    f"head; rotary positions need an even number there",
                )
            if getattr(part, "combine", "add") == "concatenate" and self.width % 4:
                raise InvalidValue(
                    f"{name}.combine",
                    f"is concatenate, which gives positions half of model.width, {self.width}; "
                    f"that half must be even",
                )
        if self.characters is not None:
            beside = getattr(self.encoder, "combine", "add") == "concatenate"
            room = self.width // 2 if beside else self.width
            if self.characters.width % 2 or self.characters.width >= room:
                raise InvalidValue(
                    "characters.width",
                    f"is {self.characters.width}; it must be even, and below the {room} that "
                    f"model.width has for words",
                )
        sides = {getattr(part, "combine", "add") for part in self.parts.values()}
        if self.tie_embeddings == "all" and len(sides) > 1:
            raise InvalidValue(
                "tie_embeddings",
                "is all, which needs the same combine in model.encoder and model.decoder",
            )
        return self
