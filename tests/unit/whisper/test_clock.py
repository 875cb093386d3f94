"""What is decoded of a recording, and when that was."""

from __future__ import annotations

import numpy as np
import pytest

from transduce.data.audio.speech_activity import Span
from transduce.whisper.clock import Clock, Part, keep_speech, within

RATE = 100


def test_speech_is_joined_and_found_again() -> None:
    """Each sample that is kept is its own time in the file, which begins before the wave."""
    wave = np.arange(2000, dtype=np.int16)
    speech = [Span(7.0, 8.0), Span(8.9, 10.0), Span(14.0, 15.0), Span(24.8, 25.0)]
    kept, clock = keep_speech(wave, 5.0, RATE, speech)
    wanted = [*range(170, 530), *range(870, 1030), *range(1950, 2000)]
    assert kept.tolist() == wanted
    assert clock.seconds(np.arange(len(kept))) == pytest.approx(5.0 + kept / RATE)
    assert clock.span(0, 360) == pytest.approx((6.7, 10.3))  # its end is of the part before
    assert clock.span(360, 361) == pytest.approx((13.7, 13.71))
    assert clock.span(361, 361) == pytest.approx((13.71, 13.71))


def test_all_of_it() -> None:
    clock = Clock((Part(0, 2.5),), RATE)
    assert clock.span(10, 250) == pytest.approx((2.6, 5.0))


def test_within() -> None:
    spans = [Span(1.0, 2.0), Span(3.0, 4.0)]
    moments = np.array([0.5, 1.0, 1.99, 2.0, 2.5, 3.5, 9.0])
    assert within(moments, spans).tolist() == [False, True, True, False, False, True, False]
    assert not within(moments, []).any()
