"""Count the parameters of a recipe's model, and check memory, before building it."""

from __future__ import annotations

from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError, RecipeError
from transduce.models.weights import no_weights
from transduce.recipe import Recipe
from transduce.recipe import Tokens as TokensSection
from transduce.tasks.model import Model

MAX_LAYERS = 1000  # of an encoder or a decoder
BUILT = 12  # layers built to be counted
SMALL = 10**7  # parameters that are built without a check: loading reports wrong weights
TRAINED = 16  # bytes per parameter: the weight, its gradient and AdamW's two moments


def count_parameters(
    kind: type[Model], recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens
) -> int:
    """The number of parameters of a model, without allocating them.

    The network is built on the meta device. Of a deep network only the first layers are built, as
    the others are equal in size.
    """

    def count(layers: dict[str, int]) -> int:
        parts = {
            name: recipe.model.parts[name].model_copy(update={"layers": number})
            for name, number in layers.items()
        }
        shape = recipe.model_copy(update={"model": recipe.model.model_copy(update=parts)})
        with no_weights():
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
    """Raise RecipeError where training needs more than `memory` bytes, whatever the vocabulary.

    processes: the number over which weights and optimizer state are sharded.
    """
    tokens = Tokens.train(TokensSection(level="byte"), [])
    count = count_parameters(kind, recipe, tokens, tokens)
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
    kind: type[Model], recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens, size: int
) -> None:
    """Raise ModelError where a file of `size` bytes is too small for a model's weights."""
    count = count_parameters(kind, recipe, source_tokens, target_tokens)
    if count > max(2 * size, SMALL):  # in 8 bits each parameter is a byte
        raise ModelError(
            f"the weights do not match the recipe, or are damaged: its model has {count:,} "
            f"parameters, the file {size:,} bytes; restore both from a copy"
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
