"""The model's part of a recipe: what each piece of a network may be, and how they fit."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, PositiveInt, Tag, model_validator

from transduce.nn.activation import ACTIVATIONS
from transduce.recipe.presets import PRESETS, spelt_out
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
    layers: PositiveInt = Field(6, description="blocks one upon the other")
    heads: PositiveInt = Field(8, description="attention heads; they divide the width")
    layer_heads: list[PositiveInt] | None = Field(None, description=LAYER_HEADS)
    feed_forward: PositiveInt = Field(2048, description="inner width of the feed-forward layers")
    activation: ActivationName = Field("relu", description="between them; swiglu has a gate")
    norm: Literal["layer", "rms"] = Field("layer", description="LayerNorm or RMSNorm")
    norm_position: Literal["pre", "post"] = Field(
        "pre", description="before each sublayer (trains easily) or after it (the paper)"
    )
    attention_dropout: Share = Field(0.0, description="of attention weights")
    activation_dropout: Share = Field(0.0, description="inside the feed-forward layers")
    positions: Literal["sinusoidal", "fourier", "learned", "rotary", "none"] = Field(
        "sinusoidal", description="how the order of tokens is told"
    )
    combine: Literal["add", "concatenate"] = Field(
        "add", description="positions added to the embeddings, or half of the width beside them"
    )
    max_positions: PositiveInt = Field(
        1024, description="longest sequence for learned, half the period for fourier positions"
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
    def _something_to_combine(self) -> Self:
        if self.positions in ("rotary", "none") and self.combine == "concatenate":
            if self.positions == "rotary":
                why = "rotary positions turn queries and keys, there is nothing to put beside them"
            else:
                why = "there are no positions to put beside the embeddings"
            raise InvalidValue("combine", f"is concatenate, but {why}; leave it out")
        return self


class TransformerEncoder(_Transformer):
    """Encoder: self-attention over the whole source (Vaswani et al. 2017)."""


class TransformerDecoder(_Transformer):
    """Decoder: masked self-attention, and attention to the source."""

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
    """Reads the source token by token, forwards, backwards or both."""

    kind: Literal["recurrent"] = Field("recurrent", description="one token after the other")
    cell: Cell = Field("lstm", description="the recurrent unit")
    layers: PositiveInt = Field(1, description="layers one upon the other")
    bidirectional: bool = Field(True, description="half of the width reads backwards")
    reverse: bool = Field(False, description="read the source from its end (Sutskever 2014)")
    skip: bool = Field(False, description="input to every layer, output from every layer")


class ConformerEncoder(Section):
    """Attention for what is far, convolution for what is near (Gulati et al. 2020)."""

    kind: Literal["conformer"] = Field("conformer", description="blocks of both")
    layers: PositiveInt = Field(12, description="blocks one upon the other")
    heads: PositiveInt = Field(4, description="attention heads; they divide the width")
    layer_heads: list[PositiveInt] | None = Field(None, description=LAYER_HEADS)
    feed_forward: PositiveInt = Field(1024, description="inner width of the feed-forward layers")
    kernel: PositiveInt = Field(31, description="states that a convolution sees; odd")
    positions: Literal["relative", "rotary", "sinusoidal", "none"] = Field(
        "rotary",
        description="how far apart states are: the paper's, or turned, which is faster; "
        "sinusoidal: where each is, added to it, by which a decoder finds its way sooner",
    )
    attention_dropout: Share = Field(0.0, description="of attention weights")
    activation_dropout: Share = Field(0.0, description="inside the feed-forward layers")

    @property
    def kept_heads(self) -> list[int]:
        """Of the self-attention of each layer."""
        return (self.layer_heads or [self.heads] * self.layers)[: self.layers]

    @model_validator(mode="after")
    def _heads_of_each_layer(self) -> Self:
        _check_heads("layer_heads", self.layer_heads, self.layers, self.heads)
        return self

    @model_validator(mode="after")
    def _kernel_has_a_middle(self) -> Self:
        _check_odd("kernel", self.kernel)
        return self


class _Convolutional(Section):
    kind: Literal["convolutional"] = Field("convolutional", description="gated convolutions")
    layers: PositiveInt = Field(4, description="blocks one upon the other")
    kernel: PositiveInt = Field(3, description="tokens that a convolution sees; odd in an encoder")
    positions: Literal["sinusoidal", "learned", "none"] = Field(
        "sinusoidal", description="added to the embeddings; learned: as in the paper"
    )
    max_positions: PositiveInt = Field(1024, description="longest sequence for learned positions")


class ConvolutionalEncoder(_Convolutional):
    """Encoder: a token sees its neighbours, with each layer more of them (Gehring et al. 2017)."""

    @model_validator(mode="after")
    def _kernel_has_a_middle(self) -> Self:
        _check_odd("kernel", self.kernel)
        return self


class ConvolutionalDecoder(_Convolutional):
    """Decoder: sees the last tokens, and attends to the source in every layer."""


class PooledEncoder(Section):
    """The embeddings as they are: a bag of words."""

    kind: Literal["pooled"] = Field("pooled", description="no word knows of another")


class RecurrentDecoder(Section):
    """Writes the target token by token, with attention to the source or without."""

    kind: Literal["recurrent"] = Field("recurrent", description="one token after the other")
    cell: Cell = Field("lstm", description="the recurrent unit")
    layers: PositiveInt = Field(1, description="layers one upon the other")
    attention: Score = Field(
        "general",
        description="alignment score; none: the encoder's final state is all it gets; "
        "location-aware: additive, and knows where it attended before (Chorowski 2015; for "
        "speech); location: by the target state alone (Luong 2015)",
    )
    context: Literal["input", "output", "both"] = Field(
        "output", description="where the attended source enters: the next input, the output"
    )
    max_positions: PositiveInt = Field(
        1024, description="longest source that location attention can point into"
    )
    location_filters: PositiveInt = Field(
        10, description="filters of location-aware attention over its weights of the last step"
    )
    location_kernel: PositiveInt = Field(
        51, description="source states that such a filter sees; odd"
    )
    skip: bool = Field(False, description="input to every layer, output from every layer")

    @model_validator(mode="after")
    def _kernel_has_a_middle(self) -> Self:
        _check_odd("location_kernel", self.location_kernel)
        return self


def _check_odd(key: str, kernel: int) -> None:
    if kernel % 2 == 0:
        raise InvalidValue(key, f"is {kernel}; it must be odd, to have a middle")


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
    """Features of a word from its letters, beside its embedding: they know unknown words too."""

    kind: Literal["lstm", "cnn"] = Field(
        "lstm",
        description="lstm: what is left after reading it both ways (Lample et al. 2016); cnn: the "
        "greatest of each feature over all spans of three letters (Ma and Hovy 2016)",
    )
    width: PositiveInt = Field(64, description="how much of model.width they take; even")
    words: PositiveInt | None = Field(
        None,
        description="only so many words, the most frequent, have an embedding too: what is learnt "
        "of the rare ones by their letters then holds for unknown ones",
    )


class NGrams(Section):
    """Vectors of neighbouring words together, added to those of words (Joulin et al. 2017)."""

    max_n: Annotated[int, Field(ge=2, le=5)] = Field(
        2, description="the most words of one: 2 are pairs, 3 are pairs and triples"
    )
    size: PositiveInt = Field(
        500_000, description="rows of their table; which is whose a hash tells, and some share one"
    )


def _preset(name: str) -> str:
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PRESETS)}"
        raise InvalidValue("", f"is {name}; there is no such preset; {hint}")
    return name


class Model(Section):
    preset: Annotated[str, AfterValidator(_preset), "the name of a preset"] | None = Field(
        None, description="a shape by name; the other keys override it"
    )
    width: PositiveInt = Field(512, description="width of embeddings and hidden states")
    dropout: Share = Field(0.1, description="of embeddings and of each sublayer's output")
    tie_embeddings: Literal["all", "target", "none"] = Field(
        "target",
        description="which embeddings are one: all (source, target, output), target and output",
    )
    encoder: Encoder | None = Field(TransformerEncoder(), description="reads the source")
    decoder: Decoder | None = Field(TransformerDecoder(), description="writes the target")
    ctc_weight: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="of audio, the share of CTC in the loss: the encoder alone is to say what is "
        "said; 0: none",
    )
    pooling: Literal["mean", "attention", "last"] = Field(
        "mean",
        description="of all states one, for a classifier: their average; that of dot-product "
        "attention among them, beside it; or the last (recurrent: of both directions)",
    )
    characters: Characters | None = Field(None, description="letters of words, for a tagger")
    ngrams: NGrams | None = Field(
        None, description="neighbouring words together, for a classifier or a tagger"
    )
    word_dropout: Share = Field(
        0.0, description="words whose embedding is that of unknown ones, while it learns labels"
    )

    @model_validator(mode="before")
    @classmethod
    def _spelt_out(cls, values: Any) -> Any:
        return spelt_out(values) if isinstance(values, dict) else values

    @property
    def parts(self) -> dict[str, Encoder | Decoder]:
        """The parts that the task has."""
        parts = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: part for name, part in parts.items() if part is not None}

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if self.width % 2:
            raise InvalidValue(
                "width", f"is {self.width}; it must be even, as parts take half of it"
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
