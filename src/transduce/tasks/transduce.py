"""Models of any task: `load` from a folder, `create` untrained, `build` the network alone."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch

from transduce.data.tokens.tokenizer import SPECIALS, Tokens
from transduce.decoding.combine.ngram import NgramModel, is_arpa
from transduce.decoding.constraints.glossary import Glossary
from transduce.decoding.output import Output, Score
from transduce.errors import ModelError
from transduce.hardware import pick_device
from transduce.hub import resolve_model
from transduce.models import TrainableNetwork
from transduce.models.weights import undrawn
from transduce.recipe import Recipe, read_recipe
from transduce.runtime.packed_weight import has_bfloat16
from transduce.tasks import AudioClassifier, Model, SpeechModel
from transduce.tasks.adapter_folder import find_base, is_adapter, read_adapter
from transduce.tasks.encoder_decoder import Transducer
from transduce.tasks.folder import (
    MEMBERS,
    WEIGHTS,
    ModelDefinition,
    check_format,
    check_sums,
    is_foreign,
    missing_weights_message,
    read_definition,
)
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.members import Members, folder_in_use, member_folders
from transduce.tasks.model import Change, Origin
from transduce.tasks.model_size import check_weights
from transduce.tasks.speech_transducer import SpeechTransducerModel

__all__ = [
    "Model",
    "Output",
    "Score",
    "Transducer",
    "build",
    "create",
    "load",
]

WHISPER = "transduce.whisper"  # a package above this one: by its name


def create(recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens) -> Model:
    """An untrained model for a recipe."""
    return kind_of(recipe).create(recipe, source_tokens, target_tokens)


def kind_of(recipe: Recipe) -> type[Model]:
    """The model class for a recipe."""
    if recipe.audio is not None:
        if recipe.task == "classify":
            return AudioClassifier
        if recipe.audio.prompt is not None:
            return cast("type[Model]", import_module(WHISPER).WhisperModel)
        return SpeechModel if recipe.model.transducer is None else SpeechTransducerModel
    return Model.tasks[recipe.task]


class _NumberedTokens:
    """A vocabulary of `count` tokens whose names are numbers."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.tags: dict[str, int] = {}

    def __len__(self) -> int:
        return self.count

    def names(self) -> list[str]:
        return [str(number) for number in range(self.count)]


# For recipes without data: corpora that are valid for any task and never read.
NO_DATA = {split: {"name": "any", "split": split} for split in ("train", "valid")}


def build(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    source_vocabulary: int | Tokens,
    target_vocabulary: int | Tokens | None = None,
) -> TrainableNetwork:
    """Build the untrained network of a recipe, for vocabularies of the given sizes.

        network = transduce.build({"model": {"preset": "transformer-tiny"}}, 8000)

    Args:
        recipe: a Recipe, a dict with the keys of the YAML, a file or the name of a shipped recipe;
            its data may be left out.
        source_vocabulary: the number of source tokens, including the four special ones (padding,
            unknown, begin, end), or the vocabulary itself.
        target_vocabulary: the same for the target; None: as large as the source's.

    Returns:
        The network, with weights from torch's random generator.

    Raises:
        RecipeError: if the recipe is wrong.
        ModelError: if no network can be built from it.
    """
    if isinstance(recipe, Mapping) and "data" not in recipe:
        recipe = {**recipe, "data": NO_DATA}
    chosen = read_recipe(recipe)
    sides = [
        source_vocabulary,
        source_vocabulary if target_vocabulary is None else target_vocabulary,
    ]
    for size in sides:
        if isinstance(size, int) and size <= len(SPECIALS):
            raise ModelError(
                f"a vocabulary of {size} tokens is too small, as {len(SPECIALS)} are special "
                f"tokens; give a larger one"
            )
        if isinstance(size, int) and chosen.model.characters is not None:
            raise ModelError(
                "model.characters needs the spelling of words; give Tokens, not a number"
            )
    tokens = [
        cast(Tokens, _NumberedTokens(size)) if isinstance(size, int) else size for size in sides
    ]
    return kind_of(chosen).build(chosen, *tokens)


def load(
    folder: str | Path,
    device: str = "cpu",
    precision: str = "auto",
    *,
    change: Change | None = None,
    base: str | Path | None = None,
    members: bool = True,
) -> Model:
    """Load a trained model.

        model = transduce.load("runs/multi30k-en-de")
        model("A dog runs.")

    Args:
        folder: a model folder that `transduce train` wrote, or a model on the Hugging Face hub,
            hf://user/name or hf://user/name@revision.
        device: "cpu", "cuda", "cuda:1" or "auto".
        precision: precision of inference, as in `Model.compute_in`; "auto" for a quantized export
            is its own precision, on a CPU that has it.
        change: the function that changed the network before training, if there was one.
        base: for an adapter, the folder of the model that it was trained on, if that has moved.
        members: whether it decodes with the further models of its folder, if training has kept
            some: an ensemble, a model for each tag, or a distilled one in its place.

    Returns:
        A model of the class for its task: `Transducer`, `Classifier`, `Tagger`, `LanguageModel`, …

    Raises:
        ModelError: if a file is missing or wrong.
        CheckpointError: if the weights are damaged.
        HardwareError: if the device is unknown.
    """
    path, place = resolve_model(folder), pick_device(device)
    path = folder_in_use(path) if members else path
    if not (path / WEIGHTS).is_file() or is_foreign(path):
        raise ModelError(missing_weights_message(path))
    check_format(path)
    definition = read_definition(path)
    if is_adapter(path):
        return _load_adapted(path, definition, base, device, precision, change)
    if base is not None:
        raise ModelError(f"{path} is a whole model, not an adapter: leave out base")
    check_weights(kind_of(definition.recipe), *definition, (path / WEIGHTS).stat().st_size)
    drawn = nullcontext() if change is not None else undrawn()  # which may read the initial weights
    with torch.random.fork_rng(devices=[]), drawn:  # and the RNG state is kept
        model = create(*definition)
        if change is not None:
            model.change(change)
    stored = model.load_weights(path / WEIGHTS)
    check_sums(path, WEIGHTS)
    model.origin = Origin(path, definition.recipe.data)
    model.network.eval()
    if members and isinstance(model, GenerativeModel):
        model.members = _load_members(path, device)
    if precision == "auto" and place.type == "cpu" and (stored != "bfloat16" or has_bfloat16()):
        precision = stored
    return model.to(place).compute_in(precision)


def _load_members(path: Path, device: str) -> Members[GenerativeModel]:
    """The models that the folder names, each in its own folder within it."""

    def one(folder: Path) -> GenerativeModel:
        model = load(folder, device, members=False)
        if not isinstance(model, GenerativeModel):
            raise ModelError(f"{folder} is a model that writes no text; delete {path / MEMBERS}")
        return model

    found = member_folders(path)
    return Members(
        tuple(one(folder) for folder in found.ensemble),
        {tag: one(folder) for tag, folder in found.by_tag.items()},
    )


def load_others(settings: Mapping[str, Any], device: str, precision: str) -> dict[str, Any]:
    """Decoding settings with the models whose folders they have, and the glossary of a file; an
    ensemble of none is left out. The scores of a reranker are in float32, whatever the precision of
    search."""
    found = dict(settings)
    if (terms := found.get("glossary")) is not None:
        found["glossary"] = Glossary.of(terms)
    if others := found.pop("ensemble", None):
        found["ensemble"] = [load(one, device, precision, members=False).freeze() for one in others]
    if (other := found.get("language_model")) is not None:
        found["language_model"] = (
            NgramModel.load(other)
            if is_arpa(Path(other))
            else load(other, device, precision, members=False).freeze()
        )
    if (other := found.get("rerank")) is not None:
        found["rerank"] = load(other, device, members=False).freeze()
    return found


def _load_adapted(
    path: Path,
    definition: ModelDefinition,
    base: str | Path | None,
    device: str,
    precision: str,
    change: Change | None,
) -> Model:
    """The model beneath an adapter, with it; `use_adapter(None)` gives that model back."""
    adapter = read_adapter(path)
    beneath = find_base(adapter, base)
    model = load(beneath, device, precision, change=change, members=False)
    for ours, theirs in zip(
        definition[1:], (model.source_tokens, model.target_tokens), strict=True
    ):
        if ours.to_json() != theirs.to_json():
            raise ModelError(f"the adapter {path} has other vocabularies than {beneath}")
    model.use_adapter(model.add_adapter(adapter))
    model.recipe, model.origin = definition.recipe, Origin(path, definition.recipe.data)
    return model
