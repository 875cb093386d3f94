"""Sessions of live recognition: rates, kinds of samples, turns, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from transduce.data.audio.corpus import to_int16
from transduce.data.audio.read import resampled
from transduce.errors import DataError, ModelError
from transduce.tasks.live import LiveRecogniser, LiveSession, Transcript

NOISE = (0.1 * np.random.default_rng(1).standard_normal(4000)).astype(np.float32)


class Echo(LiveRecogniser):
    """Its transcripts are numbers of samples: one step takes what is buffered."""

    rate = 8000

    def session(self, rate: int | None = None, tags: Sequence[str] = ()) -> LiveSession:
        return LiveSession(self, rate or self.rate, tags)

    def is_ready(self, session: LiveSession) -> bool:
        return session.buffered_seconds > 0

    def step(self, sessions: Sequence[LiveSession]) -> list[list[Transcript]]:
        texts = [str(len(session.take())) for session in sessions]
        return [[Transcript(text, True, 0, 0.0, 0.0)] for text in texts]


@pytest.mark.parametrize("step", [1, 37, 4000])
@pytest.mark.parametrize("rate", [8000, 16000, 11025])
def test_samples_are_those_of_the_whole_recording_however_they_are_cut(
    rate: int, step: int
) -> None:
    session = Echo().session(rate)
    for start in range(0, len(NOISE), step):
        session.push(NOISE[start : start + step])
    session.end()
    assert session.seconds == len(NOISE) / rate
    np.testing.assert_array_equal(session.take(), to_int16(resampled(NOISE, rate, 8000)))
    assert session.take().shape == (0,)


def test_integers_and_floats_are_the_same_sound() -> None:
    session = Echo().session()
    taken = []
    for samples in (to_int16(NOISE), to_int16(NOISE).astype(np.int32) << 16, NOISE):
        session.push(samples)
        taken.append(session.take())
    np.testing.assert_array_equal(taken[0], taken[1])
    np.testing.assert_array_equal(taken[0], taken[2])


def test_sessions_advance_together_and_each_has_its_own_transcripts() -> None:
    recogniser = Echo()
    one, two, none = (recogniser.session() for _ in range(3))
    one.push(NOISE[:3])
    two.push(NOISE[:5])
    found = recogniser.advance([one, none, two])
    assert [[one.text for one in of_one] for of_one in found] == [["3"], [], ["5"]]
    assert not one.ready


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        (np.zeros((2, 5), np.int16), "mono"),
        (np.zeros(5, np.uint8), "uint8"),
        (np.array([0.0, np.nan], np.float32), "NaN"),
    ],
)
def test_what_is_no_sound_is_refused_and_the_session_goes_on(samples: Any, why: str) -> None:
    session = Echo().session()
    with pytest.raises(DataError, match=why):
        session.feed(samples)
    assert [one.text for one in session.feed(NOISE[:7])] == ["7"]


@pytest.mark.parametrize("rate", [0, -1, 16000.0, True, 10**9])
def test_impossible_rates_are_refused(rate: Any) -> None:
    with pytest.raises(ModelError, match="sample rate"):
        LiveSession(Echo(), rate)


def test_nothing_can_be_fed_after_the_end() -> None:
    session = Echo().session()
    session.finish()
    with pytest.raises(ModelError, match="finished"):
        session.feed(NOISE)
    with session, pytest.raises(ModelError, match="finished"):
        session.finish()
    with pytest.raises(ModelError, match="closed"):
        session.feed(NOISE)
