"""The one call from a recipe to a trained model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from transduce.checksums import SUMS
from transduce.data.text.trust import remember
from transduce.errors import TrainingError
from transduce.hardware import describe
from transduce.inspection.model_card import write_card
from transduce.recipe import Recipe, read_recipe, resolve_data_folder
from transduce.storage import held, make_folder, sweep
from transduce.tasks.folder import (
    WEIGHTS,
    conflicting_file,
    discard_run,
    keeps_recipe,
    update_metrics,
)
from transduce.tasks.model import Change
from transduce.tasks.model_size import check_trainable
from transduce.tasks.transduce import kind_of
from transduce.training.distributed.processes import Processes, join
from transduce.training.loop import Run, Trained
from transduce.training.memory.auto_batch import free_memory
from transduce.training.prepare import Say, prepare
from transduce.training.progress import Progress, Silence, console
from transduce.training.run_directory.checkpoint import has_state, settle_state
from transduce.training.run_directory.resume import check_changes

__all__ = ["Trained", "train"]


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    folder: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    overrides: Iterable[str] = (),
    change: Change | None = None,
) -> Trained:
    """Train what the recipe says into `folder`; with `resume`, go on where its state stands, and
    start where there is none yet.

    The recipe is a recipe, a dict with the keys of the YAML, a file or a shipped name; overrides
    are as on the command line, such as "train.lr=3e-4". Without a folder it is runs/NAME. `change`
    is called with the network that the recipe builds, before its first update: it changes that in
    place, or gives another transduce.models.TrainableNetwork. Loading the model, and resuming it,
    need it again.

    Started by torchrun, all its processes call this and train one model together. Raises a
    TransduceError with one sentence; the folder then still holds the last good state.
    """
    # A recipe made in Python too knows where its files are.
    chosen = resolve_data_folder(read_recipe(recipe, overrides), Path.cwd())
    place = Path("runs") / chosen.name if folder is None else Path(folder)
    with join(chosen.train.device) as ranks, ExitStack() as kept:
        return _train(chosen, place, resume, overwrite, change, ranks, kept)


def _train(
    recipe: Recipe,
    folder: Path,
    resume: bool,
    overwrite: bool,
    change: Change | None,
    ranks: Processes,
    kept: ExitStack,
) -> Trained:
    # The first process decides for all: what others see of a shared folder may be older.
    saved, finished = ranks.from_first([has_state(folder), _is_finished(folder)])
    _check_folder(folder, recipe, saved, finished, resume, overwrite)
    device = ranks.device(recipe.train.device)  # before an hour of tokenising, not after it
    shared = ranks.count if recipe.train.fsdp else 1
    check_trainable(kind_of(recipe), recipe, free_memory(device), shared)
    ranks.wait()  # until all have seen the folder as it was
    say = console().print if ranks.first else _keep_silent
    if resume and not saved:
        say(f"There is no saved state in {folder} yet: the run starts from the beginning.")
    started, resume = saved or finished, resume and saved
    if ranks.first:
        make_folder(folder)
        if not kept.enter_context(held(folder)):
            raise TrainingError(
                f"another run is training in {folder}: wait for it, stop it, or choose another "
                f"--output"
            )
        if resume and (trouble := settle_state(folder)) is not None:
            say(f"warning: {trouble}.")
        for key in check_changes(recipe, folder) if resume else ():
            say(f"Resuming with a changed recipe: {key}.")
    prepared = prepare(recipe, folder if resume else None, say, ranks)
    run = Run(recipe, folder, prepared, ranks, change)
    if resume:
        run.resume()
    elif started and ranks.first:  # only now, that the new run can start
        discard_run(folder)
    if ranks.first:
        for place in (folder, folder / "state"):
            sweep(place)  # what a kill has left, before it takes space from what follows
        run.model.save_definition(folder)  # also when resumed: its recipe may have changed
        make_folder(folder / "state")
        remember(recipe, say)
    for sentence in run.about():
        say(sentence)
    kind = Progress if ranks.first else Silence
    shown = kind(
        folder,
        recipe.train.steps,
        run.standing.step,
        metric=recipe.validation.metric,
        minutes=recipe.train.minutes,
    )
    with shown as progress:
        trained = run.go(progress)
    if ranks.first and not trained.interrupted:
        _write_down(run, say)
    return trained


def _is_finished(folder: Path) -> bool:
    """Whether a folder holds a model that no run is in the middle of.

    Before a run has weights it has made the folder of its states: one that was killed between its
    first weights and its first state starts again.
    """
    begun = (folder / SUMS).is_file() and (folder / "state").is_dir()
    return (folder / WEIGHTS).exists() and not begun


def _check_folder(
    folder: Path, recipe: Recipe, saved: bool, finished: bool, resume: bool, overwrite: bool
) -> None:
    """Raise TrainingError, or ModelError, where the run would replace what it may not."""
    if saved and not resume and not overwrite:
        raise TrainingError(
            f"{folder} already holds a run: go on with --resume, start anew with --overwrite, "
            f"or choose another --output"
        )
    if finished and not saved and not overwrite:
        raise TrainingError(
            f"{folder} holds a trained model without the state of its training, so that it cannot "
            f"be resumed: choose another --output, or start anew with --overwrite"
        )
    if not overwrite and (found := conflicting_file(folder)) is not None:
        raise TrainingError(
            f"{found} is not of a run and would be replaced: choose another --output, move it, or "
            f"give --overwrite"
        )
    keeps_recipe(folder, recipe)


def _keep_silent(sentence: str) -> None:
    pass


def _number(value: float | None) -> float | None:
    """JSON has none that is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _write_down(run: Run, say: Say) -> None:
    """Facts of the training into metrics.json, and the card."""
    standing = run.standing
    facts = {
        "steps": standing.step,
        "epochs": standing.position.epoch,
        "best_step": standing.best_step,
        "best": {run.recipe.validation.metric: _number(standing.best)},
        "seconds": round(standing.seconds, 1),
        "parameters": sum(p.numel() for p in run.network.parameters()),
        "device": describe(run.device),
        "processes": run.ranks.count,
        "precision": str(run.precision).removeprefix("torch."),
        "torch": torch.__version__,
    }
    update_metrics(run.folder, "training", facts)
    if told := write_card(run.model, run.folder):
        say(told)
