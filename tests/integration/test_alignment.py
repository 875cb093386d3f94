"""Long recordings of tones, aligned by a model that was trained here: the truth is known."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import jiwer
import numpy as np
import pytest
import soundfile

from lives import Command
from recordings import corpus
from tones import PAUSE, RATE, tones
from transduce.alignment.align import read_text
from transduce.alignment.show import alignment_from_textgrid
from transduce.data.audio.intervals import numbered_lines, read_textgrid
from transduce.data.text.pairs import read_pairs
from transduce.errors import DataError
from transduce.recipe import Recordings

NEAR = 0.1
SILENT = {3, 11, 12}  # lines that nobody reads
STRANGE = {7, 15}  # before which something else is heard


@pytest.fixture(scope="module")
def place(tones_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a long recording and its text."""
    folder = tmp_path_factory.mktemp("tones") / "tones"
    shutil.copytree(tones_run, folder)
    return folder


def reading(folder: Path) -> list[tuple[float, float] | None]:
    """Writes talk.flac and talk.txt; where each line is read."""
    draw = random.Random(5)
    words = ["ab", "cde", "eda", "bb", "dc", "ace", "bed", "dad", "cab", "e"]
    texts = [" ".join(draw.sample(words, 3)) for _ in range(20)]
    pieces, truth, at = [], [], 0.0
    for number, text in enumerate(texts):
        quiet = draw.uniform(0.3, 0.9)
        parts = [0.003 * np.random.default_rng(number).standard_normal(round(quiet * RATE))]
        if number in STRANGE:
            parts.append(tones("aa dd aa", number))
        before = sum(map(len, parts)) / RATE
        span = None
        if number not in SILENT:
            parts.append(tones(text, number))
            # What is said begins and ends with a pause, and tones fade in and out.
            span = (at + before + PAUSE, at + before + len(parts[-1]) / RATE - PAUSE - 0.03)
        truth.append(span)
        pieces += parts
        at += sum(map(len, parts)) / RATE
    audio = np.concatenate([*pieces, np.zeros(RATE // 2)]).astype(np.float32)
    soundfile.write(folder / "talk.flac", audio, RATE)
    (folder / "talk.txt").write_text("\n".join(texts) + "\n", "utf-8")
    return truth


@pytest.mark.slow
def test_lines_are_found_and_written(command: Command, place: Path) -> None:
    truth = reading(place)
    done = command(
        "align",
        place / "talk.flac",
        place / "talk.txt",
        "--model",
        place / "run",
        "--min-confidence",
        "0",
    )
    assert done.returncode == 0, done.stderr
    assert "17 lines read" in done.stdout
    assert "not read: line 4, 12, 13" in done.stdout
    assert "without text: " in done.stdout  # before two of the lines
    assert "warning" not in done.stderr
    reported = json.loads((place / "talk" / "segments.json").read_text("utf-8"))["utterances"]
    errors = []
    for one, span in zip(reported, truth, strict=True):
        assert one["read"] == (span is not None), one
        if span is not None:
            errors += [abs(one["start"] - span[0]), abs(one["end"] - span[1])]
            assert [word["text"] for word in one["words"]] == one["text"].split()
            assert one["words"][0]["start"] == one["start"]
            assert one["words"][-1]["end"] == one["end"]
            assert 0.1 < one["confidence"] <= 1
        else:
            assert (one["start"], one["confidence"]) == (None, 0.0)
    assert np.mean(np.array(errors) <= NEAR) >= 0.95, errors
    texts = read_text(place / "talk.txt")
    numbers = read_textgrid(place / "talk" / "talk.seg.TextGrid")
    there = [one for _, one in numbered_lines(numbers, texts, "talk")]
    assert [one.text for one in there] == [t for t, s in zip(texts, truth, strict=True) if s]
    grid = read_textgrid(place / "talk" / "talk.TextGrid")
    assert [tier.name for tier in grid.tiers] == ["utterances", "words"]
    manifest = Recordings(
        file=str(place / "talk" / "manifest.tsv"), audio="audio", start="start", end="end"
    )
    pairs = list(read_pairs(manifest, None))
    assert [pair.target for pair in pairs] == [one.text for one in there]
    # What was cut out says what it should; the model knows shorter lines, so not to the letter.
    asked = ("--ctc-weight", "0.8", *(pair.source for pair in pairs))
    reported_by_file = command("run", place / "run", *asked).stdout
    names, heard = zip(*(line.split("\t") for line in reported_by_file.splitlines()), strict=True)
    assert list(names) == [pair.source for pair in pairs]
    heard = list(heard)
    assert jiwer.cer([pair.target for pair in pairs], heard) < 0.15


@pytest.mark.slow
def test_what_a_person_has_marked(command: Command, place: Path) -> None:
    reading(place)
    (place / "two.txt").write_text("a_1\tcab\na_2\tdad\na_3\tbed\n", "utf-8")
    grid = """File type = "ooTextFile"
Object class = "TextGrid"
0 9 <exists> 1 "IntervalTier" "seg" 0 9 4 0 1 "" 1 2.5 "2" 2.5 3 "" 3 4 "1"
"""
    (place / "two.TextGrid").write_text(grid, "utf-8")
    named = ("align", place / "talk.flac", place / "two.txt")
    done = command(*named, "--textgrid", place / "two.TextGrid", "--output", place / "out")
    assert done.returncode == 0, done.stderr
    assert "2 lines read" in done.stdout
    rows = (place / "out" / "segments.tsv").read_text("utf-8").splitlines()
    assert rows[1:] == [
        "2\t1.000\t2.500\t1.000\tyes\tdad",
        "1\t3.000\t4.000\t1.000\tyes\tcab",
        "3\t\t\t0.000\tno\tbed",
    ]
    corrected = place / "out" / "talk.TextGrid"
    corrected.write_text("corrected by hand")
    for more in ((), ("--overwrite",)):
        asked = ("--textgrid", place / "two.TextGrid", "--output", place / "out", *more)
        done = command(*named, *asked)
        assert done.returncode == (0 if more else 2), done.stderr
        assert ("would be replaced" in done.stderr) != bool(more)
        assert (corrected.read_text("utf-8") == "corrected by hand") != bool(more)
    done = command(*named)
    assert done.returncode == 2
    assert "name a --model that aligns, or --textgrid FILE" in done.stderr


def test_grids_of_the_public_project_can_be_read(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(corpus("udhr_uiuc") / "udhr_uiuc.tar.xz") as archive:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4
        archive.extractall(tmp_path, **safe)
    soundfile.write(tmp_path / "long.flac", np.zeros(1000 * 1500, np.float32), 1000)
    with pytest.raises(DataError, match="cannot be read"):
        alignment_from_textgrid(tmp_path / "long.flac", ["one"], tmp_path / "nothing")
    grids = sorted(tmp_path.rglob("*.TextGrid"))
    assert len(grids) == 19
    for path in grids:
        texts = read_text(next(tmp_path.rglob(f"text/{path.stem}.txt")))
        assert len(numbered_lines(read_textgrid(path), texts, path.name)) > 20
