"""Training on a Ray cluster: Ray Train starts the ranks and places them on its machines.

Everything else is as with torchrun: the ranks make their process group, checkpoints are in the run
directory, which all machines must see, and a run that lost a rank is resumed with --resume.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import sys
from contextlib import nullcontext, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from transduce.errors import HardwareError, TrainingError, TransduceError, load_package
from transduce.recipe import Recipe, dump_recipe, parse_recipe, resolve_data_folder
from transduce.registry import VARIABLE, load_from_environment
from transduce.training.distributed.processes import LostRank
from transduce.training.train import train_recipe

# Workers stay in their folder, and a line that is printed is not logged a second time.
SETTINGS = {"RAY_CHDIR_TO_TRIAL_DIR": "0", "RAY_TRAIN_ENABLE_PRINT_PATCH": "0"}
END = ""  # after the last line


@dataclass(frozen=True)
class Job:
    """What a worker needs to know: the same for all."""

    recipe: str
    folder: str
    resume: bool
    overwrite: bool
    lines: Any
    """A queue for what rank 0 prints."""


class Lines(io.TextIOBase):
    """A standard error whose lines go to the terminal of the command."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._queue.put(line + "\n")
        return len(text)


def _print_lines(queue: Any) -> None:
    """Until END comes, or the cluster is gone."""
    with suppress(Exception):
        while (line := queue.get()) != END:
            print(line, end="", file=sys.stderr, flush=True)


def train_on_ray(
    recipe: Recipe, folder: Path, workers: int, *, resume: bool, overwrite: bool
) -> None:
    """Train a recipe with so many workers; 0: one for each GPU of the cluster, or else for each
    machine.

    The cluster is that of RAY_ADDRESS; without it, one on this machine, until the end. Raises
    TransduceError with the sentence of the worker that has failed.
    """
    what = "--engine ray"
    ray = load_package("ray", "ray", what, HardwareError)
    train = load_package("ray.train", "ray", what, HardwareError)
    trainers = load_package("ray.train.v2.api.data_parallel_trainer", "ray", what, HardwareError)
    os.environ.update(SETTINGS)
    own = not ray.is_initialized()
    if own:
        ray.init(include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    place = folder.absolute()
    # Ray Train wants a folder that all machines see. It is removed at the end.
    records = place.with_name(f".{place.name}.ray")
    try:
        gpus = 0 if recipe.train.device == "cpu" else int(ray.cluster_resources().get("GPU", 0))
        workers = workers or gpus or sum(node["Alive"] for node in ray.nodes())
        _check_resources(ray, workers, gpus)
        resolved = resolve_data_folder(recipe, Path.cwd())
        variables = {name: os.environ[name] for name in (VARIABLE,) if name in os.environ}
        lines = load_package("ray.util.queue", "ray", what, HardwareError).Queue(
            actor_options={"num_cpus": 0}
        )
        printing = Thread(target=_print_lines, args=(lines,), daemon=True)
        printing.start()
        job = Job(dump_recipe(resolved), str(place), resume, overwrite, lines)
        trainer = trainers.DataParallelTrainer(
            work,
            train_loop_config={"job": job},
            scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=gpus > 0),
            run_config=train.RunConfig(
                name="run",
                storage_path=str(records),
                worker_runtime_env={"env_vars": {**SETTINGS, **variables}},
            ),
        )
        try:
            trainer.fit()
        finally:
            lines.put(END)
            printing.join(10)
    except train.TrainingFailedError as error:
        raise _cause(error) from None
    except ray.exceptions.RayError as error:
        raise HardwareError(f"Ray has failed: {' '.join(str(error).split())[:300]}") from None
    finally:
        shutil.rmtree(records, ignore_errors=True)
        if own:
            ray.shutdown()


def _check_resources(ray: Any, workers: int, gpus: int) -> None:
    """Ray would wait for machines that never come."""
    kind, there = ("GPU", gpus) if gpus else ("CPU", int(ray.cluster_resources().get("CPU", 0)))
    if workers > there:
        raise HardwareError(
            f"the Ray cluster has {there} {kind}s, but each of the {workers} workers needs one: "
            f"give --workers {there}, or add machines"
        )


def work(given: dict[str, Any]) -> None:
    """One rank, in the process of a worker of Ray Train."""
    from ray import train
    from ray.train.collective import broadcast_from_rank_zero

    job: Job = given["job"]
    context = train.get_context()
    address = broadcast_from_rank_zero(_address() if context.get_world_rank() == 0 else None)
    own = {
        "RANK": context.get_world_rank(),
        "WORLD_SIZE": context.get_world_size(),
        "LOCAL_RANK": context.get_local_rank(),
        "MASTER_ADDR": address[0],
        "MASTER_PORT": address[1],
    }
    os.environ.update({name: str(value) for name, value in own.items()})
    load_from_environment()
    recipe = parse_recipe(job.recipe, "the recipe", Path.cwd())
    printed = Lines(job.lines) if context.get_world_rank() == 0 else nullcontext(sys.stderr)
    with printed as output, redirect_stderr(output):
        train_recipe(recipe, job.folder, resume=job.resume, overwrite=job.overwrite)


def _address() -> tuple[str, int]:
    """This machine, as the others of the cluster see it, and a free port."""
    import ray

    with socket.socket() as free:
        free.bind(("", 0))
        return ray.util.get_node_ip_address(), free.getsockname()[1]


def _cause(error: Exception) -> TransduceError:
    """What a worker has failed of by itself; else, that it has lost another."""
    failures = getattr(error, "worker_failures", {}).items()
    # Ray Train wraps what the function of a worker has raised.
    causes = {rank: getattr(failure, "_base_exc", failure) for rank, failure in failures}
    ours = [cause for cause in causes.values() if isinstance(cause, TransduceError)]
    for cause in ours:
        if not isinstance(cause, LostRank):
            return cause
    if ours:
        return ours[0]
    if causes:
        rank, cause = next(iter(causes.items()))
        reason = " ".join(str(cause).split())[:300]
        return TrainingError(
            f"rank {rank} was lost ({type(cause).__name__}: {reason}); if there is a checkpoint, "
            f"it is intact: start again with --resume, with any number of workers"
        )
    return TrainingError(f"Ray Train has failed: {' '.join(str(error).split())[:300]}")
