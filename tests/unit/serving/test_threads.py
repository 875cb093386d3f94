"""Work off the event loop: its result, its deadline, and clients that go away."""

from __future__ import annotations

import asyncio
import threading

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

from served import until
from transduce.serving.errors import Timeout
from transduce.serving.threads import NotWantedError, Threads, check_wanted


def test_results_and_errors_come_back() -> None:
    threads = Threads(100.0, maximum=2)

    async def use() -> None:
        assert await threads.run(lambda a, b: a + b, 1, 2) == 3
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 / 0)
        assert await asyncio.gather(*(threads.run(abs, -n) for n in range(9))) == list(range(9))

    asyncio.run(use())
    assert len(threads._threads) == 2
    own = list(threads._threads)
    threads.stop()
    until(lambda: not any(one.is_alive() for one in own), "the threads end")


def test_what_takes_too_long_is_given_up_and_told_so() -> None:
    threads, ended = Threads(0.05, maximum=1), threading.Event()

    def endless() -> None:
        try:
            while True:
                check_wanted()
        except NotWantedError:
            ended.set()
            raise

    async def use() -> None:
        with pytest.raises(Timeout, match=r"not done within 0\.05 s"):
            await threads.run(endless)

    asyncio.run(use())
    until(ended.is_set, "the work stops")
    threads.stop()


def test_nothing_is_begun_for_a_client_that_has_gone() -> None:
    threads, begun, free = Threads(100.0, maximum=1), [], threading.Event()

    async def use() -> None:
        first = asyncio.create_task(threads.run(free.wait, 100))
        second = asyncio.create_task(threads.run(begun.append, 1))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        free.set()
        await first
        await threads.run(begun.append, 2)

    asyncio.run(use())
    assert begun == [2]
    threads.stop()
