"""The model that training starts from: its weights, and what the recipe takes over of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from transduce.errors import ModelError
from transduce.hub import resolve_model
from transduce.models.weights import fingerprint_of, no_weights, weights_of
from transduce.recipe import Recipe, Start
from transduce.recipe.audio import Audio
from transduce.runtime.int8_file import dequantize_weights
from transduce.storage import read_tensors
from transduce.tasks.adapter_folder import is_adapter
from transduce.tasks.folder import (
    WEIGHTS,
    ModelDefinition,
    check_format,
    check_sums,
    missing_weights_message,
    read_definition,
)
from transduce.tasks.transduce import kind_of, load
from transduce.training.fine_tuning.patterns import names_of


@dataclass(frozen=True)
class StartModel:
    """A trained model; of its recipe, nothing is used that names files."""

    folder: Path
    definition: ModelDefinition
    weights: dict[str, Tensor]
    """By all of their names: tied ones have several."""
    fingerprint: str

    @property
    def recipe(self) -> Recipe:
        return self.definition.recipe


def open_start(settings: Start) -> StartModel:
    """Read the model of `train.start`. Raises ModelError, CheckpointError."""
    path = resolve_model(settings.folder)
    if not (path / WEIGHTS).is_file():
        raise ModelError(f"train.start.from: {missing_weights_message(path)}")
    check_format(path)
    definition = read_definition(path)
    if is_adapter(path):
        weights = weights_of(load(path, members=False).network)
    else:
        weights = dequantize_weights(read_tensors(path / WEIGHTS)[0])
        check_sums(path, WEIGHTS)
    fingerprint = fingerprint_of(weights)
    with no_weights():
        network = kind_of(definition.recipe).build(*definition)
    for name, several in names_of(network).items():
        if name in weights:
            weights |= dict.fromkeys(several, weights[name])
    return StartModel(path, definition, weights, fingerprint)


def same_task(recipe: Recipe, other: Recipe) -> bool:
    """Whether two recipes are for the same task on the same kind of input."""
    return recipe.task == other.task and (recipe.audio is None) == (other.audio is None)


def kept_tokens(recipe: Recipe, other: Recipe) -> str | None:
    """What becomes of the vocabularies: keep, extend, or None: the recipe's own."""
    start = recipe.train.start
    assert start is not None
    if start.tokens is not None:
        return start.tokens
    return "keep" if same_task(recipe, other) and _same_sides(recipe, other) else None


def _same_sides(recipe: Recipe, other: Recipe) -> bool:
    """Whether the recipe asks for no other vocabularies than the start model's."""
    if "tokens" not in recipe.data.model_fields_set:
        return True
    for side in ("both", "source", "target"):
        ours, theirs = getattr(recipe.data.tokens, side), getattr(other.data.tokens, side)
        if (ours is None) != (theirs is None):
            return False
        if ours is not None and (ours.level != theirs.level or ours.file is not None):
            return False
    return True


def take_over(recipe: Recipe, other: Recipe) -> Recipe:
    """The recipe with what it leaves out and the start model has: the network, the audio
    features; where its vocabularies are kept, how these were made.
    """
    changed: dict[str, Any] = {}
    if same_task(recipe, other):
        if not _has_keys(recipe.model):
            changed["model"] = other.model
        if recipe.audio is not None and not _has_keys(recipe.audio):
            changed["audio"] = other.audio
        elif recipe.audio is not None and recipe.audio.prompt is not None:
            changed["audio"] = _prompted(recipe.audio, other.audio)
        if (kept := kept_tokens(recipe, other)) is not None:
            tokens = _sections(recipe, other, kept)
            changed["data"] = recipe.data.model_copy(update={"tokens": tokens})
    return recipe.model_copy(update=changed)


def _prompted(audio: Audio, other: Audio | None) -> Audio:
    """Whisper's audio section, where the recipe changes some keys of it, such as the language."""
    if other is None or other.prompt is None or audio.prompt is None:
        return audio
    chosen = {key: getattr(audio.prompt, key) for key in audio.prompt.model_fields_set}
    prompt = other.prompt.model_copy(update=chosen)
    own = {key: getattr(audio, key) for key in audio.model_fields_set}
    return other.model_copy(update={**own, "prompt": prompt})


def _sections(recipe: Recipe, other: Recipe, kept: str) -> Any:
    """data.tokens of the start model, without its files; to extend, with this recipe's sizes."""
    ours, theirs = recipe.data.tokens, other.data.tokens
    made = {}
    for side in ("both", "source", "target"):
        if (section := getattr(theirs, side)) is None:
            continue
        own = getattr(ours, side) or ours.both or (ours.target if side == "both" else None)
        changed: dict[str, Any] = {"file": None}
        if own is not None and kept == "extend":
            changed |= {key: getattr(own, key) for key in ("size", "min_count", "sample")}
        if own is not None and section.level == "subword" and section.algorithm == "bpe":
            changed["bpe_dropout"] = own.bpe_dropout
        made[side] = section.model_copy(update=changed)
    return theirs.model_copy(update=made)


def _has_keys(section: Any) -> bool:
    """Whether a recipe gives any key of a section; a null only says that there is none."""
    return any(getattr(section, key) is not None for key in section.model_fields_set)
