"""Subtitles and TextGrids of what was heard."""

from __future__ import annotations

import pytest

from transduce.data.audio.intervals import parse_textgrid
from transduce.decoding.output import Output, TimedWord
from transduce.decoding.speech.subtitles import LETTERS, SECONDS, transcript

WORDS = [
    TimedWord("ab", 0.5, 0.9, 0.9),
    TimedWord("c", 0.85, 1.2, 0.8),  # begins before the one before it ends
    TimedWord("de", 3.0, 3.5, 0.7),
]
STRETCHES = [TimedWord("ab c", 0.25, 1.5, 0.9), TimedWord("de", 2.75, 4.0, 0.7)]
OUTPUT = Output("ab c de", -1.0, words=WORDS, segments=STRETCHES)


def test_a_subtitle_for_each_stretch() -> None:
    srt = transcript(OUTPUT, "srt", 4.0)
    assert srt.startswith("1\n00:00:00,250 --> 00:00:01,500\nab c\n\n2\n00:00:02,750")
    assert transcript(OUTPUT, "vtt", 4.0).startswith(
        "WEBVTT\n\n00:00:00.250 --> 00:00:01.500\nab c"
    )


def test_long_stretches_are_several_subtitles() -> None:
    words = [TimedWord("w" * 9, 0.5 * n, 0.5 * n + 0.4, 1.0) for n in range(40)]
    text = " ".join(word.text for word in words)
    output = Output(text, -1.0, words=words, segments=[TimedWord(text, 0.0, 20.0, 1.0)])
    cues = [cue.split("\n") for cue in transcript(output, "srt", 20.0).strip().split("\n\n")]
    assert " ".join(cue[2] for cue in cues) == text
    assert all(len(cue[2]) <= LETTERS for cue in cues)
    assert len(cues) >= 20 / SECONDS
    alone = Output(text, -1.0, segments=output.segments)  # without times of words
    assert transcript(alone, "srt", 20.0).count("-->") == 1


@pytest.mark.parametrize(("phones", "tier"), [(False, "words"), (True, "phones")])
def test_praat_reads_both_tiers(phones: bool, tier: str) -> None:
    grid = parse_textgrid(transcript(OUTPUT, "textgrid", 4.5, phones), "grid")
    assert (grid.start, grid.end) == (0.0, 4.5)
    assert [one.name for one in grid.tiers] == ["utterances", tier]
    filled = [one for one in grid.tiers[1].intervals if one.text]
    assert [one.text for one in filled] == ["ab", "c", "de"]
    assert filled[1].start == filled[0].end == 0.9


def test_of_silence_there_is_an_empty_grid() -> None:
    grid = parse_textgrid(transcript(Output("", 0.0), "textgrid", 2.0), "grid")
    assert [one.text for tier in grid.tiers for one in tier.intervals] == [""]
    assert transcript(Output("", 0.0), "srt", 2.0) == ""
