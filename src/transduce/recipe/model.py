"""The `model` section of a recipe: kinds of encoders and decoders, sizes, and their checks."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    PositiveFloat,
    PositiveInt,
    Tag,
    model_validator,
)

from transduce.nn.activation import ACTIVATIONS
from transduce.recipe.audio import Audio
from transduce.recipe.presets import PRESETS, expand_preset
from transduce.recipe.section import Fraction, InvalidValue, Section

if TYPE_CHECKING:
    ActivationName = str
else:
    ActivationName = Literal[tuple(ACTIVATIONS)]


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
CHUNK = (
    "for audio, an encoder that can read in chunks, for live recognition (Zhang et al. 2020); "
    "null: only whole recordings"
)
LAYER_HEADS = (
    "the self-attention heads of each layer where some were pruned, such as [8, 5]; each is "
    "width / heads wide"
)


class Chunk(Section):
    """A streaming encoder: attention sees its own chunk and some before it, convolutions only the
    past; chunks of changing sizes in training (Zhang et al. 2020)."""

    ms: PositiveFloat = Field(
        640.0, description="chunk of live recognition in milliseconds, unless another is asked for"
    )
    trained: Annotated[list[PositiveFloat], Field(min_length=2, max_length=2)] = Field(
        [80.0, 1280.0],
        description="shortest and longest chunk in training, in milliseconds; each batch has one "
        "size, drawn between them",
    )
    whole: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="share of training batches in which attention sees whole recordings"
    )
    left_chunks: PositiveInt = Field(
        16, description="chunks before its own that a state attends to, at any chunk size"
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        minimum, maximum = self.trained
        if minimum > maximum:
            raise InvalidValue("trained", f"is {[minimum, maximum]}; give the shortest first")
        return self


def _odd(kernel: int) -> int:
    if kernel % 2 == 0:
        raise InvalidValue("", f"is {kernel}; it must be odd")
    return kernel


Odd = Annotated[PositiveInt, AfterValidator(_odd)]


def _check_heads(key: str, kept: list[int] | None, layers: int, heads: int) -> None:
    if kept is None:
        return
    if len(kept) != layers:
        raise InvalidValue(key, f"has {len(kept)} numbers for {layers} layers; give one for each")
    if max(kept) > heads:
        raise InvalidValue(key, f"has {max(kept)}, which is more than heads: {heads}")


TagPositions = Literal["counted", "zero"]
TAG_POSITIONS = (
    "positions of the tags that a source begins with: counted, as other tokens; or zero: all tags "
    "have the position 0 and letters count from 1, whatever the number of tags (Wu et al. 2021)"
)


class _Transformer(Section):
    kind: Literal["transformer"] = Field("transformer", description="blocks of self-attention")
    layers: PositiveInt = Field(6, description="number of blocks")
    heads: PositiveInt = Field(
        8, description="attention heads; must divide model.width, unless head_width is given"
    )
    head_width: PositiveInt | None = Field(
        None, description="width of one attention head; null: model.width / heads"
    )
    layer_heads: list[PositiveInt] | None = Field(None, description=LAYER_HEADS)
    feed_forward: PositiveInt = Field(2048, description="inner width of the feed-forward layers")
    activation: ActivationName = Field(
        "relu",
        description="activation of the feed-forward layers; swiglu and geglu are gated; with _tanh "
        "GELU is approximated",
    )
    norm: Literal["layer", "rms"] = Field("layer", description="LayerNorm or RMSNorm")
    norm_position: Literal["pre", "post"] = Field(
        "pre",
        description="pre-norm, before each sublayer (trains more easily), or post-norm, after it "
        "(as in the paper)",
    )
    norm_epsilon: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="added to the variance in norms; null: 1e-5 in LayerNorm, 1e-6 in RMSNorm",
    )
    attention_dropout: Fraction = Field(0.0, description="dropout of attention weights")
    activation_dropout: Fraction = Field(0.0, description="dropout inside the feed-forward layers")
    positions: Literal["sinusoidal", "fourier", "learned", "rotary", "relative", "none"] = Field(
        "sinusoidal",
        description="positional encoding; relative: a learned bias of attention by distance, as in "
        "T5, which decodes more slowly",
    )
    combine: Literal["add", "concatenate"] = Field(
        "add",
        description="add positions to the embeddings, or concatenate them, half of the width each",
    )
    max_positions: PositiveInt = Field(
        1024,
        description="maximum length for learned positions; half the period of fourier positions",
    )
    rotary_base: Annotated[float, Field(gt=1, le=1e9)] = Field(
        10000.0,
        description="base of the wavelengths of rotary positions; larger for longer texts",
    )
    relative_buckets: Annotated[int, Field(ge=4, le=4096, multiple_of=2)] = Field(
        32, description="buckets of distances of relative positions; even"
    )
    relative_distance: Annotated[int, Field(ge=4, le=1_000_000)] = Field(
        128, description="distance from which on relative positions have one bucket"
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
        if self.positions == "relative":
            if self.relative_distance <= self.relative_buckets // 2:
                raise InvalidValue(
                    "relative_distance",
                    f"is {self.relative_distance}, which must be more than half of "
                    f"relative_buckets, {self.relative_buckets}",
                )
            if self.is_pruned:
                raise InvalidValue("layer_heads", "does not go with relative positions")
        if self.positions in ("rotary", "relative", "none") and self.combine == "concatenate":
            if self.positions == "rotary":
                why = "rotary positions rotate queries and keys and are never concatenated"
            elif self.positions == "relative":
                why = "relative positions act on attention and are never concatenated"
            else:
                why = "there are no positions to concatenate"
            raise InvalidValue("combine", f"is concatenate, but {why}; leave it out")
        return self


class TransformerEncoder(_Transformer):
    """Encoder: self-attention over the whole source (Vaswani et al. 2017)."""

    tag_positions: TagPositions = Field("counted", description=TAG_POSITIONS)
    chunk: Chunk | None = Field(None, description=CHUNK)


class TransformerDecoder(_Transformer):
    """Decoder: causal self-attention, and cross-attention to the source."""

    cross_heads: list[PositiveInt] | None = Field(
        None, description="the cross-attention heads of each layer where some were pruned"
    )
    copying: bool = Field(
        False,
        description="copy tokens from the source, also such as training never saw: attention is "
        "mixed with the vocabulary (pointer-generator, See et al. 2017)",
    )

    @model_validator(mode="after")
    def _cross_heads_of_each_layer(self) -> Self:
        _check_heads("cross_heads", self.cross_heads, self.layers, self.heads)
        return self


class ConformerEncoder(Section):
    """Conformer: self-attention and convolution in each block (Gulati et al. 2020)."""

    kind: Literal["conformer"] = Field("conformer", description="Conformer blocks")
    layers: PositiveInt = Field(12, description="number of blocks")
    heads: PositiveInt = Field(4, description="attention heads; must divide model.width")
    layer_heads: list[PositiveInt] | None = Field(None, description=LAYER_HEADS)
    feed_forward: PositiveInt = Field(1024, description="inner width of the feed-forward layers")
    kernel: Odd = Field(31, description="kernel size of the convolutions; odd")
    positions: Literal["relative", "rotary", "sinusoidal", "none"] = Field(
        "rotary",
        description="positional encoding; relative: as in the paper; rotary: faster; sinusoidal: "
        "absolute, with which a decoder learns to attend sooner",
    )
    tag_positions: TagPositions = Field("counted", description=TAG_POSITIONS)
    attention_dropout: Fraction = Field(0.0, description="dropout of attention weights")
    activation_dropout: Fraction = Field(0.0, description="dropout inside the feed-forward layers")
    chunk: Chunk | None = Field(None, description=CHUNK)

    @property
    def kept_heads(self) -> list[int]:
        """Of the self-attention of each layer."""
        return (self.layer_heads or [self.heads] * self.layers)[: self.layers]

    @model_validator(mode="after")
    def _heads_of_each_layer(self) -> Self:
        _check_heads("layer_heads", self.layer_heads, self.layers, self.heads)
        return self


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
    copying: bool = Field(
        False,
        description="copy tokens from the source, also such as training never saw: attention is "
        "mixed with the vocabulary (pointer-generator, See et al. 2017)",
    )
    tag_attention: bool = Field(
        False,
        description="the encoder reads the letters of a source alone; the decoder reads its tags: "
        "their sum with each input, and by attention of their own (Peters & Martins 2019)",
    )
    max_positions: PositiveInt = Field(
        1024, description="maximum source length of location attention"
    )
    location_filters: PositiveInt = Field(
        10, description="number of convolution filters of location-aware attention"
    )
    location_kernel: Odd = Field(51, description="kernel size of these filters; odd")
    skip: bool = Field(
        False,
        description="skip connections from the input to every layer and from every layer to the "
        "output (Graves 2013)",
    )


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

    kernel: Odd = Field(3, description="kernel size in tokens; odd in an encoder")


class ConvolutionalDecoder(_Convolutional):
    """Convolutional decoder: causal convolutions, attention to the source in every layer."""


class PooledEncoder(Section):
    """Bag of words: the embeddings themselves, with no layers above them."""

    kind: Literal["pooled"] = Field("pooled", description="bag of words, without context")


class Transducer(Section):
    """Transducer (RNN-T, Graves 2012): the decoder is the prediction network, which reads the
    tokens so far; a joint network joins it with each encoder state."""

    joint_width: PositiveInt | None = Field(
        None, description="width of the joint network; null: model.width"
    )


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
    dropout: Fraction = Field(
        0.1, description="dropout of embeddings and of each sublayer's output"
    )
    tie_embeddings: Literal["all", "target", "none"] = Field(
        "target",
        description="tied embeddings: target (shared with the output layer), all (source, target "
        "and output layer), or none",
    )
    output_bias: bool = Field(
        True,
        description="whether the output layer has a bias; false for a language model that is to be "
        "exported as Llama or Granite, which have none",
    )
    source_end: bool = Field(
        True,
        description="whether the encoder reads the end token of a source; false for models of "
        "toolkits that append none",
    )
    encoder: Encoder | None = Field(TransformerEncoder(), description="the encoder")
    decoder: Decoder | None = Field(TransformerDecoder(), description="the decoder")
    ctc_weight: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="for audio, weight of the CTC loss of the encoder (joint CTC/attention "
        "training); 0: off",
    )
    transducer: Transducer | None = Field(
        None,
        description="for audio, a transducer (RNN-T), which writes while it hears; its decoder is "
        "recurrent with attention: none, or convolutional with positions: none; null: off",
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
    word_dropout: Fraction = Field(
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

    @property
    def copies(self) -> bool:
        """Whether the decoder copies from the source."""
        return bool(getattr(self.decoder, "copying", False))

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        if self.width % 2:
            raise InvalidValue(
                "width", f"is {self.width}; it must be even, as some layers use half of it"
            )
        for name, part in self.parts.items():
            if not isinstance(part, _Transformer | ConformerEncoder):
                continue
            if getattr(part, "combine", "add") == "concatenate" and self.width % 4:
                raise InvalidValue(
                    f"{name}.combine",
                    f"is concatenate, which gives positions half of model.width, {self.width}; "
                    f"that half must be even",
                )
            own = getattr(part, "head_width", None)
            if own is not None:
                if part.positions == "rotary" and own % 2:
                    raise InvalidValue(
                        f"{name}.head_width", f"is {own}; rotary positions need an even number"
                    )
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
        if self.characters is not None:
            beside = getattr(self.encoder, "combine", "add") == "concatenate"
            capacity = self.width // 2 if beside else self.width
            if self.characters.width % 2 or self.characters.width >= capacity:
                raise InvalidValue(
                    "characters.width",
                    f"is {self.characters.width}; it must be even, and below the {capacity} that "
                    f"model.width has for words",
                )
        sides = {getattr(part, "combine", "add") for part in self.parts.values()}
        if self.tie_embeddings == "all" and len(sides) > 1:
            raise InvalidValue(
                "tie_embeddings",
                "is all, which needs the same combine in model.encoder and model.decoder",
            )
        return self


def check_transducer(model: Model, audio: Audio | None) -> None:
    """What a transducer requires of the rest of a recipe. Raises InvalidValue."""
    if model.transducer is None:
        return
    if audio is None:
        raise InvalidValue(
            "model.transducer", "is given, but only speech to text has transducers; leave it out"
        )
    if audio.features != "kaldi":
        raise InvalidValue(
            "model.transducer",
            f"is given, but audio.features: {audio.features} are those of an imported model with "
            f"attention; leave one out",
        )
    decoder = model.decoder
    if isinstance(decoder, RecurrentDecoder):
        if decoder.attention != "none":
            raise InvalidValue(
                "model.decoder.attention",
                f"is {decoder.attention}, but the prediction network of a transducer hears "
                f"nothing that it could attend to; set it to none",
            )
    elif isinstance(decoder, ConvolutionalDecoder):
        if decoder.positions != "none":
            raise InvalidValue(
                "model.decoder.positions",
                f"is {decoder.positions}, but the prediction network of a transducer knows its "
                f"last tokens alone; set it to none",
            )
    else:
        kind = getattr(decoder, "kind", "null")
        raise InvalidValue(
            "model.decoder.kind",
            f"is {kind}, but the prediction network of a transducer goes from token to token: use "
            f"{{kind: recurrent, attention: none}} or {{kind: convolutional, positions: none}}",
        )


def check_chunk(model: Model, audio: Audio | None) -> None:
    """What the chunks of an encoder require of the rest of a recipe. Raises InvalidValue."""
    encoder, writes = model.encoder, model.ctc_weight or model.transducer is not None
    key, chunk = "model.encoder.chunk", getattr(encoder, "chunk", None)
    if not isinstance(chunk, Chunk):
        return
    if audio is None:
        raise InvalidValue(key, "is given, but only speech to text is read in chunks; leave it out")
    if audio.features != "kaldi":
        raise InvalidValue(
            key, f"is given, but audio.features: {audio.features} need the whole recording"
        )
    if audio.normalize != "global":
        raise InvalidValue(
            key,
            "is given, but audio.normalize is utterance, which needs the whole recording; set "
            "audio.normalize to global",
        )
    if not writes:
        raise InvalidValue(
            key,
            "is given, but live recognition needs CTC or a transducer; set model.ctc_weight, such "
            "as 0.5",
        )
    for name, values in (("ms", [chunk.ms]), ("trained", chunk.trained)):
        for value in values:
            if why := no_multiple(value, audio.state_ms):
                raise InvalidValue(f"{key}.{name}", f"has {value:g} ms, {why}")


def no_multiple(ms: float, state_ms: float) -> str:
    """Why a chunk cannot have so many milliseconds; empty: it can."""
    states = max(1, round(ms / state_ms))
    if abs(states * state_ms - ms) <= 1e-6 * ms:
        return ""
    return (
        f"which is not a multiple of the {state_ms:g} ms from one encoder state to the next; the "
        f"nearest is {states * state_ms:.6f}".rstrip("0").rstrip(".")
    )


# Those with position embeddings, which end somewhere.
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
