"""Checkpoints: everything that a run needs to resume as if it had never stopped, in one file.

`state/training.safetensors` holds the weights, the optimizer's moments, the moving average and the
random generators as tensors, and the rest as JSON in its header. It is written to a temporary file
and renamed, so a kill at any time leaves the previous checkpoint intact. A checkpoint is saved at
every validation, and in between every `train.save_every` minutes.

The one before it stays as `state/training.previous.safetensors`: if the newest is damaged, the run
resumes from that one and loses one interval, not everything. A checkpoint is three times as large
as the weights, four times with `train.ema`; two of them stay on the disk, and there are three while
one is being written.

Rank 0 writes it, with full (not sharded) tensors, so that any number of processes can resume from
it. It has the random generators of each rank: with the same world size, resuming is exact.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transduce.data.batches.bucketing import Position
from transduce.errors import CheckpointError, TrainingError
from transduce.hardware import seed_everything
from transduce.recipe import Recipe, parse_recipe
from transduce.storage import (
    make_folder,
    missing_folder,
    read_tensor_metadata,
    read_tensors,
    write_tensors,
)
from transduce.tasks.model import needs_change
from transduce.training.distributed.fsdp import full_tensor, shard_like
from transduce.training.distributed.processes import Processes
from transduce.training.log_window import LogWindow
from transduce.training.nan_guard import NanGuard
from transduce.training.optimizer import MovingAverage

STATE = Path("state") / "training.safetensors"
PREVIOUS = Path("state") / "training.previous.safetensors"


@dataclass
class TrainingState:
    """The state of a run, apart from its tensors."""

    step: int = 0
    position: Position = field(default_factory=lambda: Position(0, 0, 0))
    seconds: float = 0.0
    """Of updates alone."""
    elapsed: float = 0.0
    """Seconds of wall clock, of all commands that trained this run, start-up and validation
    included."""
    validation: float = 0.0
    """Seconds that the longest validation took, with its checkpoint."""
    best: float | None = None
    """The metric of the best validation; of equals, the one with the lowest loss."""
    best_loss: float = math.inf
    """Its loss; infinite: not known, of a run of an earlier version."""
    best_step: int = 0
    worse: int = 0
    """Validations since the metric was last better."""
    kept: list[tuple[int, float]] = field(default_factory=list)
    """Step and metric of each checkpoint kept for averaging."""
    window: LogWindow = field(default_factory=LogWindow)
    guard: NanGuard = field(default_factory=NanGuard)
    tokens: int = 0
    """Tokens of a batch: the recipe's, or what `train.batch_tokens: auto` found."""
    corpus: str = ""
    """The size of the training corpus, in words; empty if unknown."""
    changed: str = ""
    """The function that changed the network after it was built, by name; empty: none."""
    start: dict[str, Any] = field(default_factory=dict)
    """Of fine-tuning: the model it started from and what was loaded of it."""
    teacher: str = ""
    """Of distillation: the fingerprint of the teacher's weights."""


def save_state(
    folder: Path,
    state: TrainingState,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: MovingAverage | None,
    recipe_text: str,
    ranks: Processes | None = None,
) -> None:
    """Save a checkpoint; all ranks call it, and it returns when the file is written."""
    ranks = ranks or Processes()
    tensors: dict[str, Tensor] = {f"weights/{name}": p for name, p in network.named_parameters()}
    tensors |= _optimizer_tensors(network, optimizer)
    if average is not None:
        tensors |= {f"average/{name}": w for name, w in average.weights.items()}
    ready = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor.detach())
        if ranks.first:
            ready[name] = full.cpu()
    others = ranks.all_gather(_random_states(ranks))
    if ranks.first:
        ready["random/torch"] = torch.get_rng_state()
        for index, generator in enumerate(torch.cuda.get_rng_state_all()):
            ready[f"random/cuda{index}"] = generator
        metadata = {
            "standing": _state_json(state),  # the name in the checkpoints there are
            "random": _python_random(),
            "recipe": recipe_text,
        }
        for rank, states in enumerate(others[1:], start=1):
            for kind in ("torch", "cuda"):
                if states[kind]:
                    ready[f"random/{kind}/{rank}"] = torch.tensor(states[kind], dtype=torch.uint8)
            metadata[f"random/{rank}"] = states["host"]
        if not folder.is_dir():  # creating it again would hide that all the rest is lost
            raise CheckpointError(missing_folder(folder))
        make_folder((folder / STATE).parent)
        write_tensors(folder / STATE, ready, metadata, folder / PREVIOUS)
    ranks.barrier()


def _state_json(state: TrainingState) -> dict[str, Any]:
    # A window's tensors are on the device: it converts itself.
    plain = asdict(replace(state, window=LogWindow()))
    return {**plain, "window": state.window.to_json()}


def has_state(folder: Path) -> bool:
    return any((folder / name).exists() for name in (STATE, PREVIOUS))


def recover_state(folder: Path) -> str | None:
    """Make the last intact checkpoint the newest; returns a sentence if that is the previous one.

    Raises CheckpointError if none is intact.
    """
    newest, previous = folder / STATE, folder / PREVIOUS
    try:
        read_tensors(newest)
        return None
    except CheckpointError as error:
        trouble = error
    try:
        _, metadata = read_tensors(previous)
    except CheckpointError:
        raise trouble from None
    try:
        previous.replace(newest)
    except OSError as error:
        raise CheckpointError(
            f"{newest} is damaged and cannot be replaced by {previous} "
            f"({error.strerror or error}); move it away and resume again"
        ) from None
    what = str(trouble).removesuffix("; restore it from a copy")
    step = metadata.get("standing", {}).get("step", 0)
    return f"{what}; resuming from the checkpoint before it, of update {step}"


def load_state(
    folder: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: MovingAverage | None,
    ranks: Processes | None = None,
    seed: int = 0,
    changed: str = "",
) -> TrainingState:
    """Load a checkpoint; CheckpointError if it is missing, damaged or does not fit.

    changed: the function that changed the network after it was built, by name. A rank whose
    generators are not in the checkpoint is seeded from (seed, step, rank).
    """
    ranks = ranks or Processes()
    tensors, metadata = read_tensors(folder / STATE)
    stored = dict(metadata.get("standing") or {}).get("changed")
    if stored and not changed:
        raise CheckpointError(needs_change(folder, str(stored)))
    try:
        _restore_weights(dict(network.named_parameters()), tensors, "weights/")
        if average is not None:
            _restore_weights(average.weights, tensors, "average/")
        _restore_optimizer(network, optimizer, tensors)
        state = _state_of(metadata)
        if ranks.first:
            _restore_random(tensors, metadata)
        elif not _restore_random_of(ranks, tensors, metadata):
            seed_everything(ranks.seed(seed, state.step))
        return state
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the checkpoint {folder / STATE} does not fit this recipe ({error}); resume with the "
            f"recipe it was trained with, or start over with --overwrite"
        ) from None


def _state_of(metadata: Mapping[str, Any]) -> TrainingState:
    values = dict(metadata["standing"])
    values["position"] = Position(**values["position"])
    values["window"] = LogWindow.from_json(values["window"])
    values["guard"] = NanGuard(**values["guard"])
    values["kept"] = [(int(step), float(value)) for step, value in values["kept"]]
    values.setdefault("elapsed", values["seconds"])  # a run of an earlier version
    return TrainingState(**values)


def read_state(folder: Path) -> TrainingState | None:
    """The state in the newest checkpoint, without its tensors; None: there is none, or it cannot be
    read."""
    try:
        return _state_of(read_tensor_metadata(folder / STATE))
    except (CheckpointError, KeyError, TypeError, ValueError):
        return None


def saved_recipe(folder: Path) -> str:
    """The recipe that the checkpoint in a folder was trained with."""
    _, metadata = read_tensors(folder / STATE)
    if "recipe" not in metadata:
        raise CheckpointError(
            f"{folder / STATE} is not a checkpoint: it holds no recipe; start over with --overwrite"
        )
    return str(metadata["recipe"])


@torch.no_grad()
def _restore_weights(own: Mapping[str, Tensor], tensors: dict[str, Tensor], prefix: str) -> None:
    saved = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    strange = sorted(set(own) ^ set(saved))
    # copy_ would broadcast smaller tensors, so shapes are compared first.
    strange += [name for name in own if name in saved and own[name].shape != saved[name].shape]
    if strange:
        raise ValueError(f"{prefix}{strange[0]} is not the same in both")
    for name, weight in own.items():
        weight.copy_(shard_like(weight, saved[name]))


def _optimizer_tensors(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        for part, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer/{part}/{name}"] = value
    return tensors


def _restore_optimizer(
    network: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    for name, parameter in network.named_parameters():
        state: dict[str, Tensor] = {}
        for part in ("step", "exp_avg", "exp_avg_sq", "momentum"):
            saved = tensors.get(f"optimizer/{part}/{name}")
            if saved is not None:
                # step counters are scalars
                cut = shard_like(parameter, saved) if saved.ndim else saved
                state[part] = cut.to(parameter.device)
        if state:
            optimizer.state[parameter] = state


def _random_states(ranks: Processes) -> dict[str, Any]:
    """The random generators of a rank other than 0, as JSON."""
    if ranks.first:
        return {}
    on_gpu = torch.cuda.is_available()
    return {
        "torch": torch.get_rng_state().tolist(),
        "cuda": torch.cuda.get_rng_state().tolist() if on_gpu else [],
        "host": _python_random(),
    }


def _restore_random(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    torch.set_rng_state(tensors["random/torch"])
    for index in range(torch.cuda.device_count()):
        if f"random/cuda{index}" in tensors:
            torch.cuda.set_rng_state(tensors[f"random/cuda{index}"], index)
    _restore_python_random(metadata["random"])


def _restore_random_of(
    ranks: Processes, tensors: dict[str, Tensor], metadata: dict[str, Any]
) -> bool:
    """Whether the checkpoint has the generators of this rank, which are then restored."""
    own = f"random/torch/{ranks.rank}"
    if own not in tensors:
        return False
    torch.set_rng_state(tensors[own])
    if f"random/cuda/{ranks.rank}" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors[f"random/cuda/{ranks.rank}"])
    _restore_python_random(metadata[f"random/{ranks.rank}"])
    return True


def _python_random() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, list(internal), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), int(place), int(has_gauss), float(cached)],
    }


def _restore_python_random(saved: dict[str, Any]) -> None:
    version, internal, gauss = saved["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, place, has_gauss, cached = saved["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), place, has_gauss, cached))


# ----------------------------------------------------------------------------------------------
# Resuming with a changed recipe: which keys may change.

# Keys that may change without making the checkpoint meaningless.
FREE = (
    "name",
    "decode.",
    "validation.every",
    "validation.limit",
    "validation.beam",
    "validation.patience",
    "metrics",
    "data.folder",
    "data.test",
    "data.workers",
    "train.steps",
    "train.epochs",
    "train.minutes",
    "train.lr",
    "train.log_every",
    "train.log_to",
    "train.save_every",
    "train.checkpoint_activations",
    "train.device",
    "train.fsdp",
    "train.timeout",
    "train.start.from",  # the checkpoint has its weights
)


def run_recipe(folder: Path, ranks: Processes) -> Recipe:
    """The recipe that the run in a folder was started with, as rank 0 reads it."""
    text = ranks.broadcast(saved_recipe(folder) if ranks.first else "")
    return parse_recipe(text, "the state's recipe", folder)


def check_changes(recipe: Recipe, folder: Path) -> list[str]:
    """One line for each key that differs from the run's own recipe.

    Raises TrainingError if one of them may not change when resuming.
    """
    before = parse_recipe(saved_recipe(folder), "the state's recipe", folder)
    changes = list(_differences(before.model_dump(mode="json"), recipe.model_dump(mode="json")))
    free = FREE if before.data.streaming else (*FREE, "data.shuffle_buffer")
    forbidden = [change for change in changes if not change[0].startswith(free)]
    if forbidden:
        key, old, new = forbidden[0]
        raise TrainingError(
            f"{folder} was trained with {key}: {old}, the recipe now says {new}; this cannot "
            f"change when resuming: set it back, or train into another folder (--output)"
        )
    return [f"{key} is now {new} (was {old})" for key, old, new in changes]


def _differences(old: Any, new: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [(prefix, old, new)]
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        dotted = f"{prefix}.{key}" if prefix else key
        found += _differences(old.get(key), new.get(key), dotted)
    return found
