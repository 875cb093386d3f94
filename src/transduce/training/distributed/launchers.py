"""What started this process, and which rank it is: torchrun, Slurm's srun, or nothing.

torchrun and the worker function of Ray Train set the variables of torch. srun sets its own, from
which those of torch follow.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from transduce.errors import TrainingError

TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
#: SLURM_STEP_NUM_TASKS is set by srun alone: a script of sbatch, or a shell of salloc, is no rank.
SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
FIRST_PORT, PORTS = 20_000, 10_000  # below those that systems hand out by themselves


class Place(NamedTuple):
    """This process among those of its run."""

    rank: int
    size: int
    """The number of ranks."""
    local: int
    """Its rank among those of its machine."""


def place_in_run() -> Place | None:
    """The rank that a launcher gave to this process; None: it trains alone.

    For a process of srun, the variables of torch are set here; an address and a port that the user
    has set stay. Raises TrainingError where variables are missing or wrong.
    """
    if "WORLD_SIZE" in os.environ:
        # torchrun with one process: a group of one, which is how to try NCCL and FSDP on one GPU.
        if os.environ["WORLD_SIZE"] == "1" and "TORCHELASTIC_RUN_ID" not in os.environ:
            return None
        return _read(TORCH)
    if os.environ.get(SLURM[1], "1") == "1" or _typed_in_a_shell():
        return None
    place = _read(SLURM)
    job, step = (int(os.environ.get(f"SLURM_{name}", "0")) for name in ("JOB_ID", "STEP_ID"))
    os.environ.setdefault("MASTER_ADDR", first_host(os.environ["SLURM_STEP_NODELIST"]))
    os.environ.setdefault("MASTER_PORT", str(FIRST_PORT + (7 * job + step) % PORTS))
    os.environ.update(zip(TORCH, map(str, place), strict=True))
    return place


def _typed_in_a_shell() -> bool:
    """Whether this command was typed in the shell of `srun --pty bash`, which has srun's variables.

    An interactive shell gives each command a process group; what srun starts, and a script that it
    starts, are in that of the task.
    """
    try:
        task = os.getpgid(int(os.environ["SLURM_TASK_PID"]))
    except (KeyError, ValueError, OSError, AttributeError):  # Windows has no process groups
        return False
    return os.isatty(0) and os.getpgrp() != task


def _read(names: tuple[str, str, str]) -> Place:
    try:
        place = Place(*(int(os.environ[name]) for name in names))
        if not 0 <= place.rank < place.size:
            raise ValueError(f"{names[0]} is {place.rank}, {names[1]} {place.size}")
    except KeyError as missing:
        raise TrainingError(
            f"{names[1]} is set, but {missing.args[0]} is not: start the processes with torchrun "
            f"or srun, or unset {names[1]} to train in one"
        ) from None
    except ValueError as error:
        raise TrainingError(
            f"the rank of this process is wrong ({error}): start the processes with torchrun or "
            f"srun, or unset {names[1]} to train in one"
        ) from None
    return place


def first_host(nodes: str) -> str:
    """The first of Slurm's list of machines, such as gpu[07-09,12],login2: gpu07."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)
