"""Where an output is cut, and where the next window begins."""

from __future__ import annotations

import pytest

from transduce.data.tokens.whisper_prompt import PromptTokens
from transduce.whisper.windows import split_at_times

TOKENS = PromptTokens(
    languages={"en": 20, "de": 21},
    tasks={"transcribe": 22, "translate": 23},
    no_timestamps=25,
    previous=24,
    no_speech=None,
    first_timestamp=30,
    first_special=20,
    vocabulary=1531,
)


def at(seconds: float) -> int:
    return 30 + round(seconds / 0.02)


@pytest.mark.parametrize(
    ("ids", "wanted", "done"),
    [
        # One segment that ends with a timestamp: the window is done.
        ([at(0), 5, 6, at(4)], [(0.0, 4.0, [5, 6])], 30.0),
        # Two closed segments, and nothing after: the same.
        ([at(0), 5, at(4), at(5), 6, at(7)], [(0.0, 4.0, [5]), (5.0, 7.0, [6])], 30.0),
        # A third that was cut off: it is transcribed again, from its beginning.
        ([at(0), 5, at(4), at(5), 6, at(7), at(7), 8], [(0.0, 4.0, [5]), (5.0, 7.0, [6])], 7.0),
        # The same where only its beginning was predicted.
        ([at(0), 5, at(4), at(4)], [(0.0, 4.0, [5])], 4.0),
        # No end: the text is of the whole window.
        ([at(1), 5, 6], [(1.0, 30.0, [5, 6])], 30.0),
        ([at(0), at(0)], [], 30.0),
        ([], [], 30.0),
    ],
)
def test_segments_and_the_next_window(
    ids: list[int], wanted: list[tuple[float, float, list[int]]], done: float
) -> None:
    found = split_at_times(ids, TOKENS, 30.0)
    assert [(one.start, one.end, one.ids) for one in found.segments] == [
        (pytest.approx(a), pytest.approx(b), text) for a, b, text in wanted
    ]
    assert found.done == pytest.approx(done)


def test_times_beyond_a_short_window_are_cut() -> None:
    found = split_at_times([at(0), 5, at(4)], TOKENS, 2.5)
    assert [(one.start, one.end) for one in found.segments] == [(0.0, 2.5)]
