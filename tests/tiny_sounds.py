"""Tiny models that hear, untrained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transduce.data.tokens.tokenizer import Tokens
from transduce.models.build import Vocabulary, build_audio
from transduce.models.speech import SpeechEncoderDecoder
from transduce.recipe import Recipe, parse_recipe
from transduce.recipe import Tokens as TokensRecipe
from transduce.tasks import SpeechModel
from transduce.tasks.transduce import create

ENCODERS = {
    "conformer": "{kind: conformer, layers: 2, heads: 2, feed_forward: 32, kernel: 5}",
    "relative": "{kind: conformer, layers: 1, heads: 2, feed_forward: 32, positions: relative}",
    "places": "{kind: conformer, layers: 1, heads: 2, feed_forward: 32, positions: sinusoidal}",
    "transformer": "{kind: transformer, layers: 1, heads: 2, feed_forward: 32}",
    "beside": "{kind: transformer, layers: 1, heads: 2, feed_forward: 32, combine: concatenate}",
    "recurrent": "{kind: recurrent, cell: gru}",
    "convolutional": "{kind: convolutional, layers: 2, kernel: 5}",
}
RECIPE = """
data:
  train: {file: train.tsv, audio: path}
  valid: {file: valid.tsv, audio: path}
  tokens: {both: {level: character}}
  max_length: 300
audio: {sample_rate: 4000, mel_bands: 16, channels: 4}
model:
  width: 16
  dropout: 0.0
  tie_embeddings: none
  ctc_weight: 0.3
  decoder: {layers: 1, heads: 2, feed_forward: 32}
decode: {beam: 2, max_ratio: 0.5, max_extra: 5}
metrics: [cer]
"""


def audio_recipe(*overrides: str, encoder: str = "conformer") -> Recipe:
    shape = f"model.encoder={ENCODERS[encoder]}"
    return parse_recipe(RECIPE, "recipe", Path(), [shape, *overrides])


def audio_network(
    *overrides: str, encoder: str = "conformer", vocabulary: int = 9, seed: int = 1
) -> SpeechEncoderDecoder:
    recipe = audio_recipe(*overrides, encoder=encoder)
    assert recipe.audio is not None
    torch.manual_seed(seed)
    sizes = Vocabulary(vocabulary, vocabulary)
    return build_audio(recipe.model, recipe.audio, sizes).eval()


def audio_model(*overrides: str, letters: str = "abcde ", **shape: Any) -> SpeechModel:
    recipe = audio_recipe(*overrides, **shape)
    tokens = Tokens.train(TokensRecipe(level="character"), [letters])
    torch.manual_seed(1)
    model = create(recipe, tokens, tokens)
    assert isinstance(model, SpeechModel)
    model.network.eval()
    return model


def noise(seconds: float, seed: int = 1, rate: int = 4000) -> NDArray[np.int16]:
    drawn = np.random.default_rng(seed).standard_normal(round(seconds * rate))
    return (3000 * drawn).clip(-32768, 32767).astype(np.int16)


def phone_model(phones: str, *overrides: str) -> SpeechModel:
    """One whose tokens are phones."""
    tokens = Tokens.train(TokensRecipe(level="symbol"), [phones])
    model = create(audio_recipe("data.tokens.both.level=symbol", *overrides), tokens, tokens)
    assert isinstance(model, SpeechModel)
    return model


def tagged_model(*tags: str, overrides: Sequence[str] = ()) -> SpeechModel:
    """One that knows the tags x and y, or others."""
    tokens = Tokens.train(TokensRecipe(level="character"), ["abcde "], tags or ("x", "y"))
    torch.manual_seed(1)
    model = create(audio_recipe(*overrides), tokens, tokens)
    assert isinstance(model, SpeechModel)
    model.network.eval()
    return model
