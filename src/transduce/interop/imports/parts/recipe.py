"""An imported model before its weights: its recipe, which says nothing of how it was trained, and
its network, whose size is compared with that of the weights before it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError, RecipeError
from transduce.recipe import Recipe, read_recipe
from transduce.tasks.model import Model
from transduce.tasks.model_size import check_weights
from transduce.tasks.transduce import create, kind_of

# Corpora that are valid for any task and are not there: to train further, name others.
NO_DATA = {split: {"name": "any", "split": split} for split in ("train", "valid")}


def imported_recipe(
    name: str,
    model: Mapping[str, Any],
    tokens: tuple[Tokens, Tokens],
    *,
    task: str = "transduce",
    max_length: int | None = None,
    **sections: Any,
) -> Recipe:
    """A recipe with this `model` section and further `sections`.

    Raises ModelError where the sizes do not fit together: then the files are damaged.
    """
    source, target = tokens
    sides = {"both": _tokens(target)} if source is target else None
    sides = sides or {"source": _tokens(source), "target": _tokens(target)}
    data: dict[str, Any] = {**NO_DATA, "tokens": sides}
    if max_length is not None:
        data["max_length"] = max_length
    whole = {"name": _plain(name), "task": task, "data": data, "model": dict(model), **sections}
    try:
        return read_recipe(whole)
    except RecipeError as error:
        raise ModelError(f"the settings of {name} do not fit together: {error}") from None


def create_model(recipe: Recipe, tokens: tuple[Tokens, Tokens], size: int, where: object) -> Model:
    """The model of a recipe, still without the weights that were read, which are `size` bytes.

    Raises ModelError where the recipe is of a model far larger than these weights, or than memory.
    """
    check_weights(kind_of(recipe), recipe, *tokens, size, of=f"the configuration of {where}")
    with torch.random.fork_rng(devices=[]):  # its first weights are replaced
        return create(recipe, *tokens)


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {"level": tokens.level, "size": max(len(tokens), 1)}


def _plain(name: str) -> str:
    """A name that can be one of a run."""
    kept = "".join(sign for sign in name if sign.isprintable() and sign not in "/\\").strip(" .")
    return kept or "imported"
