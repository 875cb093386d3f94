"""Whole networks of plain numbers, by the names of their papers; no recipe is needed.

Each is `models/build.py` with the sections of a recipe that these numbers give: what is checked,
and how weights are drawn, is said there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict, Unpack

from transduce import recipe
from transduce.data.tokens.tokenizer import SPECIALS
from transduce.errors import ModelError, RecipeError
from transduce.models.build import (
    Vocabulary,
    build,
    build_audio,
    build_label_network,
    build_language_model,
)
from transduce.models.encoder_decoder import EncoderDecoder
from transduce.models.label_network import LabelNetwork
from transduce.models.language_model import LanguageModelNetwork
from transduce.models.speech import SpeechEncoderDecoder
from transduce.nn.speech.spec_augment import SpecAugment

# ------------------------------------------------------------------------------------ Transformer


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
    output_bias: bool = True,
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
        output_bias: whether the output layer has a bias.
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
    return _seq2seq("transformer", locals())


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


class Labels(Numbers, total=False):
    """The keywords of classifiers and taggers."""

    word_dropout: float
    ngrams: Mapping[str, int] | None


def TransformerLanguageModel(
    vocabulary: int,
    *,
    tie_embeddings: bool = True,
    output_bias: bool = True,
    **numbers: Unpack[Numbers],
) -> LanguageModelNetwork:
    """A Transformer decoder without an encoder, which predicts the next token.

        network = TransformerLanguageModel(8000, width=256, heads=4, layers=6, feed_forward=1024)
        network.logits(tokens_BT)             # [B, T, V], of the next token; starts with BEGIN
        state = network.read(tokens_BT)       # then token by token:
        log_probabilities_BV, state = network.step(tokens_B, state)

    Args:
        vocabulary: number of tokens, the four special ones included.
        tie_embeddings: whether input and output share one table.
        output_bias: whether the output layer has a bias.
        **numbers: the other keywords of `Transformer`, and its ValueError.
    """
    ends = {"tie_embeddings": tie_embeddings, "output_bias": output_bias}
    return _language_model("transformer", {"vocabulary": vocabulary, **numbers, **ends})


def TransformerClassifier(
    vocabulary: int, labels: int, *, pooling: str = "mean", **numbers: Unpack[Labels]
) -> LabelNetwork:
    """A Transformer encoder with pooling, which gives a whole source one of several labels.

        network = TransformerClassifier(20_000, labels=2, width=128, heads=4, layers=2)
        network.logits(source_BS, lengths_B)           # [B, 1, labels]; lengths_B stays on the CPU

    Args:
        vocabulary: number of source tokens, the four special ones included.
        labels: number of labels; label n is token n + 4 of a target.
        pooling: "mean", "attention" or "last".
        **numbers: the other keywords of `Transformer`, and its ValueError; besides `word_dropout`,
            the share of tokens that training takes for unknown, and `ngrams`, such as {"max_n": 2}
            for the embeddings of bigrams.
    """
    return _label_network(vocabulary, labels, {**numbers, "pooling": pooling}, pooled=True)


def TransformerTagger(vocabulary: int, labels: int, **numbers: Unpack[Labels]) -> LabelNetwork:
    """A Transformer encoder, which gives each token of a source one of several labels.

        network = TransformerTagger(20_000, labels=17, width=128, heads=4, layers=2)
        network.logits(source_BS, lengths_B)           # [B, S, labels]; lengths_B stays on the CPU

    Args:
        vocabulary: number of source tokens, the four special ones included.
        labels: number of labels; label n is token n + 4 of a target.
        **numbers: the other keywords of `Transformer`, and its ValueError; besides `word_dropout`,
            the share of tokens that training takes for unknown, and `ngrams`, such as {"max_n": 2}
            for the embeddings of bigrams.
    """
    return _label_network(vocabulary, labels, {**numbers}, pooled=False)


# ------------------------------------------------------------------------------ recurrent networks


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
    output_bias: bool = True,
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
        output_bias: whether the output layer has a bias.
        max_positions: the longest source with attention="location".
        location_filters: convolution filters of "location-aware" attention.
        location_kernel: states that such a filter sees; odd.

    Raises:
        ValueError: for numbers that do not fit together.
    """
    return _seq2seq("recurrent", {**locals(), "attention": attention or "none"})


def RecurrentLanguageModel(
    vocabulary: int,
    *,
    width: int = 512,
    cell: str = "lstm",
    layers: int = 1,
    skip: bool = False,
    dropout: float = 0.1,
    tie_embeddings: bool = True,
    output_bias: bool = True,
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
        output_bias: whether the output layer has a bias.

    Raises:
        ValueError: for numbers that do not fit together.
    """
    return _language_model("recurrent", locals())


# ------------------------------------------------------------------------------ gated convolutions


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
    output_bias: bool = True,
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
        output_bias: whether the output layer has a bias.

    Raises:
        ValueError: for numbers that do not fit together.
    """
    return _seq2seq("convolutional", locals())


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
    output_bias: bool = True,
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
        output_bias: whether the output layer has a bias.

    Raises:
        ValueError: for numbers that do not fit together.
    """
    return _language_model("convolutional", locals())


# ---------------------------------------------------------------------------------------- speech


def Conformer(
    vocabulary: int,
    *,
    width: int = 256,
    heads: int = 4,
    layers: int = 12,
    feed_forward: int = 1024,
    kernel: int = 31,
    positions: str = "rotary",
    decoder_layers: int = 6,
    decoder_heads: int | None = None,
    decoder_feed_forward: int | None = None,
    ctc_weight: float = 0.3,
    transcript_vocabulary: int | None = None,
    tie_embeddings: bool = True,
    output_bias: bool = True,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    sample_rate: int = 16_000,
    mel_bands: int = 80,
    window_ms: float = 25.0,
    hop_ms: float = 10.0,
    normalize: str = "utterance",
    channels: int | None = None,
    subsampling: int = 4,
    speed_perturbation: Sequence[float] = (),
    background_noise: bool | Mapping[str, Any] = False,
    spec_augment: bool | SpecAugment | Mapping[str, Any] = True,
    chunk: bool | Mapping[str, Any] = False,
) -> SpeechEncoderDecoder:
    """Speech to tokens: a Conformer encoder, a Transformer decoder, and CTC, with random weights.

    A source is samples_BW of one channel, 16-bit integers or floating-point numbers within ±1;
    lengths_B, in samples, stays on the CPU. A target is BEGIN … END, padded with PAD.

        network = Conformer(32, width=144, layers=4, decoder_layers=1)
        network.loss(samples_BW, lengths_B, target_BT)             # sums over tokens, for training
        network.logits(samples_BW, lengths_B, target_BT[:, :-1])   # [B, T - 1, V]
        state = network.start(samples_BW, lengths_B)               # then token by token:
        log_probabilities_BV, state = network.step(tokens_B, state)
        network.ctc_log_probs(network.encode(samples_BW, lengths_B))           # [B, S, V]

    Args:
        vocabulary: number of target tokens, the four special ones included.
        width: width of the states.
        heads: attention heads of each encoder layer.
        layers: layers of the encoder.
        feed_forward: width of the hidden layer of the encoder's feed-forward networks.
        kernel: number of states that a convolution sees; odd. A state is `subsampling` hops, 40 ms.
        positions: "rotary", the paper's "relative", "sinusoidal" or "none".
        decoder_layers: layers of the decoder.
        decoder_heads: heads of the decoder; None: as in the encoder.
        decoder_feed_forward: feed-forward width of the decoder; None: as in the encoder.
        ctc_weight: w in the loss (1 − w) decoder + w CTC (Watanabe et al. 2017,
            https://arxiv.org/abs/1609.06773); 0: no CTC.
        transcript_vocabulary: CTC's vocabulary, if the target is not the transcript, as in speech
            translation.
        tie_embeddings: whether the decoder's input and output share one table.
        output_bias: whether the output layer has a bias.
        dropout: of the output of each sublayer.
        attention_dropout: of the attention weights.
        activation_dropout: of the hidden layer of the feed-forward networks.
        sample_rate: samples per second.
        mel_bands: number of mel bands.
        window_ms: length of a frame in milliseconds.
        hop_ms: time from one frame to the next in milliseconds.
        normalize: features by the mean and variance of each "utterance", or by "global" ones,
            which `network.front.norm` holds.
        channels: of the convolutions that subsample; None: as many as the width.
        subsampling: frames for each state: 4; 2 for short recordings with many tokens, 8 for long
            ones with large tokens.
        speed_perturbation: speeds drawn in training, such as (0.9, 1.0, 1.1).
        background_noise: in training, noise in recordings and around them, as around live speech;
            True, or keys of the recipe's `audio.background_noise`, such as {"snr": [10.0, 40.0]}.
        spec_augment: SpecAugment (Park et al. 2019) with its default numbers, your own, or False.
        chunk: an encoder that can also read in chunks, for live recognition (Zhang et al. 2020,
            https://arxiv.org/abs/2012.05481); True, or keys of the recipe's `model.encoder.chunk`,
            such as {"trained": [80.0, 640.0]}. It needs normalize="global" and CTC.

    Raises:
        ValueError: for numbers that do not fit together.
    """
    given = locals()
    if isinstance(spec_augment, SpecAugment):
        spec_augment = _of(recipe.SpecAugment, vars(spec_augment))
    model = _of(recipe.Model, given) | {
        "tie_embeddings": "target" if tie_embeddings else "none",
        "encoder": {
            "kind": "conformer",
            **_of(recipe.ConformerEncoder, given),
            "chunk": _section(chunk),
        },
        "decoder": {
            "layers": decoder_layers,
            "heads": heads if decoder_heads is None else decoder_heads,
            "feed_forward": feed_forward if decoder_feed_forward is None else decoder_feed_forward,
            "attention_dropout": attention_dropout,
            "activation_dropout": activation_dropout,
        },
    }
    audio = _of(recipe.Audio, given) | {
        "window": window_ms,
        "hop": hop_ms,
        "speed_perturbation": list(speed_perturbation),
        "background_noise": _section(background_noise),
        "spec_augment": _section(spec_augment),
    }
    transcript = vocabulary if transcript_vocabulary is None else transcript_vocabulary
    _check_vocabularies(vocabulary=vocabulary, transcript_vocabulary=transcript)
    names = {
        f"model.decoder.{key}": f"decoder_{key}" for key in ("layers", "heads", "feed_forward")
    }
    with _named_as_arguments(names | {"audio.window": "window_ms", "audio.hop": "hop_ms"}):
        settings = recipe.checked(recipe.Model, "model", model)
        heard = recipe.checked(recipe.Audio, "audio", audio)
        recipe.check_chunk(settings, heard)
        return build_audio(settings, heard, Vocabulary(transcript, vocabulary))


def _section(keys: bool | Mapping[str, Any]) -> dict[str, Any] | None:
    """The keys of a section that may be left out: True gives it as it is."""
    if isinstance(keys, bool):
        return {} if keys else None
    return dict(keys)


# ------------------------------------------------------------------------- from numbers to recipes


SECTIONS: dict[str, tuple[type[recipe.Section], type[recipe.Section]]] = {
    "transformer": (recipe.TransformerEncoder, recipe.TransformerDecoder),
    "recurrent": (recipe.RecurrentEncoder, recipe.RecurrentDecoder),
    "convolutional": (recipe.ConvolutionalEncoder, recipe.ConvolutionalDecoder),
}


def _seq2seq(kind: str, given: Mapping[str, Any]) -> EncoderDecoder:
    """given: the arguments by name. What only an encoder or only a decoder has is its own."""
    numbers = dict(given)
    source, target = (numbers.pop(f"{side}_vocabulary") for side in ("source", "target"))
    _check_vocabularies(source_vocabulary=source, target_vocabulary=target)
    layers = numbers.pop("decoder_layers")
    shared, rest = _split(numbers)
    sections = {}
    encoder, decoder = SECTIONS[kind]
    for name, own, other in (("encoder", encoder, decoder), ("decoder", decoder, encoder)):
        keys = [key for key in rest if key in own.model_fields or key not in other.model_fields]
        sections[name] = {"kind": kind, **{key: rest[key] for key in keys}}
    if layers is not None:
        sections["decoder"]["layers"] = layers
    with _named_as_arguments({"model.decoder.layers": "decoder_layers"}):
        settings = recipe.checked(recipe.Model, "model", {**shared, **sections})
        return build(settings, Vocabulary(source, target))


def _language_model(kind: str, given: Mapping[str, Any]) -> LanguageModelNetwork:
    numbers = dict(given)
    vocabulary, tied = numbers.pop("vocabulary"), numbers["tie_embeddings"]
    _check_vocabularies(vocabulary=vocabulary)
    numbers["tie_embeddings"] = "target" if tied else "none"
    shared, part = _split(numbers)
    sections = {"encoder": None, "decoder": {"kind": kind, **part}}
    with _named_as_arguments({}):
        settings = recipe.checked(recipe.Model, "model", {**shared, **sections})
        return build_language_model(settings, vocabulary)


def _label_network(
    vocabulary: int, labels: int, numbers: Mapping[str, Any], *, pooled: bool
) -> LabelNetwork:
    _check_vocabularies(vocabulary=vocabulary)
    _check_count("labels", labels)
    shared, part = _split(numbers)
    if part.get("norm_embeddings") or not part.get("scale_embeddings", True):
        raise ValueError(
            "norm_embeddings and scale_embeddings are for encoder-decoders and language models; "
            "leave them out."
        )
    sections = {"encoder": {"kind": "transformer", **part}, "decoder": None}
    with _named_as_arguments({}):
        settings = recipe.checked(recipe.Model, "model", {**shared, **sections})
        return build_label_network(settings, [""] * vocabulary, labels, pooled=pooled)


def _split(numbers: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is a key of the recipe's section `model`, and what is one of an encoder or a decoder."""
    shared = {key: value for key, value in numbers.items() if key in recipe.Model.model_fields}
    return shared, {key: value for key, value in numbers.items() if key not in shared}


def _of(section: type[recipe.Section], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that are keys of a section."""
    return {key: given[key] for key in section.model_fields if key in given}


@contextmanager
def _named_as_arguments(names: Mapping[str, str]) -> Iterator[None]:
    """Errors of recipes as ValueErrors that name the argument in place of the recipe's key.

    names: those that are not the last word of the key.
    """
    try:
        yield
    except (RecipeError, ModelError, recipe.InvalidValue) as error:
        sentence = re.sub(
            r"\b(?:model|audio)(?:\.[a-z_]+)+",
            lambda key: names.get(key[0], key[0].rpartition(".")[2]),
            str(error),
        )
        raise ValueError(re.sub(r"\bnull\b", "None", sentence)) from None


def _check_count(name: str, count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"{name} is {count!r}; it must be a whole number above 0")


def _check_vocabularies(**vocabularies: int) -> None:
    """A vocabulary has more tokens than the four specials."""
    for name, size in vocabularies.items():
        _check_count(name, size)
        if size <= len(SPECIALS):
            raise ValueError(
                f"{name} is {size}, but ids 0 to {len(SPECIALS) - 1} are the special tokens "
                f"{', '.join(SPECIALS)}: count them too, and at least one token more"
            )
