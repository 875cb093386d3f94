"""Loading the weights of the start model into the network, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import SPECIALS, Tokens
from transduce.errors import TrainingError
from transduce.recipe import Recipe
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks.model import Model
from transduce.training.fine_tuning.patterns import fits, matching, names_of, unknown
from transduce.training.fine_tuning.start import StartModel
from transduce.training.fine_tuning.vocabulary import map_rows

# Parameters with a row for each token, and the side whose tokens these are.
ROWS = {
    "front.table.weight": "source",
    "ctc.weight": "source",
    "ctc.bias": "source",
    "decoder.embedding.table.weight": "target",
    "head.weight": "target",
    "head.bias": "target",
}
# Parameters whose meaning depends on the vocabulary in other ways.
BY_IDS = "front.ngrams."
BY_LETTERS = "front.letters."
BY_TAGS = "front.tags."


@dataclass
class Loaded:
    """What became of each parameter, in words."""

    loaded: dict[str, str] = field(default_factory=dict)
    """What was loaded; where rows are of another vocabulary, how."""
    left_out: dict[str, str] = field(default_factory=dict)
    """What starts from random weights, and why."""
    unused: list[str] = field(default_factory=list)
    """Parameters of the start model that have no place here."""

    def metadata(self, start: StartModel) -> dict[str, Any]:
        """For the checkpoint and metrics.json."""
        return {
            "from": str(start.folder),
            "folder": str(start.folder.resolve()),
            "name": start.recipe.name,
            "fingerprint": start.fingerprint,
            "loaded": dict(self.loaded),
            "left_out": dict(self.left_out),
            "unused": list(self.unused),
        }


def load_start(model: Model, start: StartModel) -> Loaded:
    """Load all that the recipe asks for and that fits. Raises TrainingError where nothing does."""
    asked = model.recipe.train.start
    assert asked is not None
    names = names_of(model.network)
    own = dict(model.network.named_parameters())
    sources = _sources(names, asked.parts, model.recipe, start)
    rows = _Vocabularies(model, start)
    outcome, used = Loaded(), set()
    with torch.no_grad():
        for name, parameter in own.items():
            if name not in sources:
                outcome.left_out[name] = "not among train.start.parts"
                continue
            there = next((one for one in sources[name].values() if one in start.weights), None)
            if there is None:
                outcome.left_out[name] = "the start model has none"
                continue
            here = next(one for one, other in sources[name].items() if other == there)
            value, how = rows.fitted(here, parameter, there, start.weights[there])
            if value is None:
                outcome.left_out[name] = how
                continue
            parameter.copy_(value)
            outcome.loaded[name] = how
            used.add(start.weights[there].data_ptr())
    if not any(own[name].ndim >= 2 for name in outcome.loaded):
        why = next((f"{name}: {why}" for name, why in outcome.left_out.items()), "no weights")
        raise TrainingError(
            f"no matrix of {start.folder} fits this recipe's network ({why}); give it the model "
            f"section of {start.folder / 'recipe.yaml'}, or leave the section out"
        )
    outcome.unused = [n for n, value in start.weights.items() if value.data_ptr() not in used]
    return outcome


def _sources(
    names: Mapping[str, list[str]], parts: list[str] | None, recipe: Recipe, start: StartModel
) -> dict[str, dict[str, str]]:
    """For each parameter to load: its names, and what each of them is called in the start model."""
    if parts is None:
        parts = ["*"]
        labels = TASK_RULES[recipe.task].labels != "none"
        if (
            labels and start.recipe.task == "language_modeling"
        ):  # which has a decoder and nothing else
            parts = ["front=decoder.embedding", "encoder=decoder"]
    found: dict[str, dict[str, str]] = {}
    for part in parts:
        here, equals, there = part.partition("=")
        if equals and set("*?[") & set(part):
            raise TrainingError(
                f"train.start.parts has {part!r}; a part that is loaded from another one is given "
                f"by its name, without *"
            )
        for name in matching(names, [here], "train.start.parts"):
            for alias in names[name]:
                if not fits(alias, here):
                    continue
                if not equals:
                    found.setdefault(name, {})[alias] = alias
                elif alias == here or alias.startswith(f"{here}."):
                    found.setdefault(name, {})[alias] = there + alias.removeprefix(here)
        if equals and not any(fits(name, there) for name in start.weights):
            key = f"train.start.parts (of {start.folder})"
            raise TrainingError(unknown(there, start.weights, key))
    return found


class _Vocabularies:
    """Parameters that have to do with tokens, from one vocabulary to another."""

    def __init__(self, model: Model, start: StartModel) -> None:
        self.new = {"source": model.source_tokens, "target": model.target_tokens}
        old = start.definition
        self.old = {"source": old.source_tokens, "target": old.target_tokens}
        self.first = [
            len(SPECIALS) if TASK_RULES[recipe.task].labels != "none" else 0
            for recipe in (model.recipe, start.recipe)
        ]

    def fitted(
        self, here: str, own: Tensor, there: str, value: Tensor
    ) -> tuple[Tensor | None, str]:
        """The value of a parameter and what was done; None, and why it does not fit."""
        source = (self.new["source"], self.old["source"])
        if here.startswith(BY_IDS) and not _begins(*(tokens.names() for tokens in source)):
            return None, "its n-grams are of another vocabulary"
        if here.startswith(BY_LETTERS) and _letters(source[0]) != _letters(source[1]):
            return None, "its letters are of another vocabulary"
        if here.startswith(BY_TAGS) and list(source[0].tags) != list(source[1].tags):
            return None, "its tags are others"
        if here in ROWS and there in ROWS and own.shape[1:] == value.shape[1:]:
            new, old = self.new[ROWS[here]], self.old[ROWS[there]]
            first, first_there = (
                count if name.startswith("head.") else 0
                for count, name in zip(self.first, (here, there), strict=True)
            )
            if new.names() != old.names() or own.shape != value.shape:
                if first != first_there:
                    return None, "labels there, tokens here"
                mapped = map_rows(own, value, new, old, first)
                if not mapped.same and not mapped.mean:
                    return None, "no token is known there"
                return mapped.rows, mapped.outcome
        if own.shape != value.shape:
            shapes = [" x ".join(map(str, tensor.shape)) for tensor in (value, own)]
            return None, f"{shapes[0]} there, {shapes[1]} here"
        return value, "" if here == there else f"from {there}"


def _begins(new: list[str], old: list[str]) -> bool:
    return new[: len(old)] == old


def _letters(tokens: Tokens) -> set[str]:
    return set("".join(tokens.names()[len(SPECIALS) :]))
