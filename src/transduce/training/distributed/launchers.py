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

    Of Slurm's processes, MASTER_ADDR and MASTER_PORT are set here, unless the user has set them.
    Raises TrainingError where variables are missing or wrong.
    """
    if "WORLD_SIZE" in os.environ:
        place = _read(TORCH)
        # torchrun with one process: a group of one, which is how to try NCCL and FSDP on one GPU.
        return place if place.size > 1 or "TORCHELASTIC_RUN_ID" in os.environ else None
    if int(os.environ.get(SLURM[1], "1")) == 1:
        return None
    place = _read(SLURM)
    os.environ.setdefault("MASTER_ADDR", first_host(os.environ["SLURM_STEP_NODELIST"]))
    job, step = (int(os.environ.get(f"SLURM_{name}", "0")) for name in ("JOB_ID", "STEP_ID"))
    os.environ.setdefault("MASTER_PORT", str(FIRST_PORT + (7 * job + step) % PORTS))
    return place


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
