"""Work shared among processes comes back whole, in order, whatever happens to one of them."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.decoding.batch.workers import run_in_workers, shares, worth_forking

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@given(st.lists(st.integers(1, 100), max_size=40), st.integers(1, 5))
def test_everything_is_dealt_once_and_evenly(sizes: list[int], workers: int) -> None:
    dealt = shares(sizes, workers)
    assert sorted(place for places in dealt for place in places) == list(range(len(sizes)))
    loads = [sum(sizes[place] for place in places) for places in dealt]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_few_requests_are_not_worth_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert not worth_forking(63, 2)
    assert worth_forking(64, 2)
    assert not worth_forking(10_000, 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert not worth_forking(10_000, 2)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert not worth_forking(10_000, 2)


def test_each_share_is_done_by_another_process() -> None:
    def work(places: list[int]) -> list[list[int]]:
        return [[place, os.getpid()] for place in places]

    found = run_in_workers([[0, 2], [1, 4], [3]], work)
    assert [[answer[0] for answer in share] for share in found] == [[0, 2], [1, 4], [3]]
    processes = {answer[1] for share in found for answer in share}
    assert len(processes) == 3
    assert found[0][0][1] == os.getpid()


@pytest.mark.parametrize("end", ["killed", "raised", "mid-answer"])
def test_what_a_lost_process_was_to_do_is_done_here(
    end: str, capfd: pytest.CaptureFixture[str]
) -> None:
    here = os.getpid()

    def work(places: list[int]) -> list[int]:
        if os.getpid() != here:
            if end == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if end == "raised":
                raise RuntimeError("in a process of its own")
            os._exit(3)
        return [10 * place for place in places]

    assert run_in_workers([[0], [1, 2]], work) == [[0], [10, 20]]
    assert capfd.readouterr().err == ""


def test_an_error_here_is_an_error() -> None:
    def work(places: list[int]) -> list[int]:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        run_in_workers([[0], [1]], work)
