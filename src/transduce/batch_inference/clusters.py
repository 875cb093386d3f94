"""The engines of clusters.

ray: actors of a Ray cluster, or of a local one, that decode one shard at a time. slurm: a script
for sbatch whose array tasks share the shards of a job."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from transduce.batch_inference.decoder import open_decoder
from transduce.batch_inference.inputs import Shard
from transduce.batch_inference.job import Job, read_job
from transduce.batch_inference.progress import Progress
from transduce.batch_inference.worker import work
from transduce.errors import HardwareError, TransduceError, load_package
from transduce.storage import make_folder, write_text
from transduce.storage.positions import place_at
from transduce.storage.remote import RemotePath

POLL = 1.0  # seconds


class ShardDecoder:
    """An actor: loads the model once, then decodes the shards that it is handed."""

    def __init__(self, folder: str, device: str) -> None:
        self.job = read_job(place_at(folder))
        self.job.check_model()
        self.decoder = open_decoder(Path(self.job.model), self.job.settings, device)

    def process(self) -> int:
        return os.getpid()

    def decode(self, number: int) -> int:
        work(self.job, [self.job.shards[number]], self.decoder)
        return number


def run_on_ray(job: Job, shards: Sequence[Shard], workers: int, device: str) -> None:
    """Decode shards with so many actors; Ray restarts those that die. Raises a worker's error.

    0 workers: one for each GPU of the cluster, or else for each CPU.
    The cluster is that of RAY_ADDRESS; without it, one on this machine, until the end.
    """
    ray = load_package("ray", "ray", "--engine ray", HardwareError)
    job.clean()
    pending = [shard.number for shard in job.unfinished(shards)]
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
            max_task_retries=-1,
            runtime_env={"env_vars": environment},
        )(ShardDecoder)
        folder_ = str(job.folder.absolute())
        actors = [Actor.remote(folder_, device) for _ in range(min(workers, len(pending)))]
        busy = {actor.decode.remote(pending.pop(0)): actor for actor in actors}
        while busy:
            ready, _ = ray.wait(list(busy), timeout=POLL)
            progress.show()
            for task in ready:
                actor = busy.pop(task)
                ray.get(task)
                if pending:
                    busy[actor.decode.remote(pending.pop(0))] = actor
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
