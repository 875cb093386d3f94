"""Which rank a launcher gave to this process."""

from __future__ import annotations

import os
import subprocess

import pytest

from transduce.errors import TrainingError
from transduce.training.distributed.launchers import TORCH, Place, first_host, place_in_run

#: As `srun --nodes 2 --ntasks-per-node 4` sets them, for the third process of the second machine.
STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}


def given(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "MASTER_", "TORCHELASTIC_")) or name.endswith("RANK"):
            monkeypatch.delenv(name)
    # What `place_in_run` sets is taken back at the end.
    for name in ("MASTER_ADDR", "MASTER_PORT", *TORCH):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_processes_of_srun_need_no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, STEP)
    assert place_in_run() == Place(6, 8, 2)
    assert place_in_run() == Place(6, 8, 2)  # by the variables of torch, which are set now
    assert os.environ["WORLD_SIZE"] == "8"  # by which the command knows that it is not alone
    assert os.environ["MASTER_ADDR"] == "gpu07"
    port = os.environ["MASTER_PORT"]
    given(monkeypatch, {**STEP, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert place_in_run() == Place(0, 8, 0)
    assert os.environ["MASTER_PORT"] == port  # all ranks meet at the same
    given(monkeypatch, {**STEP, "SLURM_JOB_ID": "4712"})
    place_in_run()
    assert os.environ["MASTER_PORT"] != port


def test_the_user_s_address_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, {**STEP, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    place_in_run()
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("10.0.0.1", "29500")


def test_a_script_of_sbatch_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the variables of its job, though only one process runs it."""
    batch = {name: value for name, value in STEP.items() if "STEP" not in name}
    given(monkeypatch, {**batch, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert place_in_run() is None


@pytest.mark.skipif(not hasattr(os, "getpgid"), reason="there are no process groups")
def test_a_command_typed_in_a_shell_of_srun_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """`srun --ntasks 8 --pty bash`: the shells of the other tasks end at once."""
    shell = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        given(monkeypatch, {**STEP, "SLURM_TASK_PID": str(shell.pid)})
        # Without a terminal: `srun timeout 1h transduce ...`, which has a process group, too.
        monkeypatch.setattr(os, "isatty", lambda number: False)
        assert place_in_run() == Place(6, 8, 2)
        given(monkeypatch, {**STEP, "SLURM_TASK_PID": str(shell.pid)})
        monkeypatch.setattr(os, "isatty", lambda number: number == 0)
        assert place_in_run() is None
        # srun --pty transduce: the task itself.
        given(monkeypatch, {**STEP, "SLURM_TASK_PID": str(os.getpid())})
        assert place_in_run() == Place(6, 8, 2)
    finally:
        shell.kill()
        shell.wait()


def test_torchrun_within_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, {**STEP, "RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "1"})
    assert place_in_run() == Place(3, 16, 1)


def test_torchrun_with_one_process_is_a_group_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    given(monkeypatch, {**one, "TORCHELASTIC_RUN_ID": "x"})
    assert place_in_run() == Place(0, 1, 0)
    given(monkeypatch, one)
    assert place_in_run() is None
    given(monkeypatch, {"WORLD_SIZE": "1"})  # as some clusters set it in every process
    assert place_in_run() is None


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is set, but RANK is not: start .* torchrun or srun"),
        ({"WORLD_SIZE": "2", "RANK": "2", "LOCAL_RANK": "0"}, "RANK is 2, WORLD_SIZE 2"),
        ({"WORLD_SIZE": "2", "RANK": "one", "LOCAL_RANK": "0"}, "the rank of this process"),
    ],
)
def test_variables_that_are_missing_or_wrong(
    environment: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, environment)
    with pytest.raises(TrainingError, match=words):
        place_in_run()


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu7", "gpu7"),
        ("gpu[07-09,12],login2", "gpu07"),
        ("gpu[3,5]", "gpu3"),
        ("a1,a2", "a1"),
        ("rack[0-1]node[12-14]-ib", "rack0node12-ib"),
    ],
)
def test_the_first_machine_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
