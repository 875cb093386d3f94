"""Asked once, a run ends its update; only a second Ctrl-C stops it at once."""

from __future__ import annotations

import signal

import pytest

from transduce.training.interrupt import Interrupt


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_asked_twice(first: signal.Signals) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupt() as interrupt:
        assert not interrupt.asked
        signal.raise_signal(first)
        assert interrupt.asked
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_who_listens_by_now_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with Interrupt():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
