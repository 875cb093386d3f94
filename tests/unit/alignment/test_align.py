"""Which lines count as read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from transduce.alignment import align
from transduce.alignment.align import Line, Utterance, _Clock
from transduce.data.audio.silence import HOP
from transduce.nn.ctc.alignment import Alignment

FRAMES = 60


def clock(confidences: list[float], scores: dict[int, float]) -> _Clock:
    """Of a line whose tokens are ten frames apart; frames without a score are surely blank."""
    first_U = torch.arange(len(confidences)) * 10
    scores_S = torch.zeros(FRAMES)
    for frame, score in scores.items():
        scores_S[frame] = score
    reported = Alignment(first_U, first_U, torch.tensor(confidences), scores_S)
    front = SimpleNamespace(seconds_of=lambda state: 0.04 * state)
    model: Any = SimpleNamespace(network=SimpleNamespace(front=front))
    return _Clock(model, reported, np.ones(240, dtype=np.bool_), 2.4)


def read(some: _Clock, count: int) -> tuple[bool, float]:
    [one] = some.utterances([Line("abc", tuple(range(4, 4 + count)), (), ())], [0, count])
    return one.read, one.confidence


def test_a_line_that_was_heard() -> None:
    heard, confidence = read(clock([0.9, 0.8, 0.7], {0: -0.1, 10: -0.2, 20: -0.4}), 3)
    assert heard
    assert confidence == pytest.approx(np.exp(-0.7 / 21), rel=1e-4)


def test_what_was_not_confirmed_lowers_the_confidence() -> None:
    """One surely heard token of a line of which the model can spell no more is no whole line."""
    some = clock([1.0, 1.0], {})
    words = (("a", 0, 1), ("bc", 1, 2))
    lines = [Line("a bc d e", (4, 5), words, (), ("d", "e"))]
    [one] = some.utterances(lines, [0, 2])
    assert one.confidence == pytest.approx(0.5)
    some.path.first_U[1] = some.path.last_U[1] = -1
    [one] = some.utterances(lines, [0, 2])
    assert one.confidence == pytest.approx(0.25)
    alone = Line("a phone a day keeps ten doctors off far away", (4,), words[:1], (), ("x",) * 11)
    [one] = clock([1.0], {}).utterances([alone], [0, 1])
    assert (one.read, one.confidence) == (False, 0.0)


def test_a_line_that_lies_about_a_pause_was_not_read() -> None:
    """The frames between its tokens are sure, of nothing; the tokens were not heard."""
    some = clock([0.8, 0.001, 0.001], {0: -0.2, 10: -6.9, 20: -6.9})
    assert np.exp(some.path.segment_confidence(0, 3)) > 0.4
    assert read(some, 3) == (False, 0.0)


def test_a_line_of_which_nothing_was_heard() -> None:
    some = clock([0.5, 0.5], {})
    some.path.first_U[:] = -1
    assert read(some, 2) == (False, 0.0)


def test_sound_that_no_line_has() -> None:
    """Loud from 1 to 3 s (a line), from 5 to 6.5, with a breath, and for a moment at 9 s."""
    loud = np.zeros(round(12 / HOP), dtype=bool)
    for start, end in ((1.0, 3.0), (5.0, 5.6), (5.9, 6.5), (9.0, 9.1)):
        loud[round(start / HOP) : round(end / HOP)] = True
    read, not_read = Utterance(1, "we", 1.1, 2.9, 0.8), Utterance(2, "we", 5.0, 6.5, 0.05)
    assert list(align._untold(loud, [read, not_read])) == [(5.0, 6.5)]
    assert list(align._untold(loud, [])) == [(1.0, 3.0), (5.0, 6.5)]
    assert list(align._untold(np.ones_like(loud), [])) == [(0.0, 12.0)]
