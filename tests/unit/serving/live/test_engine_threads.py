"""Two threads that use one model take turns."""

from __future__ import annotations

import threading
import time

from transduce.serving.live.engine import FairLock


def test_who_asks_first_is_first() -> None:
    turns, order = FairLock(), list[int]()

    def use(number: int) -> None:
        with turns:
            order.append(number)

    with turns:
        threads = []
        for number in range(5):
            threads.append(threading.Thread(target=use, args=(number,)))
            threads[-1].start()
            while turns._asked < number + 2:
                time.sleep(0.001)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == list(range(5))


def test_two_threads_that_both_want_it_alternate() -> None:
    """Each keeps it until the other has asked, so the order does not depend on the scheduler."""
    turns, order, rounds = FairLock(), list[int](), 30

    def use(number: int) -> None:
        for _ in range(rounds):
            with turns:
                order.append(number)
                while order.count(1 - number) < rounds and turns._asked < len(order) + 1:
                    time.sleep(0.0001)

    threads = [threading.Thread(target=use, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order in ([0, 1] * rounds, [1, 0] * rounds)
