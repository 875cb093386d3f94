"""The engines of clusters.

ray: actors of a Ray cluster, or of a local one, that decode one shard at a time. slurm: a script
for sbatch whose array tasks share the shards of a job."""

from __future__ import annotations

import shlex
import sys
from collections import Counter, deque
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from transduce.batch_inference.decoder import Decoder, open_decoder
from transduce.batch_inference.inputs import Shard
from transduce.batch_inference.job import Job, read_job
from transduce.batch_inference.local import DEATHS
from transduce.batch_inference.progress import Progress
from transduce.batch_inference.worker import work
from transduce.errors import HardwareError, ModelError, TransduceError, load_package
from transduce.storage import make_folder, write_text
from transduce.storage.positions import place_at
from transduce.storage.remote import RemotePath

POLL = 1.0  # seconds


class ShardDecoder:
    """An actor: loads the model once, then decodes the shards that it is handed."""

    def __init__(self, folder: str, device: str) -> None:
        self.folder, self.device = folder, device

    # Not when the actor is made: an error would then be one of Ray.
    @cached_property
    def loaded(self) -> tuple[Job, Decoder]:
        job = read_job(place_at(self.folder))
        job.check_model()
        return job, open_decoder(Path(job.model), job.settings, self.device)

    def ready(self) -> None:
        """Load the model."""
        assert self.loaded

    def decode(self, number: int) -> None:
        job, decoder = self.loaded
        work(job, [job.shards[number]], decoder)


def run_on_ray(job: Job, shards: Sequence[Shard], workers: int, device: str) -> None:
    """Decode shards with so many actors. Raises a worker's error.

    0 workers: one for each GPU of the cluster, or else for each CPU.
    Ray starts an actor that died again, where the cluster has room. An actor gets a shard when it
    says that it is ready, and the shard of one that died goes to another. So of a cluster that has
    become smaller, what is left finishes the job.
    The cluster is that of RAY_ADDRESS; without it, one on this machine, until the end.
    """
    ray = load_package("ray", "ray", "--engine ray", HardwareError)
    job.clean()
    pending = deque(shard.number for shard in job.unfinished(shards))
    missing, deaths = len(pending), Counter[int]()
    progress = Progress(job, shards)
    own = not ray.is_initialized()
    if own:
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    try:
        there = ray.cluster_resources()
        gpus = 0 if device == "cpu" else min(1, int(there.get("GPU", 0)))
        workers = workers or max(1, int(there.get("GPU" if gpus else "CPU", 1)))
        environment = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        Actor = ray.remote(
            num_cpus=1,
            num_gpus=gpus,
            max_restarts=-1,
            runtime_env={"env_vars": environment},
        )(ShardDecoder)
        folder = str(job.folder.absolute())

        def opening(actor: Any) -> Any:
            """Answers when the actor runs, if ever."""
            return actor.ready.options(max_task_retries=-1).remote()

        actors = [Actor.remote(folder, device) for _ in range(min(workers, missing))]
        asked: dict[Any, tuple[Any, int | None]] = {opening(one): (one, None) for one in actors}
        idle: list[Any] = []
        while missing:
            ready, _ = ray.wait(list(asked), timeout=POLL)
            progress.show()
            for task in ready:
                actor, number = asked.pop(task)
                try:
                    ray.get(task)
                except ray.exceptions.RayActorError:
                    if number is None:
                        raise
                    deaths[number] += 1
                    if deaths[number] > DEATHS:
                        raise ModelError(_died(number, deaths[number])) from None
                    pending.appendleft(number)
                    asked[opening(actor)] = actor, None
                else:
                    missing -= number is not None
                    idle.append(actor)
            while idle and pending:
                actor, number = idle.pop(), pending.popleft()
                asked[actor.decode.remote(number)] = actor, number
        progress.show(force=True)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, TransduceError) else error from None
    except ray.exceptions.RayError as error:
        raise HardwareError(f"Ray has failed: {' '.join(str(error).split())[:300]}") from None
    finally:
        job.clean()
        if own:
            ray.shutdown()


def _died(number: int, workers: int) -> str:
    return (
        f"shard {number}: {workers} workers died before one had finished it; if memory was short, "
        f"lower --workers or --beam. The same command goes on from the finished shards"
    )


SCRIPT = "batch.sbatch"


def write_script(job: Job, tasks: int, device: str) -> Path:
    """Write the script of an array job with so many tasks, at most one for each shard.

    It is in the folder of the job, or of a job in a store in the current one.
    """
    tasks = min(tasks, len(job.shards))
    folder = job.folder.absolute()
    here = Path.cwd() if isinstance(folder, RemotePath) else folder
    logs = here / "logs"
    make_folder(logs)
    command = [sys.executable, "-m", "transduce", "batch", job.model, "--output", str(folder)]
    command += ["--device", device]
    text = f"""#!/bin/bash
# {len(job.shards):,} shards, {job.lines:,} lines, in {tasks} tasks. Finished shards are skipped, so
# it can be submitted again after a failure: sbatch {shlex.quote(str(here / SCRIPT))}
# Add what your cluster needs: #SBATCH --partition=..., --gres=gpu:1, --time=..., --mem=...
#SBATCH --job-name=transduce-batch
#SBATCH --array=0-{tasks - 1}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --output={_name(logs / "%A_%a.log")}
set -euo pipefail
exec {shlex.join(command)} \\
    --workers "${{SLURM_CPUS_PER_TASK:-1}}" --shard "${{SLURM_ARRAY_TASK_ID}}/{tasks}"
"""
    write_text(here / SCRIPT, text)
    return here / SCRIPT


def _name(path: Path) -> str:
    """A path in an #SBATCH line, where quotes keep spaces together."""
    text = str(path)
    return f'"{text}"' if " " in text else text
