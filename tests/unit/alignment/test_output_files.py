"""Alignments on disk: tables that train, grids that Praat reads, lines that were not read."""

from __future__ import annotations

import json
from pathlib import Path

from transduce.alignment.align import Aligned, Utterance
from transduce.alignment.output_files import manifest_rows, write_alignment
from transduce.data.audio.intervals import Interval, read_textgrid

WORDS = (Interval(1.0, 1.5, "a"), Interval(1.6, 2.0, "b"))
ALIGNED = Aligned(
    Path("sounds/talk.flac"),
    9.0,
    (
        Utterance(1, "a b", 1.0, 2.0, 0.9, WORDS, WORDS),
        Utterance(2, "not read"),
        Utterance(3, "c", 2.1, 3.0, 0.2),
        Utterance(4, "d", 8.0, 8.98, 0.5),
    ),
)


def test_a_table_to_train_from_has_margins_and_only_what_is_sure() -> None:
    rows = manifest_rows(ALIGNED, Path("out"), min_confidence=0.3)
    assert [row[:4] for row in rows] == [
        ["../sounds/talk.flac", "0.900", "2.050", "a b"],
        ["../sounds/talk.flac", "7.900", "8.990", "d"],
    ]
    assert rows[0][4:] == ["a b", "0.900", "1"]
    assert [row[-1] for row in manifest_rows(ALIGNED, Path("out"), min_confidence=0.0)] == [
        "1",
        "3",
        "4",
    ]


def test_all_files(tmp_path: Path) -> None:
    write_alignment(ALIGNED, tmp_path / "out", 0.3)
    reported = json.loads((tmp_path / "out" / "segments.json").read_text("utf-8"))
    assert [one["read"] for one in reported["utterances"]] == [True, False, True, True]
    assert reported["utterances"][1]["start"] is None
    assert reported["median_confidence"] == 0.35
    assert "the confidence of the lines is low, 0.35 in the median" in reported["warning"]
    grid = read_textgrid(tmp_path / "out" / "talk.TextGrid")
    assert [tier.name for tier in grid.tiers] == ["utterances", "words", "phones"]
    numbers = read_textgrid(tmp_path / "out" / "talk.seg.TextGrid").tier("seg")
    assert numbers is not None
    assert [one.text for one in numbers.intervals if one.text] == ["1", "3", "4"]
