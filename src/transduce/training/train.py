"""`train_recipe`: from a recipe to a trained model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from transduce.checksums import SUMS
from transduce.data.cache.tokenised import Encoded
from transduce.data.text.trust import record_training_data
from transduce.errors import TrainingError
from transduce.hardware import describe, pick_device, threads_for
from transduce.hub import is_hub_address
from transduce.inspection.model_card import write_card
from transduce.memory import free_memory
from transduce.recipe import Recipe, read_recipe, resolve_data_folder
from transduce.storage import expanded, make_folder, remove_stale
from transduce.storage.locks import held
from transduce.tasks.folder import (
    WEIGHTS,
    conflicting_file,
    discard_run,
    keeps_recipe,
    read_metrics,
    update_metrics,
)
from transduce.tasks.model import Change
from transduce.tasks.model_size import check_trainable
from transduce.tasks.transduce import kind_of, load
from transduce.training.choose_decoding import choose_decoding
from transduce.training.distributed.agreement import check_data, check_start
from transduce.training.distributed.processes import Processes, join
from transduce.training.fine_tuning.start import open_start, take_over
from transduce.training.fine_tuning.tuning import check_patterns
from transduce.training.log import check_packages, tracker_makers
from transduce.training.loop import Pause, Run, Trained, end_of, wall_clock
from transduce.training.prepare import Print, prepare
from transduce.training.progress import NoProgress, Progress, console
from transduce.training.run_directory.checkpoint import (
    check_changes,
    has_state,
    read_state,
    recover_state,
    run_recipe,
)
from transduce.training.run_report import write_run_report

__all__ = ["Trained", "finished_run", "train_recipe"]


def train_recipe(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    folder: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    overrides: Iterable[str] = (),
    change: Change | None = None,
    began: float | None = None,
    pause: Pause | None = None,
    count_reading: bool = True,
) -> Trained:
    """Train a recipe; the arguments are those of `transduce.train`.

    pause: a function that is asked after every update, with the state of the run, whether to stop
    there: after a validation, with a checkpoint from which `resume` goes on. count_reading: whether
    train.minutes counts the time in which the data are read and tokenized.
    """
    began = wall_clock() if began is None else began
    # A recipe made in Python needs to know where its files are, too.
    chosen = _absolute(resolve_data_folder(read_recipe(recipe, overrides), Path.cwd()))
    place = Path("runs") / chosen.name if folder is None else Path(folder)
    threads = threads_for(chosen.model.width, chosen.train.batch_tokens)
    with join(chosen.train.device, chosen.train.timeout) as ranks, ExitStack() as kept, threads:
        counted = began if count_reading else None
        return _train(chosen, place, resume, overwrite, change, ranks, kept, counted, pause)


def _train(
    recipe: Recipe,
    folder: Path,
    resume: bool,
    overwrite: bool,
    change: Change | None,
    ranks: Processes,
    kept: ExitStack,
    began: float | None,
    pause: Pause | None,
) -> Trained:
    check_start(ranks, recipe, {"--output": str(folder.absolute()), "--resume": resume})
    # Rank 0 decides for all: others may see an older version of a shared folder.
    saved, finished = ranks.broadcast([has_state(folder), _is_finished(folder)])
    start = None
    if recipe.train.start is not None and not (resume and saved):
        start = open_start(recipe.train.start)
        recipe = take_over(recipe, start.recipe)
        if start.folder.resolve() == folder.resolve():
            raise TrainingError(
                f"{folder} is the model that training starts from; choose another --output"
            )
        if change is None:  # it may name parts as it likes
            check_patterns(recipe)
    _check_folder(folder, recipe, saved, finished, resume, overwrite)
    check_packages(recipe.train.log_to)
    device = ranks.device(recipe.train.device)  # fail before an hour of tokenising, not after it
    shared = ranks.count if recipe.train.fsdp else 1
    check_trainable(kind_of(recipe), recipe, free_memory(device), shared)
    ranks.barrier()  # until all ranks have seen the folder as it was
    print_line = console().print if ranks.first else _print_nothing
    if resume and not saved:
        print_line(f"There is no checkpoint in {folder} yet: the run starts from the beginning.")
    started, resume = saved or finished, resume and saved
    if ranks.first:
        make_folder(folder)
        if not kept.enter_context(held(folder)):
            raise TrainingError(
                f"another run is training in {folder}: wait for it, stop it, or choose another "
                f"--output"
            )
        if resume and (trouble := recover_state(folder)) is not None:
            print_line(f"warning: {trouble}.")
    if resume and recipe.train.start is not None:
        recipe = take_over(recipe, run_recipe(folder, ranks))
    if resume and ranks.first:
        for key in check_changes(recipe, folder):
            print_line(f"Resuming with a changed recipe: {key}.")
    prepared = prepare(recipe, folder if resume else None, print_line, ranks, start)
    check_data(ranks, prepared.train.corpus, prepared.valid)
    run = Run(recipe, folder, prepared, ranks, change, start, began)
    if resume:
        run.resume()
    elif started and ranks.first:  # only now that the new run can start
        discard_run(folder)
    if ranks.first:
        for place in (folder, folder / "state"):
            # temporary files of a killed run, before they take space from what follows
            remove_stale(place)
        run.model.save_definition(folder)  # also when resumed, as the recipe may have changed
        make_folder(folder / "state")
        record_training_data(recipe, print_line)
    for sentence in run.about():
        print_line(sentence)
    kind = Progress if ranks.first else NoProgress
    shown = kind(
        folder,
        recipe.train.steps,
        run.state.step,
        metric=recipe.validation.metric,
        minutes=recipe.train.minutes,
        log_every=recipe.train.log_every,
        trackers=tracker_makers(recipe, folder, run.state.step > 0),
    )
    with shown as progress:
        if run.tuning.metadata and not run.state.step:
            progress.started(run.tuning.report()["start"])
        trained = run.run(progress, pause)
    ranks.finish_alone()
    if ranks.first and not trained.interrupted:
        if recipe.validation.decoding == "chosen":
            choose_decoding(run.model, folder, run.prepared.items, print_line)
        _write_metrics(run, print_line)
    return trained


def _absolute(recipe: Recipe) -> Recipe:
    """The recipe with the places of its teachers as absolute paths, so that it can be resumed from
    anywhere.
    """
    teacher = recipe.train.teacher
    if teacher is None:
        return recipe
    places = [
        one if is_hub_address(one) else str(expanded(one).absolute()) for one in teacher.models
    ]
    model = places[0] if isinstance(teacher.model, str) else places
    teacher = teacher.model_copy(update={"model": model})
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"teacher": teacher})})


def _is_finished(folder: Path) -> bool:
    """Whether a folder holds a finished model, and no run that is not finished.

    A run makes the folder of its checkpoints before it has weights: one that was killed between its
    first weights and its first checkpoint starts again.
    """
    begun = (folder / SUMS).is_file() and (folder / "state").is_dir()
    return (folder / WEIGHTS).exists() and not begun


def _check_folder(
    folder: Path, recipe: Recipe, saved: bool, finished: bool, resume: bool, overwrite: bool
) -> None:
    """Raise TrainingError, or ModelError, if the run would overwrite something it may not."""
    if saved and not resume and not overwrite:
        raise TrainingError(
            f"{folder} already holds a run: continue with --resume, start over with --overwrite, "
            f"or choose another --output"
        )
    if finished and not saved and not overwrite:
        raise TrainingError(
            f"{folder} holds a trained model without a checkpoint, so that it cannot be resumed: "
            f"choose another --output, or start over with --overwrite"
        )
    if not overwrite and (found := conflicting_file(folder)) is not None:
        raise TrainingError(
            f"{found} does not belong to a run and would be replaced: choose another --output, "
            f"move it, or "
            f"give --overwrite"
        )
    keeps_recipe(folder, recipe)


def _print_nothing(sentence: str) -> None:
    pass


def _number(value: float | None) -> float | None:
    """A number for JSON, which has no NaN or infinity."""
    return value if value is not None and math.isfinite(value) else None


def finished_run(folder: Path, recipe: Recipe) -> Trained | None:
    """The run in a folder as it ended, with all that comes after its last update; None where there
    is none, or where it would go on by this recipe."""
    state, training = read_state(folder), read_metrics(folder).get("training")
    if state is None or not isinstance(training, dict) or training.get("steps") != state.step:
        return None
    # The checkpoint was written within the last validation, and does not know how long that took.
    state.elapsed = float(training.get("elapsed", state.elapsed))
    state.validation = float(training.get("longest_validation", state.validation))
    if end_of(state, recipe) is None:
        return None
    device = str(pick_device(recipe.train.device))
    return Trained(folder, load(folder, device, members=False), state, interrupted=False)


def _write_metrics(run: Run, print_line: Print) -> None:
    """Write metrics.json and the model card."""
    state = run.state
    metadata = {
        "steps": state.step,
        "epochs": state.position.epoch,
        "best_step": state.best_step,
        "best": {run.recipe.validation.metric: _number(state.best)},
        "seconds": round(state.seconds, 1),
        "elapsed": state.elapsed,
        "longest_validation": state.validation,
        "parameters": sum(p.numel() for p in run.network.parameters()),
        "device": describe(run.device),
        "processes": run.ranks.count,
        "precision": str(run.precision).removeprefix("torch."),
        "torch": torch.__version__,
        **run.tuning.report(),
        "data": {
            name: _counts(corpus)
            for name, corpus in (
                ("train", run.prepared.train.corpus),
                ("valid", run.prepared.valid),
            )
        },
    }
    update_metrics(run.folder, "training", metadata)
    if problem := write_card(run.model, run.folder):
        print_line(problem)
    if problem := write_run_report(run.model, run.folder, run.prepared.items):
        print_line(problem)


def _counts(corpus: object) -> dict[str, int]:
    """Pairs and tokens, if they are known: those of a stream are not."""
    if not isinstance(corpus, Encoded):
        return {}
    sides = {"source_tokens": corpus.source_ids, "target_tokens": corpus.target_ids}
    return {"pairs": len(corpus), **{name: len(ids) for name, ids in sides.items()}}
