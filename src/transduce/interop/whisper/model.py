"""A model of ours with Whisper's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError
from transduce.interop.whisper.shape import Generation, Shape, recipe_of
from transduce.interop.whisper.tokens import NEW
from transduce.interop.whisper.weights import Weights
from transduce.tasks.model import Model
from transduce.tasks.transduce import create


def assemble(
    shape: Shape,
    generation: Generation,
    tokens: Tokens,
    order: Sequence[int],
    weights: Weights,
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
