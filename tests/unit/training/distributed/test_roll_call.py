"""Which ranks are named when one is lost: the ranks are threads, with one store."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from transduce.training.distributed import roll_call
from transduce.training.distributed.roll_call import WHEN, Member, RollCall

HERE = Member("here", "one", os.getpid())
FAR = Member("far", "another", 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "LOOKS", 0.05)
    monkeypatch.setattr(roll_call, "ANSWERS", 0.3)


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=20))


@pytest.fixture
def gone() -> Member:
    """A process of this machine that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return Member("here", "one", ended.pid)


def ask(calls: list[RollCall], waited: str = "") -> set[str]:
    """What ranks say that notice a loss at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return set(pool.map(lambda call: call.lost(waited, "socket: no route"), calls))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")
def test_a_process_that_has_ended_is_named_by_all(store: TCPStore, gone: Member) -> None:
    members = [HERE, gone, HERE]
    calls = [RollCall(store, rank, members) for rank in (0, 2)]
    assert ask(calls) == {f"rank 1 (here) died {WHEN}"}


def test_a_machine_that_does_not_answer_is_named(store: TCPStore) -> None:
    members = [HERE, HERE, FAR]
    calls = [RollCall(store, rank, members) for rank in (0, 1)]
    said = f"rank 2 (far) does not answer any more {WHEN} (waited 10 min)"
    assert ask(calls, "10 min") == {said}


def test_if_nobody_is_lost_the_error_itself_is_said(store: TCPStore) -> None:
    """Such as one of NCCL, which finds no network between machines that both live."""
    members = [HERE, FAR]
    calls = [RollCall(store, rank, members) for rank in (0, 1)]
    said = f"the ranks lost each other {WHEN}, but all of them answer (socket: no route)"
    assert ask(calls[:1]) == {said}  # the thread of the other answers
    assert ask(calls[1:]) == {said}


def test_the_error_of_a_rank_is_told_to_the_others(store: TCPStore) -> None:
    members = [HERE, FAR, FAR]
    calls = [RollCall(store, rank, members) for rank in range(3)]
    calls[1].ended("the disk is full")
    said = f"rank 1 (far) ended {WHEN} with the error: the disk is full"
    assert ask([calls[0], calls[2]]) == {said}


@pytest.mark.parametrize("alone", [False, True])
def test_a_process_that_waits_for_a_lost_one_is_ended(
    store: TCPStore,
    alone: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unless it has work of its own, such as the report at the end of a run."""
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    monkeypatch.setattr(roll_call, "LEAVES", 0.1)
    waiting, broken = (RollCall(store, rank, [HERE, FAR]) for rank in (0, 1))
    waiting.alone = alone
    broken.ended("the disk is full")
    waiting._thread.join(10)
    assert ends == ([] if alone else [2])
    assert ("this process waited for it, and is ended" in capsys.readouterr().err) != alone


def test_the_thread_ends_with_its_rank(store: TCPStore) -> None:
    call = RollCall(store, 0, [HERE, FAR])
    call.leave()
    assert not call._thread.is_alive()
