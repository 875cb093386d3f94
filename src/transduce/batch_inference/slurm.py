"""The engine slurm: a script for sbatch whose array tasks share the shards of a job."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from transduce.batch_inference.job import Job
from transduce.storage import make_folder, write_text

SCRIPT = "batch.sbatch"


def write_script(job: Job, tasks: int, device: str) -> Path:
    """Write the script of an array job with so many tasks, at most one for each shard."""
    tasks = min(tasks, len(job.shards))
    folder = job.folder.absolute()
    logs = folder / "logs"
    make_folder(logs)
    command = [sys.executable, "-m", "transduce", "batch", job.model, "--output", str(folder)]
    command += ["--device", device]
    text = f"""#!/bin/bash
# {len(job.shards):,} shards, {job.lines:,} lines, in {tasks} tasks. Finished shards are skipped, so
# it can be submitted again after a failure: sbatch {shlex.quote(str(folder / SCRIPT))}
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
    write_text(folder / SCRIPT, text)
    return folder / SCRIPT


def _name(path: Path) -> str:
    """A path in an #SBATCH line, where quotes keep spaces together."""
    text = str(path)
    return f'"{text}"' if " " in text else text
