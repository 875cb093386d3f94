"""How large a model of a recipe would be, told before anything is built of it."""

from __future__ import annotations

import torch

from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError, RecipeError
from transduce.recipe import Recipe
from transduce.recipe import Tokens as TokensPart
from transduce.tasks.model import Model

MOST_LAYERS = 1000  # of an encoder or a decoder
BUILT = 12  # layers that are built to be counted
SMALL = 10**7  # parameters that are built at once: what is wrong with the weights shows then
TRAINED = 16  # bytes a parameter: the weight, its gradient and AdamW's two moments


def count_parameters(
    kind: type[Model], recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens
) -> int:
    """The parameters of a model; no memory is needed for them.

    The network is built without storage. Of a deep one only the first layers are: the others are
    like the last of them.
    """

    def count(layers: dict[str, int]) -> int:
        parts = {
            name: recipe.model.parts[name].model_copy(update={"layers": number})
            for name, number in layers.items()
        }
        shape = recipe.model_copy(update={"model": recipe.model.model_copy(update=parts)})
        with torch.device("meta"):
            network = kind.build(shape, source_tokens, target_tokens)
        return sum(parameter.numel() for parameter in network.parameters())

    layers = _layers(recipe)
    built = {name: min(number, BUILT) for name, number in layers.items()}
    total = first = count(built)
    for name, number in layers.items():
        if number > BUILT:
            total += (number - BUILT) * (first - count({**built, name: BUILT - 1}))
    return total


def check_trainable(kind: type[Model], recipe: Recipe, memory: int, processes: int = 1) -> None:
    """Raise RecipeError where a model cannot be trained in so many bytes, whatever its vocabulary.

    processes: those that share weights and moments among them.
    """
    tokens = Tokens.train(TokensPart(level="byte"), [])
    count = count_parameters(kind, recipe, tokens, tokens)
    needed = TRAINED * count // processes
    about = f"the model would have at least {count:,} parameters"
    if needed > memory:
        raise RecipeError(
            f"{about}, which need {_gigabytes(needed)} of memory to be trained, and there are "
            f"{_gigabytes(memory)}; lower model.width, or the layers and their feed_forward"
        )
    try:
        check_layers(recipe)
    except ModelError as error:
        raise RecipeError(f"{error}; {about}") from None


def check_weights(
    kind: type[Model], recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens, size: int
) -> None:
    """Raise ModelError where a file of `size` bytes cannot hold the weights of a recipe's model."""
    count = count_parameters(kind, recipe, source_tokens, target_tokens)
    if count > max(2 * size, SMALL):  # in 8 bits each parameter is a byte
        raise ModelError(
            f"the weights do not belong to this recipe, or are damaged: its model has {count:,} "
            f"parameters, the file {size:,} bytes"
        )
    check_layers(recipe)


def check_layers(recipe: Recipe) -> None:
    """Raise ModelError where there are too many: to build them would take for ever."""
    for name, layers in _layers(recipe).items():
        if layers > MOST_LAYERS:
            raise ModelError(f"model.{name}.layers is {layers}, and {MOST_LAYERS} are the most")


def _layers(recipe: Recipe) -> dict[str, int]:
    parts = recipe.model.parts.items()
    return {name: part.layers for name, part in parts if hasattr(part, "layers")}


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
