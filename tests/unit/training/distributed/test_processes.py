"""One process alone, and what is decided before any other is asked."""

from __future__ import annotations

import pytest
import torch

from transduce.errors import HardwareError, TrainingError
from transduce.training.distributed import processes as module
from transduce.training.distributed.processes import Processes, join


def test_alone_nothing_is_exchanged() -> None:
    ranks = Processes()
    tensor = torch.arange(3.0)
    ranks.all_reduce(tensor)
    ranks.barrier()
    assert tensor.tolist() == [0, 1, 2]
    assert ranks.first
    assert ranks.all_gather_numbers([1.5]) == [[1.5]]
    assert ranks.all_gather({"a": 1}) == [{"a": 1}]
    assert ranks.broadcast("x") == "x"
    assert ranks.exchange(b"abc") == [b"abc"]
    assert ranks.in_turn(lambda: 3) == 3


@pytest.mark.parametrize("environment", [{}, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}])
def test_a_process_without_others_joins_nobody(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with join("cpu") as ranks:
        assert ranks == Processes()
        assert not torch.distributed.is_initialized()


def test_a_group_that_is_there_already_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(TrainingError, match=r"destroy_process_group\(\)"), join("cpu"):
        pass


def test_no_two_processes_and_no_two_updates_draw_alike() -> None:
    seeds = {
        Processes(rank, 4).seed(seed, step)
        for rank in range(4)
        for seed in (1, 2)
        for step in (0, 9)
    }
    assert len(seeds) == 16


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "pick_device", lambda name: torch.device(name))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Processes(3, 4, local=1).device("cuda") == torch.device("cuda:1")
    assert Processes(3, 4, local=1).device("cpu") == torch.device("cpu")
    # A GPU that is named is shared.
    assert Processes(3, 4, local=1).device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(HardwareError, match="--nproc-per-node 2"):
        Processes(3, 4, local=2).device("cuda")
    assert Processes().device("cuda:1") == torch.device("cuda:1")
    # A group of one needs a number, too.
    assert Processes(joined=True).device("cuda") == torch.device("cuda:0")
    # srun --gpus-per-task and Ray show each process its own GPU alone.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert Processes(3, 4, local=2).device("cuda") == torch.device("cuda:0")


@pytest.mark.parametrize(
    ("update", "words"),
    [(0, "before the first update"), (7, "at update 7; the last checkpoint is intact")],
)
def test_the_loss_of_another_process_is_one_sentence(
    update: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ignore_termination", lambda: None)
    ranks = Processes(0, 2, update=update)
    with pytest.raises(TrainingError, match=words), ranks.together():
        raise RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    with pytest.raises(RuntimeError, match="mistake"), ranks.together():
        raise RuntimeError("a mistake of ours")
