"""Whether models can decode together: in an ensemble, or with a language model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from transduce.errors import ModelError
from transduce.recipe.tasks import TASK_RULES

if TYPE_CHECKING:
    from transduce.tasks.model import Model


def check_ensemble_member(first: Model, other: Model, number: int) -> None:
    """Raise ModelError where model `number` cannot be in an ensemble with the first."""
    if other.recipe.task != first.recipe.task:
        raise ModelError(
            f"model {number} of the ensemble is of task: {other.recipe.task}, the first of "
            f"task: {first.recipe.task}; use models of the same task"
        )
    if other.recipe.model.transducer is not None or first.recipe.model.transducer is not None:
        raise ModelError("transducers (model.transducer) are not averaged; leave out the ensemble")
    for side, ours, theirs in (
        ("source", first.source_tokens, other.source_tokens),
        ("target", first.target_tokens, other.target_tokens),
    ):
        if ours.to_json() != theirs.to_json():
            raise ModelError(
                f"model {number} of the ensemble has another {side} vocabulary than the first; "
                f"train them with the same (data.tokens: file)"
            )
    if other.recipe.model.copies != first.recipe.model.copies:
        raise ModelError(
            f"of the first model and model {number} of the ensemble only one copies from the "
            f"source (model.decoder.copying); use models that all do, or none"
        )
    _check_device(f"model {number} of the ensemble", other, "the first", first)


def check_generates(model: Model, generates: type[Model], use: str) -> None:
    """Raise ModelError where a model cannot score the tokens of another."""
    if not isinstance(model, generates):
        about = TASK_RULES[model.recipe.task].about
        raise ModelError(f"a {about} cannot be used {use}, as it does not generate text")


def check_language_model(model: Model, language: Model) -> None:
    """Raise ModelError where a language model cannot be fused with a model (shallow fusion)."""
    check_no_copies(model)
    if language.target_tokens.to_json() != model.target_tokens.to_json():
        raise ModelError(
            "the language model has another vocabulary than the model's target; train it with "
            "the same (data.tokens: {both: {file: MODEL/target.tokens.json}})"
        )
    _check_device("the language model", language, "the model", model)


def check_no_copies(model: Model) -> None:
    """Raise ModelError where no language model can be fused with a model."""
    if model.recipe.model.copies:
        raise ModelError(
            "a language model has no probabilities of tokens that are copied from the source "
            "(model.decoder.copying); leave it out, or use it to rerank"
        )


def _check_device(name: str, other: Model, to: str, first: Model) -> None:
    if other.device != first.device:
        raise ModelError(
            f"{name} is on {other.device}, {to} on {first.device}; load both on the same device"
        )


def check_finite(models: Iterable[Model]) -> None:
    """Raise ModelError where weights are NaN or infinite."""
    for model in models:
        if not all(bool(p.isfinite().all()) for p in model.network.parameters()):
            raise ModelError(
                "the model's weights are damaged: some are NaN or infinite; train it again, or "
                "restore them from a copy"
            )
