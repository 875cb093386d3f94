"""The recipe of an imported model: what its network is, and nothing of how it was trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError, RecipeError
from transduce.recipe import Recipe, read_recipe

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


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {"level": tokens.level, "size": max(len(tokens), 1)}


def _plain(name: str) -> str:
    """A name that can be one of a run."""
    kept = "".join(sign for sign in name if sign.isprintable() and sign not in "/\\").strip(" .")
    return kept or "imported"
