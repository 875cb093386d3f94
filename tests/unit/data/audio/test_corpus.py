"""Corpora of audio: manifests, samples in the cache, batches; what cannot be used is skipped."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from one_by_one import one_by_one
from tones import RATE, tones
from transduce.data.audio import ffmpeg
from transduce.data.audio.corpus import AudioCorpus, encode_recordings, to_int16
from transduce.data.audio.read import parse_place, place_of, read_audio
from transduce.data.batches.batch import collate
from transduce.data.batches.bucketing import Batches, ordered
from transduce.data.cache.tokenised import Report
from transduce.data.text.pairs import ReadingCounts, audio_of, check_kind, read_pairs
from transduce.data.tokens.sides import train_tokens
from transduce.errors import DataError, MissingPackageError, RecipeError
from transduce.evaluation.items import items_of
from transduce.recipe import Mixture, Named, Recipe, Recordings, parse_recipe

RECIPE = """
data:
  train: {file: train.tsv, audio: path}
  valid: {file: train.tsv, audio: path}
  tokens: {both: {level: character}}
  max_length: 300
audio: {sample_rate: 4000, mel_bands: 16}
"""


def recipe_in(folder: Path, *overrides: str) -> Recipe:
    return parse_recipe(RECIPE, "recipe", folder, overrides)


def encoded(folder: Path, *overrides: str) -> tuple[AudioCorpus, Report]:
    recipe = recipe_in(folder, *overrides)
    assert recipe.audio is not None
    tokens = train_tokens(recipe.data)
    cache = folder / "cache"
    return encode_recordings(recipe.data.train, recipe.data, recipe.audio, *tokens, cache)


def write(folder: Path, rows: dict[str, str], header: str = "path\ttext") -> None:
    lines = [header, *(f"{name}\t{text}" for name, text in rows.items())]
    (folder / "train.tsv").write_text("\n".join(lines) + "\n", "utf-8")


@pytest.fixture
def three(tmp_path: Path) -> Path:
    (tmp_path / "sounds").mkdir()
    texts = {"sounds/a.wav": "abc", "sounds/b.flac": "de a", "sounds/c.wav": "b"}
    for name, text in texts.items():
        soundfile.write(tmp_path / name, tones(text), RATE)
    write(tmp_path, texts)
    return tmp_path


# ----------------------------------------------------------------------------------- manifests


def test_tags_of_recordings(three: Path) -> None:
    """By a word for all, by a column, and by corpora that take turns; samples stay the same."""
    named = "data.train={file: train.tsv, audio: path, tag: x}"
    column = "data.train={file: train.tsv, audio: path, tags: text}"
    mixed = "data.train=[{file: train.tsv, audio: path, tag: y}, {file: train.tsv, audio: path}]"
    plain, _ = encoded(three)
    assert plain.tags is None
    all_have, _ = encoded(three, named)
    assert all_have.tags is not None
    assert all_have.tags.tolist() == [[1]] * 3
    assert np.array_equal(all_have.source_ids, plain.source_ids)
    own, _ = encoded(three, column)
    assert own.tags is not None  # the tags are abc; de and a; b
    assert own.tags.tolist() == [[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]]
    turns, _ = encoded(three, mixed)
    assert turns.tags is not None
    assert turns.tags.tolist() == [[1], [0]] * 3
    assert np.array_equal(turns.wave(2), turns.wave(3))
    batch = next(ordered(own, 10_000))
    assert batch.tags_BG is not None
    assert batch.tags_BG.tolist() == own.tags[batch.rows].tolist()
    assert batch.twice().tags_BG.tolist() == 2 * batch.tags_BG.tolist()  # type: ignore[union-attr]
    assert batch.part(slice(1, 2)).tags_BG.tolist() == batch.tags_BG[1:2].tolist()  # type: ignore[union-attr]


def test_a_recording_without_a_file_is_no_source_for_its_tag(three: Path) -> None:
    (three / "train.tsv").write_text("path\ttext\tlanguage\n\tabc\tx\nsounds/a.wav\tde\tx\n")
    counts = ReadingCounts()
    corpus = Recordings(file="train.tsv", audio="path", tags="language")
    (pair,) = read_pairs(corpus, str(three), counts)
    assert (pair.tags, counts.empty_source) == (("x",), 1)


def test_sound_and_text_do_not_mix(three: Path) -> None:
    of = [Named(name="spoken-digits", split="train"), Named(name="imdb", split="train")]
    with pytest.raises(DataError, match="mixes audio and text"):
        audio_of(Mixture(of=of))


def test_names_start_at_the_manifest(three: Path) -> None:
    pairs = list(read_pairs(Recordings(file="train.tsv", audio="path", group="text"), str(three)))
    assert [item.group for item in items_of(pairs, False)] == [pair.target for pair in pairs]
    pairs = list(read_pairs(Recordings(file="train.tsv", audio="path"), str(three)))
    assert {item.group for item in items_of(pairs, False)} == {""}
    assert [pair.source for pair in pairs][1] == str(three / "sounds" / "b.flac")
    assert (
        [pair.target for pair in pairs]
        == [pair.transcript for pair in pairs]
        == ["abc", "de a", "b"]
    )
    assert pairs[0].line == 2


def test_json_lines_with_seconds_and_a_translation(three: Path) -> None:
    row = {"audio": "a.wav", "from": 0.25, "to": 1, "fr": "un", "mb": "abc"}
    (three / "sounds" / "list.jsonl").write_text(json.dumps(row) + "\n")
    corpus = Recordings(
        file="sounds/list.jsonl",
        audio="audio",
        target="fr",
        transcript="mb",
        start="from",
        end="to",
    )
    (pair,) = read_pairs(corpus, str(three))
    assert pair.source == f"{three / 'sounds' / 'a.wav'}#t=0.25,1"
    assert (pair.target, pair.transcript) == ("un", "abc")
    (three / "sounds" / "list.jsonl").write_text(json.dumps({**row, "from": True}) + "\n")
    with pytest.raises(DataError, match=r"list\.jsonl:1: the value of from is true, not text"):
        list(read_pairs(corpus, str(three)))


@pytest.mark.parametrize("seconds", ["soon", "-1", "nan", "inf", ""])
def test_what_is_no_time_is_reported(three: Path, seconds: str) -> None:
    (three / "train.tsv").write_text(f"path\ttext\tstart\nsounds/a.wav\tabc\t{seconds}\n")
    corpus = Recordings(file="train.tsv", audio="path", start="start")
    with pytest.raises(DataError, match=r"train\.tsv:2: .* is not a number of seconds"):
        list(read_pairs(corpus, str(three)))


@given(st.floats(0, 1e5), st.floats(0, 1e5) | st.none())
def test_places_come_back(start: float, end: float | None) -> None:
    file, again, stop = parse_place(place_of(Path("a b#c.wav"), start, end))
    assert file == Path("a b#c.wav")
    assert again == pytest.approx(start, abs=1e-6)
    assert (stop is None) == (end is None)
    assert stop is None or stop == pytest.approx(end, abs=1e-6)


def test_a_plain_name_is_a_whole_file() -> None:
    assert parse_place("x#t=.wav") == (Path("x#t=.wav"), 0.0, None)
    assert parse_place("x.wav") == (Path("x.wav"), 0.0, None)


def test_two_texts_need_two_vocabularies(three: Path) -> None:
    (three / "train.tsv").write_text("path\ttext\tsaid\nsounds/a.wav\tx\tabc\n")
    said = "data.train={file: train.tsv, audio: path, transcript: said}"
    recipe = recipe_in(three, said)
    with pytest.raises(DataError, match="give each its tokens"):
        check_kind(recipe.data.train, recipe)
    apart = "data.tokens={source: {level: character}, target: {level: character}}"
    recipe = recipe_in(three, said, apart)
    check_kind(recipe.data.train, recipe)
    source, target = train_tokens(recipe.data)
    assert (len(source), len(target)) == (7, 5)


def test_a_recipe_of_text_takes_no_sound(three: Path) -> None:
    with pytest.raises(RecipeError, match=r"data\.valid does not match the other corpora"):
        recipe_in(three, "data.valid={file: train.tsv}")


# ------------------------------------------------------------------------------------- samples


def test_samples_are_those_of_the_files(three: Path) -> None:
    corpus, report = encoded(three)
    assert report.sentences() == []
    for row, name in enumerate(("sounds/a.wav", "sounds/b.flac", "sounds/c.wav")):
        whole = to_int16(read_audio(three / name, RATE).samples)
        np.testing.assert_array_equal(corpus.source(row), whole)
    frames, targets = corpus.lengths
    assert targets.tolist() == [3, 4, 1]
    assert frames.tolist() == [-(-len(corpus.source(row)) // 40) for row in range(3)]
    assert isinstance(corpus.source_ids, np.memmap)


def test_a_part_of_a_file_and_another_rate(three: Path) -> None:
    (three / "train.tsv").write_text("path\ttext\tstart\tend\nsounds/a.wav\tabc\t0.1\t0.4\n")
    corpus, _ = encoded(
        three,
        "data.train={file: train.tsv, audio: path, start: start, end: end}",
        "audio.sample_rate=8000",
    )
    part = read_audio(three / "sounds" / "a.wav", 8000, 0.1, 0.4).samples
    np.testing.assert_array_equal(corpus.source(0), to_int16(part))


def test_the_cache_is_used_until_a_file_changes(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = encoded(three)
    with monkeypatch.context() as patch:
        patch.setattr(
            "transduce.data.audio.corpus.read_audio", lambda *_: pytest.fail("read again")
        )
        again, _ = encoded(three)
    np.testing.assert_array_equal(again.source_ids, first.source_ids)
    soundfile.write(three / "sounds" / "a.wav", tones("eee"), RATE)
    os.utime(three / "sounds" / "a.wav", (1, 1))
    changed, _ = encoded(three)
    assert changed.source(0).tolist() != first.source(0).tolist()


def test_a_missing_package_is_said_once_and_not_cached(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "soundfile", None)
        with pytest.raises(MissingPackageError, match=r"soundfile.*pip install '\.\[speech\]'$"):
            encoded(three)
    corpus, report = encoded(three)  # as after pip install
    assert len(corpus) == 3
    assert report.sentences() == []


@pytest.mark.filterwarnings("ignore::transduce.errors.TransduceWarning")
def test_recordings_are_read_again_when_ffmpeg_has_been_installed(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (three / "sounds" / "b.flac").write_bytes(b"\0\0\0\x20ftypM4A " + bytes(range(200)))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(ffmpeg, "PROGRAM", str(three / "ffmpeg"))
    corpus, report = encoded(three)
    assert len(corpus) == 2
    assert "install ffmpeg" in report.sentences()[0]
    write_program(
        three / "ffmpeg", f'for OUT; do :; done\ncp {three}/sounds/a.wav "${{OUT#file:}}"'
    )
    corpus, _ = encoded(three)
    np.testing.assert_array_equal(corpus.source(1), corpus.source(0))


def write_program(path: Path, lines: str) -> None:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def test_another_max_length_reads_no_sound_again(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer recordings lie between those that are used, and are not counted among them."""
    whole, _ = encoded(three)
    frames = whole.lengths[0].tolist()
    assert frames[1] > max(frames[0], frames[2])
    with monkeypatch.context() as patch:
        patch.setattr(
            "transduce.data.audio.corpus.read_audio", lambda *_: pytest.fail("read again")
        )
        short, report = encoded(three, f"data.max_length={frames[1] - 1}")
        all_again, _ = encoded(three, f"data.max_length={frames[1]}")
    assert (short.numbers.tolist(), short.lines.tolist()) == ([0, 2], [2, 4])
    assert report.overlong == 1
    assert short.lengths[0].tolist() == [frames[0], frames[2]]
    for row, number in enumerate((0, 2)):
        np.testing.assert_array_equal(short.source(row), whole.source(number))
        np.testing.assert_array_equal(short.wave(row), whole.wave(number))
    waves, sizes = short.waves(np.array([1, 0]))
    assert sizes.tolist() == [len(whole.wave(2)), len(whole.wave(0))]
    for wave, size, number in zip(waves, sizes, (2, 0), strict=True):
        np.testing.assert_array_equal(wave[:size], whole.wave(number))
        assert not wave[size:].any()
    assert len(all_again) == 3
    assert len(list((three / "cache").glob("*.samples"))) == 1


def test_a_clipped_recording_that_is_too_long_is_not_reported(three: Path) -> None:
    soundfile.write(three / "sounds" / "b.flac", np.clip(20 * tones("de a"), -1, 1), RATE)
    frames = encoded(three)[0].lengths[0].tolist()
    _, report = encoded(three, f"data.max_length={frames[1] - 1}")
    assert len(report.sentences()) == 1
    assert "longer than" in report.sentences()[0]


def test_a_cache_that_was_cut_short_is_made_anew(three: Path) -> None:
    first, _ = encoded(three)
    kept = first.source_ids.tolist()
    (samples,) = (three / "cache").glob("*.samples")
    os.truncate(samples, 100)
    again, _ = encoded(three)
    assert again.source_ids.tolist() == kept


def test_what_cannot_be_heard_is_skipped_and_reported(three: Path) -> None:
    sounds = three / "sounds"
    soundfile.write(sounds / "silent.wav", np.zeros(RATE), RATE)
    soundfile.write(sounds / "short.wav", tones("a")[:40], RATE)
    soundfile.write(sounds / "long.wav", np.tile(tones("abc"), 9), RATE)
    (sounds / "text.wav").write_text("this is no audio")
    whole = (sounds / "a.wav").read_bytes()
    (sounds / "cut.wav").write_bytes(whole[: len(whole) // 2])
    # The rate of a WAV file stands in bytes 24 to 27.
    (sounds / "rate.wav").write_bytes(whole[:24] + (5).to_bytes(4, "little") + whole[28:])
    odd = ["silent", "short", "long", "text", "cut", "rate", "missing"]
    write(three, {"sounds/a.wav": "abc"} | {f"sounds/{name}.wav": "a" for name in odd})
    corpus, report = encoded(three)
    assert corpus.lines.tolist() == [2]
    assert corpus.numbers.tolist() == [0]
    assert report.overlong == 1
    assert report.unreadable == 6
    reported = " ".join(report.sentences())
    assert "6 pairs whose audio cannot be used skipped" in reported
    assert "1 pair longer than 300 frames skipped, and with them 25% of the text" in reported
    for said in ("is silent", "10 ms", "is not audio", "truncated", "5 Hz"):
        assert said in reported


def test_hours_of_sound_are_not_read_to_be_thrown_away(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile.write(three / "sounds" / "b.flac", np.zeros(RATE * 3600), RATE)
    read: list[str] = []

    def note(path: Path, *others: float) -> object:
        read.append(Path(path).name)
        return read_audio(path, *others)  # type: ignore[arg-type]

    monkeypatch.setattr("transduce.data.audio.corpus.read_audio", note)
    _, report = encoded(three)
    assert sorted(read) == ["a.wav", "c.wav"]
    assert report.overlong == 1


def test_long_texts_are_skipped_as_long_sounds_are(three: Path) -> None:
    long = "a" * 301
    write(three, {"sounds/a.wav": "abc", "sounds/b.flac": long, "sounds/c.wav": "b"})
    corpus, report = encoded(three)
    assert corpus.numbers.tolist() == [0, 2]
    assert report.sentences() == [
        "1 pair longer than 300 frames skipped, and with them 99% of the text, which a higher "
        "data.max_length keeps (train.tsv:3)"
    ]
    little = replace(report, target_tokens=20 * report.overlong_tokens)
    assert little.sentences() == ["1 pair longer than 300 frames skipped (train.tsv:3)"]
    np.testing.assert_array_equal(
        corpus.wave(1), to_int16(read_audio(three / "sounds" / "c.wav", RATE).samples)
    )


def test_a_manifest_that_points_nowhere(tmp_path: Path) -> None:
    write(tmp_path, {"gone.wav": "abc", "lost.wav": "de"})
    with pytest.raises(
        DataError, match=r"no pair of train\.tsv is left to use: 2 pairs whose audio"
    ):
        encoded(tmp_path)


def test_clipped_recordings_are_kept_and_reported(three: Path) -> None:
    loud = np.clip(20 * tones("abc"), -1, 1)
    soundfile.write(three / "sounds" / "a.wav", loud, RATE)
    corpus, report = encoded(three)
    assert len(corpus) == 3
    assert "1 pair with a recording that is clipped or too loud" in report.sentences()[-1]


def test_letters_that_nobody_learnt_are_counted(three: Path) -> None:
    recipe = recipe_in(three)
    tokens = train_tokens(recipe.data)
    write(three, {"sounds/a.wav": "абв"})
    assert recipe.audio is not None
    _, report = encode_recordings(
        recipe.data.valid, recipe.data, recipe.audio, *tokens, three / "cache"
    )
    assert "3 target tokens are unknown (100.00% of them)" in report.sentences()[-1]


# ------------------------------------------------------------------------------------- batches


def test_batches_hold_samples_and_what_is_said(three: Path) -> None:
    corpus, _ = encoded(three)
    batch, _ = next(one_by_one(Batches(corpus, 10_000)))
    assert batch.source_BS.dtype == torch.int16
    assert batch.transcript_BT is not None
    for row, number in enumerate(batch.rows):
        length = int(batch.source_lengths_B[row])
        assert batch.source_BS[row, :length].tolist() == corpus.source(number).tolist()
        assert not batch.source_BS[row, length:].any()
        said = corpus.transcript_ids[
            corpus.transcript_offsets[number] : corpus.transcript_offsets[number + 1]
        ]
        assert batch.transcript_BT[row, : len(said)].tolist() == said.tolist()
        assert not batch.transcript_BT[row, len(said) :].any()
        assert batch.transcript_lengths_B is not None
        assert int(batch.transcript_lengths_B[row]) == len(said)
    half = batch.part(slice(1, 2))
    assert half.source_BS.shape == (1, int(batch.source_lengths_B[1]))
    assert half.transcript_BT is not None
    assert half.transcript_BT.tolist() == batch.transcript_BT[1:2].tolist()
    assert half.transcript_lengths_B is not None
    assert half.transcript_lengths_B.tolist() == batch.transcript_lengths_B[1:2].tolist()
    twice = batch.twice().transcript_lengths_B
    assert twice is not None
    assert twice.tolist() == 2 * batch.transcript_lengths_B.tolist()


def test_a_batch_is_as_large_as_its_frames(three: Path) -> None:
    corpus, _ = encoded(three)
    frames = corpus.lengths[0] + 1
    budget = int(frames.max() + frames.min())
    for batch, _ in zip(one_by_one(Batches(corpus, budget)), range(6), strict=False):
        rows = batch[0].rows
        assert len(rows) * int(frames[rows].max()) <= budget


def test_sounds_alone_make_a_batch() -> None:
    waves = [np.arange(5, dtype=np.int16), np.arange(3, dtype=np.int16)]
    batch = collate(waves, None)
    assert batch.source_BS.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 0]]
    assert batch.source_lengths_B.tolist() == [5, 3]
    assert batch.target_BT is None
    assert (batch.lines, batch.rows) == ([1, 2], [0, 1])


def test_to_int16_keep_within_full_scale() -> None:
    samples = np.array([0.0, 1.5, -1.5, 0.5, -1.0], np.float32)
    assert to_int16(samples).tolist() == [0, 32767, -32768, 16384, -32768]
