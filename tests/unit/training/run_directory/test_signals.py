"""Asked once, a run ends its update; only a second Ctrl-C stops it at once."""

from __future__ import annotations

import os
import signal

import pytest

from transduce.training.run_directory.signals import SIGNALS, StopSignals


@pytest.mark.parametrize("first", SIGNALS)
def test_asked_twice(first: signal.Signals) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopSignals() as interrupt:
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
        with StopSignals():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system knows no SIGHUP")
def test_what_is_ignored_stays_ignored() -> None:
    """As nohup asks for."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupt.asked
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
