"""Count the parameters of a recipe's model, and check memory, before building it."""

from __future__ import annotations

import torch

from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError, RecipeError
from transduce.memory import free_memory
from transduce.models.weights import no_weights
from transduce.recipe import Recipe
from transduce.recipe import Tokens as TokensSection
from transduce.tasks.model import Model

MAX_LAYERS = 1000  # of an encoder or a decoder
BUILT = 12  # layers built to be counted
SMALL = 10**7  # parameters that are built without a check: loading reports wrong weights
FLOAT32 = 4  # bytes per parameter of a model that is used
TRAINED = 16  # bytes per parameter: the weight, its gradient and AdamW's two moments


def count_parameters(
    kind: type[Model], recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens
) -> int:
    """The number of parameters of a model, without allocating them.

    The network is built on the meta device. Of a deep network only the first layers are built, as
    the others are equal in size. Raises ModelError where a size is beyond counting.
    """

    def count(layers: dict[str, int]) -> int:
        parts = {
            name: recipe.model.parts[name].model_copy(update={"layers": number})
            for name, number in layers.items()
        }
        shape = recipe.model_copy(update={"model": recipe.model.model_copy(update=parts)})
        try:
            with no_weights():
                network = kind.build(shape, source_tokens, target_tokens)
        except (RuntimeError, TypeError, OverflowError) as error:
            if "verflow" not in str(error):  # more numbers than 64 bits can count
                raise
            raise ModelError(
                f"a layer of the model would be larger than any memory: model.width is "
                f"{recipe.model.width}; lower it, or the layers' other sizes"
            ) from None
        return sum(parameter.numel() for parameter in network.parameters())

    layers = _layers(recipe)
    built = {name: min(number, BUILT) for name, number in layers.items()}
    total = first = count(built)
    for name, number in layers.items():
        if number > BUILT:
            total += (number - BUILT) * (first - count({**built, name: BUILT - 1}))
    return total


def check_trainable(kind: type[Model], recipe: Recipe, memory: int, processes: int = 1) -> None:
    """Raise RecipeError where training needs more than `memory` bytes, whatever the vocabulary.

    processes: the number over which weights and optimizer state are sharded.
    """
    tokens = Tokens.train(TokensSection(level="byte"), [])
    try:
        count = count_parameters(kind, recipe, tokens, tokens)
    except ModelError as error:
        raise RecipeError(str(error)) from None
    needed = TRAINED * count // processes
    about = f"the model would have at least {count:,} parameters"
    if needed > memory:
        raise RecipeError(
            f"{about}; training it needs {_gigabytes(needed)} of memory, and only "
            f"{_gigabytes(memory)} are free; lower model.width, the layers or their feed_forward"
        )
    try:
        check_layers(recipe)
    except ModelError as error:
        raise RecipeError(f"{error}; {about}") from None


def check_weights(
    kind: type[Model],
    recipe: Recipe,
    source_tokens: Tokens,
    target_tokens: Tokens,
    size: int,
    of: str = "the recipe",
) -> None:
    """Raise ModelError where a model does not fit its weights, which are `size` bytes, or memory.

    of: where the sizes of the model stand.
    """
    count = count_parameters(kind, recipe, source_tokens, target_tokens)
    if count > max(2 * size, SMALL):  # in 8 bits each parameter is a byte
        raise ModelError(
            f"the weights do not match {of}, or are damaged: its model has {count:,} parameters, "
            f"the weights {size:,} bytes; restore both from a copy"
        )
    free = free_memory(torch.device("cpu"))
    if count > SMALL and FLOAT32 * count > free:
        raise ModelError(
            f"the model has {count:,} parameters and needs {_gigabytes(FLOAT32 * count)} of "
            f"memory, and only {_gigabytes(free)} are free; end other programs, or use a machine "
            f"with more memory"
        )
    check_layers(recipe)


def check_layers(recipe: Recipe) -> None:
    """Raise ModelError where there are too many layers to build."""
    for name, layers in _layers(recipe).items():
        if layers > MAX_LAYERS:
            raise ModelError(f"model.{name}.layers is {layers}; the maximum is {MAX_LAYERS}")


def _layers(recipe: Recipe) -> dict[str, int]:
    parts = recipe.model.parts.items()
    return {name: part.layers for name, part in parts if hasattr(part, "layers")}


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
