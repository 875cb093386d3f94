"""Subtitles are read back by a reader written from the formats' descriptions."""

from __future__ import annotations

import html
import re

from hypothesis import given
from hypothesis import strategies as st

from transduce.data.audio.intervals import Interval, format_srt, format_vtt

TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\n\r<>&-> "))
INTERVALS = st.lists(
    st.builds(
        lambda start, length, text: Interval(start / 1000, (start + length) / 1000, text),
        st.integers(0, 400_000_000),
        st.integers(1, 100_000),
        TEXTS,
    ),
    max_size=6,
)
TIMES = r"(\d{2,}):([0-5]\d):([0-5]\d)[,.](\d{3})"


def read_cues(blocks: list[str]) -> list[tuple[int, int, str]]:
    cues = []
    for block in blocks:
        first, *lines = block.split("\n")
        match = re.fullmatch(rf"{TIMES} --> {TIMES}", first)
        assert match, first
        numbers = [int(part) for part in match.groups()]
        start, end = (
            ((h * 60 + m) * 60 + s) * 1000 + t for h, m, s, t in (numbers[:4], numbers[4:])
        )
        assert lines
        assert all("-->" not in line for line in lines)
        cues.append((start, end, "\n".join(lines)))
    return cues


def expected(intervals: list[Interval]) -> list[tuple[int, int, str]]:
    cues = []
    for interval in sorted(intervals, key=lambda interval: (interval.start, interval.end)):
        text = interval.text.replace("\0", "\ufffd")
        lines = [line.strip() for line in re.split("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", text)]
        text = "\n".join(line for line in lines if line)
        if text:
            cues.append((round(interval.start * 1000), round(interval.end * 1000), text))
    return cues


def blocks(text: str) -> list[str]:
    return [block.strip("\n") for block in text.split("\n\n") if block.strip("\n")]


@given(INTERVALS)
def test_srt_is_read_back(intervals: list[Interval]) -> None:
    found = blocks(format_srt(intervals))
    numbers = [block.partition("\n")[0] for block in found]
    assert numbers == [str(number) for number in range(1, len(found) + 1)]
    wanted = [(a, b, text.replace("-->", "→")) for a, b, text in expected(intervals)]
    assert read_cues([block.partition("\n")[2] for block in found]) == wanted


@given(INTERVALS)
def test_vtt_is_read_back(intervals: list[Interval]) -> None:
    header, *found = blocks(format_vtt(intervals))
    assert header == "WEBVTT"
    cues = [(a, b, html.unescape(text)) for a, b, text in read_cues(found)]
    assert all("<" not in text for _, _, text in read_cues(found))
    assert cues == expected(intervals)


def test_they_look_as_players_want_them() -> None:
    cues = [
        Interval(3_661.5, 3_662.0004, "Fish & <chips>\n\n--> now"),
        Interval(0.0, 1.2346, "Hello."),
        Interval(2.0, 2.0, "A blink."),
        Interval(5.0, 6.0, " \n "),
    ]
    assert format_srt(cues) == (
        "1\n00:00:00,000 --> 00:00:01,235\nHello.\n\n"
        "2\n00:00:02,000 --> 00:00:02,001\nA blink.\n\n"
        "3\n01:01:01,500 --> 01:01:02,000\nFish & <chips>\n→ now\n"
    )
    assert format_vtt(cues) == (
        "WEBVTT\n\n"
        "00:00:00.000 --> 00:00:01.235\nHello.\n\n"
        "00:00:02.000 --> 00:00:02.001\nA blink.\n\n"
        "01:01:01.500 --> 01:01:02.000\nFish &amp; &lt;chips&gt;\n--&gt; now\n"
    )
    assert format_srt([]) == ""
    assert format_vtt([]) == "WEBVTT\n"
