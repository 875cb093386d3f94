"""Networks as the sections of a recipe ask for them.

Weights are drawn from torch's generator, part after part in the order of the lines here: another
order would give other weights for the same seed.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from transduce import recipe
from transduce.data.tokens.tokenizer import SPECIALS
from transduce.errors import ModelError, PluginError
from transduce.models.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.models.copying import CopyingEncoderDecoder
from transduce.models.decoders import (
    Decoder,
    RecurrentDecoder,
    TransformerDecoder,
    build_attention,
)
from transduce.models.encoder_decoder import EncoderDecoder, Head, output_head, tied_head
from transduce.models.encoders import (
    ConformerEncoder,
    Encoder,
    PooledEncoder,
    RecurrentEncoder,
    TransformerEncoder,
)
from transduce.models.label_network import LabelNetwork, assemble_label_network, build_pool
from transduce.models.language_model import LanguageModelNetwork, assemble_language_model
from transduce.models.registered import RegisteredDecoder, RegisteredEncoder
from transduce.models.speech import SpeechEncoderDecoder, SpeechFrontend, SpeechLabelNetwork
from transduce.models.transducer import PredictionNetwork, SpeechTransducer
from transduce.models.word_embedding import WordEmbedding
from transduce.nn import positions
from transduce.nn.chunks import ChunkSizes
from transduce.nn.embedding.tokens import TaggedEmbedding, TokenEmbedding
from transduce.nn.positions import Positioned, width_of_content
from transduce.nn.speech.background_noise import BackgroundNoise
from transduce.nn.speech.mel import LogMel
from transduce.nn.speech.spec_augment import SpecAugment
from transduce.nn.speech.whisper import WhisperMel
from transduce.nn.transducer.joint import Joint
from transduce.nn.transformer import LayerSettings, build_norm
from transduce.registry import Registry, register

# The keys of a Transformer that its class takes by the same names.
BLOCK = {"heads", "feed_forward", "layers", "rotary_base", "head_width"} | (
    LayerSettings.__optional_keys__ - {"dropout"}
)


class Vocabulary(NamedTuple):
    """How many tokens there are, specials included."""

    source: int
    target: int
    copied_as: Sequence[int] | None = None
    """What each source token is in the target, for a decoder that copies: see models/copying.py."""
    tags: Sequence[int] = ()
    """The source tokens that are tags."""


# -------------------------------------------------------------------------------- whole networks


def build(settings: recipe.Model, vocabulary: Vocabulary) -> EncoderDecoder:
    """An encoder-decoder over tokens.

    Raises ModelError where tie_embeddings: all cannot be.
    """
    width, dropout, ties = settings.width, settings.dropout, settings.tie_embeddings
    assert settings.encoder is not None  # the recipe holds this
    assert settings.decoder is not None
    front = build_embedding(vocabulary.source, width, settings.encoder, dropout, vocabulary.tags)
    target_embedding = build_embedding(vocabulary.target, width, settings.decoder, dropout)
    encoder = build_encoder(settings.encoder, width, dropout)
    decoder = build_decoder(settings.decoder, width, dropout, target_embedding, settings.encoder)
    try:
        head = tied_head(front, decoder, width, ties, settings.output_bias)
    except ValueError as error:
        raise ModelError(str(error)) from None
    if settings.copies:
        assert isinstance(decoder, RecurrentDecoder | TransformerDecoder)
        assert vocabulary.copied_as is not None
        parts = (front, encoder, decoder, head, width, vocabulary.copied_as)
        network: EncoderDecoder = CopyingEncoderDecoder(*parts).built()
    else:
        network = EncoderDecoder(front, encoder, decoder, head).built()
    network.source_end = settings.source_end
    if getattr(settings.decoder, "tag_attention", False):
        network.read_tags_apart(vocabulary.tags)
    return network


def build_audio(
    settings: recipe.Model, audio: recipe.Audio, vocabulary: Vocabulary, tags: int = 0
) -> SpeechEncoderDecoder:
    """An encoder-decoder over waveforms; the source's vocabulary is the transcript's, of CTC."""
    width, dropout = settings.width, settings.dropout
    assert settings.encoder is not None  # the recipe holds this
    assert settings.decoder is not None
    front = build_audio_frontend(settings, audio, tags)
    encoder = build_encoder(settings.encoder, width, dropout, chunk_sizes(settings, audio))
    target_embedding = build_embedding(vocabulary.target, width, settings.decoder, dropout)
    ctc = nn.Linear(width, vocabulary.source) if settings.ctc_weight else None
    decoder = build_decoder(settings.decoder, width, dropout, target_embedding, settings.encoder)
    head = output_head(target_embedding, width, settings.tie_embeddings, settings.output_bias)
    return SpeechEncoderDecoder(front, encoder, decoder, head, ctc, settings.ctc_weight).built()


def build_transducer(
    settings: recipe.Model, audio: recipe.Audio, vocabulary: Vocabulary, tags: int = 0
) -> SpeechTransducer:
    """A transducer over waveforms; the source's vocabulary is the transcript's, of CTC."""
    width, dropout = settings.width, settings.dropout
    assert settings.encoder is not None  # the recipe holds this
    assert settings.decoder is not None
    assert settings.transducer is not None
    front = build_audio_frontend(settings, audio, tags)
    encoder = build_encoder(settings.encoder, width, dropout, chunk_sizes(settings, audio))
    embedding = build_embedding(vocabulary.target, width, settings.decoder, dropout)
    ctc = nn.Linear(width, vocabulary.source) if settings.ctc_weight else None
    decoder = build_decoder(settings.decoder, width, dropout, embedding, alone=True)
    assert isinstance(decoder, PredictionNetwork)
    joint_width = settings.transducer.joint_width or width
    joint = Joint(width, joint_width)
    head = output_head(embedding, joint_width, settings.tie_embeddings, settings.output_bias)
    parts = (front, encoder, decoder, joint, head, ctc, settings.ctc_weight)
    return SpeechTransducer(*parts).built()


def build_language_model(settings: recipe.Model, vocabulary: int) -> LanguageModelNetwork:
    """A language model: the decoder, alone."""
    width, dropout = settings.width, settings.dropout
    assert settings.decoder is not None  # the recipe holds this
    front = build_embedding(vocabulary, width, settings.decoder, dropout)
    decoder = build_decoder(settings.decoder, width, dropout, front, alone=True)
    return assemble_language_model(decoder, width, settings.tie_embeddings, settings.output_bias)


def build_label_network(
    settings: recipe.Model, words: Sequence[str], labels: int, *, pooled: bool
) -> LabelNetwork:
    """A classifier (pooled) or a tagger over a vocabulary of words, specials among them."""
    assert settings.encoder is not None  # the recipe holds this
    width, letters, ngrams = settings.width, settings.characters, settings.ngrams
    places = build_positions(settings.encoder, width)
    front = WordEmbedding(
        len(words),
        width_of_content(places, width),
        places,
        settings.dropout,
        word_dropout=settings.word_dropout,
        letters=letters.kind if letters else None,
        letters_width=letters.width if letters else 0,
        words=words,
        own=letters.words + len(SPECIALS) if letters and letters.words else None,
        ngrams=ngrams.max_n if ngrams else 0,
        ngram_rows=ngrams.size if ngrams else 0,
    )
    if isinstance(settings.encoder, recipe.PooledEncoder):
        front.scale = 1.0  # no positions are added that it would have to be as large as
    encoder = build_encoder(settings.encoder, width, settings.dropout)
    pooling = settings.pooling if pooled else None
    return assemble_label_network(front, encoder, width, labels, pooling)


def build_audio_label_network(
    settings: recipe.Model, audio: recipe.Audio, labels: int, tags: int = 0
) -> SpeechLabelNetwork:
    """A classifier of waveforms."""
    assert settings.encoder is not None  # the recipe holds this
    width = settings.width
    front = build_audio_frontend(settings, audio, tags)
    encoder = build_encoder(settings.encoder, width, settings.dropout)
    pool = build_pool(settings.pooling, width)
    return SpeechLabelNetwork(front, encoder, pool, Head(pool.wider * width, labels, None)).built()


# ----------------------------------------------------------------------------- embeddings, audio


def build_embedding(
    vocabulary: int,
    width: int,
    part: recipe.Encoder | recipe.Decoder,
    dropout: float,
    tags: Sequence[int] = (),
) -> TokenEmbedding:
    """The look-up table below an encoder or a decoder, with the positions that it asks for.

    tags: the tokens that are tags.
    """
    places = build_positions(part, width)
    inner = width_of_content(places, width)
    more: dict[str, Any] = {}
    if isinstance(part, recipe.TransformerEncoder | recipe.TransformerDecoder):
        norm = build_norm(part.norm, width, part.norm_epsilon) if part.norm_embeddings else None
        more = {"scaled": part.scale_embeddings, "norm": norm}
    if getattr(part, "tag_positions", "counted") == "zero":
        return TaggedEmbedding(vocabulary, inner, places, dropout, tags=tags, **more)
    return TokenEmbedding(vocabulary, inner, places, dropout, **more)


def build_positions(part: recipe.Encoder | recipe.Decoder, width: int) -> Positioned | None:
    """What is put to the embeddings below an encoder or a decoder."""
    if isinstance(part, recipe.ConformerEncoder):
        return positions.build_positions(part.positions, width)
    if isinstance(part, recipe.ConvolutionalEncoder | recipe.ConvolutionalDecoder):
        # Learned ones are as large as the embeddings, as in the paper.
        return positions.build_positions(
            part.positions, width, max_length=part.max_positions, std=1.0
        )
    if isinstance(part, recipe.TransformerEncoder | recipe.TransformerDecoder):
        return positions.build_positions(
            part.positions, width, combine=part.combine, max_length=part.max_positions
        )
    return None


def build_audio_frontend(settings: recipe.Model, audio: recipe.Audio, tags: int) -> SpeechFrontend:
    """The front end of waveforms; raises ModelError for more mel bands than there can be."""
    assert settings.encoder is not None  # the recipe holds this
    places = build_positions(settings.encoder, settings.width)
    mel: LogMel | WhisperMel
    try:
        if audio.features == "whisper":
            mel = WhisperMel(audio.mel_bands, audio.pad_to, audio.sample_rate)
        else:
            mel = LogMel(
                audio.sample_rate, audio.mel_bands, frame_ms=audio.window, hop_ms=audio.hop
            )
    except ValueError as error:
        raise ModelError(f"audio.mel_bands is {audio.mel_bands}: {error}") from None
    augment, noise = audio.spec_augment, None
    if audio.background_noise is not None:
        around = audio.background_noise
        low, high = around.snr
        noise = BackgroundNoise(
            audio.sample_rate, around.share, around.before, around.after, (low, high)
        )
    return SpeechFrontend(
        mel,
        width_of_content(places, settings.width),
        places,
        dropout=settings.dropout,
        normalize=audio.normalize,
        channels=audio.channels,
        subsampling=audio.frames_per_state,
        speed_perturbation=audio.speed_perturbation,
        background_noise=noise,
        spec_augment=None if augment is None else SpecAugment(**augment.model_dump()),
        tags=tags,
        scaled=audio.features != "whisper",
    )


# ------------------------------------------------------------------------- encoders and decoders


def chunk_sizes(settings: recipe.Model, audio: recipe.Audio) -> ChunkSizes | None:
    """The chunks that an encoder of audio is trained with, in states."""
    chunk = getattr(settings.encoder, "chunk", None)
    if not isinstance(chunk, recipe.Chunk):
        return None
    minimum, maximum = (round(ms / audio.state_ms) for ms in chunk.trained)
    return ChunkSizes(minimum, maximum, chunk.left_chunks, chunk.whole)


def build_encoder(
    settings: recipe.Encoder, width: int, dropout: float, chunks: ChunkSizes | None = None
) -> Encoder:
    """An encoder, from embeddings of `width` to states of the same width."""
    if isinstance(settings, recipe.RecurrentEncoder):
        return RecurrentEncoder(
            width,
            settings.cell,
            settings.layers,
            bidirectional=settings.bidirectional,
            reverse=settings.reverse,
            skip=settings.skip,
            dropout=dropout,
        )
    if isinstance(settings, recipe.ConformerEncoder):
        return ConformerEncoder(
            width,
            settings.heads,
            settings.feed_forward,
            settings.layers,
            kernel=settings.kernel,
            positions=settings.positions,
            dropout=dropout,
            attention_dropout=settings.attention_dropout,
            activation_dropout=settings.activation_dropout,
            layer_heads=settings.kept_heads,
            chunk_sizes=chunks,
        )
    if isinstance(settings, recipe.ConvolutionalEncoder):
        return ConvolutionalEncoder(width, settings.layers, settings.kernel, dropout)
    if isinstance(settings, recipe.PooledEncoder):
        return PooledEncoder()
    if settings.kind in register.encoder:
        return RegisteredEncoder(
            settings.kind, _registered(register.encoder, settings, width, dropout)
        )
    return TransformerEncoder(width, **_blocks(settings), dropout=dropout, chunk_sizes=chunks)


def build_decoder(
    settings: recipe.Decoder,
    width: int,
    dropout: float,
    embedding: TokenEmbedding,
    encoder: recipe.Encoder | None = None,
    alone: bool = False,
) -> Decoder:
    """A decoder upon the embeddings of the target; `alone`: of a language model."""
    if isinstance(settings, recipe.RecurrentDecoder):
        attention = None
        if settings.attention != "none" and not alone:
            attention = build_attention(
                settings.attention,
                width,
                max_positions=settings.max_positions,
                location_filters=settings.location_filters,
                location_kernel=settings.location_kernel,
            )
        return RecurrentDecoder(
            embedding,
            width,
            settings.cell,
            settings.layers,
            attention=attention,
            context=settings.context,
            skip=settings.skip,
            dropout=dropout,
            bridge=not _gives_states(encoder, settings),
            alone=alone,
            tag_attention=build_attention("additive", width) if settings.tag_attention else None,
        )
    if isinstance(settings, recipe.ConvolutionalDecoder):
        return ConvolutionalDecoder(
            embedding, width, settings.layers, settings.kernel, dropout, alone
        )
    if settings.kind in register.decoder:
        inner = _registered(register.decoder, settings, width, dropout)
        return RegisteredDecoder(settings.kind, embedding, inner, alone)
    return TransformerDecoder(embedding, width, **_blocks(settings), dropout=dropout, alone=alone)


def _registered(
    registry: Registry, settings: recipe.Encoder | recipe.Decoder, width: int, dropout: float
) -> nn.Module:
    """A part of a plugin, with the arguments that its class takes. Raises PluginError."""
    kind = settings.kind
    part = registry[kind].part
    takes = inspect.signature(part).parameters
    given = {"width": width, "dropout": dropout} | settings.model_dump(exclude={"kind"})
    try:
        module = part(**{key: value for key, value in given.items() if key in takes})
    except Exception as error:
        raise PluginError(
            f"the {registry.kind} {kind} of {registry[kind].origin} cannot be built: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise PluginError(f"the {registry.kind} {kind} is no torch.nn.Module")
    return module


def _gives_states(encoder: recipe.Encoder | None, decoder: recipe.RecurrentDecoder) -> bool:
    """Whether a decoder can begin with the final states of the encoder as they are."""
    if not isinstance(encoder, recipe.RecurrentEncoder):
        return False
    return (encoder.cell, encoder.layers) == (decoder.cell, decoder.layers)


def _blocks(settings: recipe.TransformerEncoder | recipe.TransformerDecoder) -> dict[str, Any]:
    values = settings.model_dump(include=BLOCK) | {"rotary": settings.positions == "rotary"}
    values["layer_heads"] = settings.kept_heads
    if settings.positions == "relative":
        values["relative"] = (settings.relative_buckets, settings.relative_distance)
    if isinstance(settings, recipe.TransformerDecoder) and settings.cross_heads is not None:
        values["cross_heads"] = settings.cross_heads[: settings.layers]
    return values
