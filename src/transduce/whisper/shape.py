"""The shape of a Whisper model, its recipe, and a model of it with imported weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError, RecipeError
from transduce.recipe import Recipe, TransformerDecoder, TransformerEncoder, read_recipe
from transduce.tasks.model import Model
from transduce.tasks.transduce import NO_DATA, create
from transduce.whisper.vocabulary import NEW

FRAMES_A_STATE = 2
FRAMES_A_SECOND = 100
ENGLISH = 51864  # tokens of the models for English alone; the others have more


@dataclass(frozen=True)
class Shape:
    """Sizes of a Whisper model."""

    width: int
    mel_bands: int
    vocabulary: int
    """Tokens that Whisper has; we have two more."""
    encoder_layers: int
    encoder_heads: int
    encoder_feed_forward: int
    encoder_positions: int
    decoder_layers: int
    decoder_heads: int
    decoder_feed_forward: int
    decoder_positions: int
    tied: bool = True


@dataclass(frozen=True)
class Generation:
    """What Whisper's files say about decoding, in our ids."""

    suppress: Sequence[int] = ()
    suppress_first: Sequence[int] = ()
    alignment_heads: Sequence[tuple[int, int]] = ()
    multilingual: bool = True


def recipe_of(shape: Shape, generation: Generation, name: str) -> Recipe:
    """The recipe whose network has this shape. Raises ModelError where there is none."""
    frames = shape.encoder_positions * FRAMES_A_STATE

    def part(layers: int, heads: int, hidden: int, positions: int) -> dict[str, Any]:
        return {
            "kind": "transformer",
            "layers": layers,
            "heads": heads,
            "feed_forward": hidden,
            "activation": "gelu",
            "positions": "learned",
            "max_positions": positions,
        }

    values = {
        "name": name,
        "data": {
            **NO_DATA,
            "tokens": {"both": {"size": shape.vocabulary + 2}},
            "max_length": frames,
        },
        "audio": {
            "features": "whisper",
            "mel_bands": shape.mel_bands,
            "pad_to": frames / FRAMES_A_SECOND,
            "spec_augment": None,
            "prompt": {
                "multilingual": generation.multilingual,
                "suppress": list(generation.suppress),
                "suppress_first": list(generation.suppress_first),
                "alignment_heads": [list(pair) for pair in generation.alignment_heads],
            },
        },
        "model": {
            "width": shape.width,
            "dropout": 0.0,
            "tie_embeddings": "target" if shape.tied else "none",
            "encoder": part(
                shape.encoder_layers,
                shape.encoder_heads,
                shape.encoder_feed_forward,
                shape.encoder_positions,
            ),
            "decoder": {
                "scale_embeddings": False,
                **part(
                    shape.decoder_layers,
                    shape.decoder_heads,
                    shape.decoder_feed_forward,
                    shape.decoder_positions,
                ),
            },
        },
        "decode": {"patience": 1.0},
        "metrics": ["wer", "cer"],
    }
    try:
        return read_recipe(values)
    except RecipeError as error:
        raise ModelError(f"this Whisper has a shape that we have no equal of: {error}") from None


def shape_of(recipe: Recipe, vocabulary: int) -> Shape:
    """The shape of a recipe's network. Raises ModelError where it is not Whisper's."""
    audio, model = recipe.audio, recipe.model
    encoder, decoder = model.encoder, model.decoder
    if (
        audio is None
        or audio.prompt is None
        or audio.pad_to is None
        or not isinstance(encoder, TransformerEncoder)
        or not isinstance(decoder, TransformerDecoder)
    ):
        raise ModelError(
            "only a speech model of Whisper's shape is exported: audio.features: whisper with "
            "pad_to and prompt, Transformer encoder and decoder"
        )
    for name, part in (("encoder", encoder), ("decoder", decoder)):
        for key, wanted in FIXED.items():
            if getattr(part, key) != wanted:
                raise ModelError(
                    f"model.{name}.{key} is {getattr(part, key)}, in Whisper it is {wanted}: this "
                    f"model cannot be exported"
                )
        if part.is_pruned:
            raise ModelError(f"heads of the {name} were pruned, which Whisper's formats cannot say")
    if decoder.scale_embeddings:
        raise ModelError("model.decoder.scale_embeddings is true, in Whisper it is false")
    return Shape(
        width=model.width,
        mel_bands=audio.mel_bands,
        vocabulary=vocabulary,
        encoder_layers=encoder.layers,
        encoder_heads=encoder.heads,
        encoder_feed_forward=encoder.feed_forward,
        encoder_positions=encoder.max_positions,
        decoder_layers=decoder.layers,
        decoder_heads=decoder.heads,
        decoder_feed_forward=decoder.feed_forward,
        decoder_positions=decoder.max_positions,
        tied=model.tie_embeddings == "target",
    )


FIXED = {
    "activation": "gelu",
    "norm": "layer",
    "norm_position": "pre",
    "positions": "learned",
    "combine": "add",
    "norm_embeddings": False,
}


def assemble(
    shape: Shape,
    generation: Generation,
    tokens: Tokens,
    order: Sequence[int],
    weights: Mapping[str, Tensor],
    origin: dict[str, Any],
    name: str,
) -> Model:
    """The model; what it was is kept with it for an export. Raises ModelError."""
    recipe = recipe_of(shape, generation, name)
    with torch.random.fork_rng(devices=[]):  # its first weights are replaced
        model = create(recipe, tokens, tokens)
    own = dict(model.network.named_parameters())
    if strange := sorted(set(own) ^ set(weights)):
        raise ModelError(f"the weight {strange[0]} of Whisper has no place in our network")
    with torch.no_grad():
        for key, parameter in own.items():
            parameter.copy_(weights[key])
    model.imported = {"architecture": "whisper", "order": [order[0], order[1]], **origin}
    return model


def ids_of(theirs: Sequence[int], order: Sequence[int]) -> list[int]:
    """Our ids of some of Whisper's; those that it does not have are left out."""
    place = {number: NEW + ours for ours, number in enumerate(order)}
    return sorted(place[number] for number in theirs if number in place)
