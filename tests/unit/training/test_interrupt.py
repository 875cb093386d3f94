"""Asked once, a run ends its update; asked twice, it stops."""

from __future__ import annotations

import os
import signal

import pytest

from transduce.training.interrupt import SIGNALS, Interrupt


@pytest.mark.parametrize("number", SIGNALS)
def test_once_is_noted_twice_stops(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interrupt() as interrupt:
        os.kill(os.getpid(), number)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system knows no SIGHUP")
def test_what_is_ignored_stays_ignored() -> None:
    """As nohup asks for."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupt.asked
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
