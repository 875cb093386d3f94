"""Sound of any format, rate and channels; and each bad file told in one sentence."""

from __future__ import annotations

import builtins
import importlib
import os
import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recordings import corpus
from transduce.data.audio import read as audio
from transduce.data.audio import recording
from transduce.data.audio.read import audio_blocks, audio_from_samples, audio_info, read_audio
from transduce.errors import DataError

soundfile: Any = pytest.importorskip("soundfile")
pytest.importorskip("soxr")

FORMATS: dict[str, dict[str, Any]] = {
    "wav": {},
    "flac": {},
    "mp3": {},
    "ogg": {},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "sph": {"format": "NIST", "subtype": "PCM_16"},
    "aiff": {},
}
LOSSLESS = ("wav", "flac", "sph", "aiff")


def tone(rate: int, seconds: float = 2.0, hertz: float = 440.0) -> np.ndarray:
    time = np.arange(round(seconds * rate)) / rate
    return (0.3 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def noise(rate: int, seconds: float = 2.0) -> np.ndarray:
    draw = np.random.default_rng(0)
    return (0.1 * draw.standard_normal(round(seconds * rate))).astype(np.float32)


def write(path: Path, samples: np.ndarray, rate: int) -> Path:
    soundfile.write(path, samples, rate, **FORMATS[path.suffix[1:]])
    return path


def said(path: Path, **piece: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_audio(path, **piece)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_sound_that_was_written(tmp_path: Path, suffix: str) -> None:
    rate = 48_000 if suffix == "opus" else 44_100
    path = write(tmp_path / f"a.{suffix}", tone(rate), rate)
    audio = read_audio(path)
    assert audio.samples.dtype == np.float32
    assert audio.rate == 16_000
    assert audio.remarks == ()
    assert len(audio.samples) == pytest.approx(32_000, abs=1)
    inner = slice(4_000, 28_000)
    difference = np.abs(audio.samples[inner] - tone(16_000)[inner]).max()
    assert difference < (1e-3 if suffix in LOSSLESS else 0.03)


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_any_rate_and_channels(tmp_path: Path, rate: int, channels: int) -> None:
    other = tone(rate, hertz=700.0)
    many = np.stack([tone(rate)] + [other] * (channels - 1), axis=1)
    path = write(tmp_path / "a.wav", many, rate)
    expected = (tone(16_000) + (channels - 1) * tone(16_000, hertz=700.0)) / channels
    samples = read_audio(path).samples
    assert np.abs(samples - expected)[2_000:-2_000].max() < 1e-3
    info = audio_info(path)
    assert (info.seconds, info.rate, info.channels) == (2.0, rate, channels)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("rate", [16_000, 48_000])
def test_a_piece_is_a_slice_of_the_whole(tmp_path: Path, suffix: str, rate: int) -> None:
    path = write(tmp_path / f"a.{suffix}", noise(rate, 5.0), rate)
    whole = read_audio(path).samples
    for start, end in [(0.0, 1.0), (1.2345, 2.5), (3.0001, 4.98), (4.5, None)]:
        piece = read_audio(path, start=start, end=end).samples
        expected = whole[round(start * 16_000) : None if end is None else round(end * 16_000)]
        assert len(piece) == len(expected)
        assert np.abs(piece - expected).max() < 1e-5, (start, end)


@pytest.mark.parametrize("rate", [11_025, 44_056, 44_100])
def test_a_piece_lies_on_the_grid_of_the_whole(tmp_path: Path, rate: int) -> None:
    path = write(tmp_path / "a.wav", noise(rate, 5.0), rate)
    whole = read_audio(path).samples
    piece = read_audio(path, start=1.23, end=3.21).samples
    assert np.abs(piece - whole[19_680:51_360]).max() < 1e-5


@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_blocks_joined_are_the_whole(
    tmp_path: Path, rate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "BLOCK", 7_777)
    path = write(tmp_path / "a.flac", noise(rate, 5.0), rate)
    blocks = list(audio_blocks(path))
    assert len(blocks) > 5
    assert np.array_equal(np.concatenate(blocks), read_audio(path).samples)


def test_a_long_file_is_never_in_memory_whole(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    with soundfile.SoundFile(path, "w", 8_000, 1, "PCM_16") as file:
        for _ in range(3 * 60):
            file.write(noise(8_000, 60.0 / 3))
    tracemalloc.start()
    samples = sum(len(block) for block in audio_blocks(path))
    piece = read_audio(path, start=3_000.0, end=3_010.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert samples == 60 * 60 * 16_000
    assert piece.seconds == 10.0
    assert peak < 16 * 2**20  # the hour at 16 kHz is 230 MB


def test_real_recordings(tmp_path: Path) -> None:
    folder = corpus("mini_an4")
    files = sorted(folder.glob("*.flac"))
    assert len(files) == 7
    for file in files:
        audio = read_audio(file)
        original, rate = soundfile.read(file, dtype="float32")
        assert rate == 16_000
        assert np.array_equal(audio.samples, original)
        assert audio.remarks == ()


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("share", [0.97, 0.5, 0.02, 0.001])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, suffix: str, share: float) -> None:
    path = write(tmp_path / f"a.{suffix}", noise(16_000, 10.0), 16_000)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(share * len(raw))])
    assert any(
        word in said(path) for word in ("truncated", "damaged", "not audio", "holds no audio")
    )


@pytest.fixture
def variable(tmp_path: Path) -> Path:
    """A good MP3 of variable bitrate, noisy and not in turn: its frames lend each other bits."""
    rate, seconds = 16_000, 30
    time = np.arange(rate * seconds) / rate
    wave = 0.3 * np.sin(2 * np.pi * (200 + 100 * np.sin(time)) * time)
    wave += np.where(np.sin(time) > 0, noise(rate, seconds), 0.0)
    path = tmp_path / "variable.mp3"
    how = {"subtype": "MPEG_LAYER_III", "bitrate_mode": "VARIABLE", "compression_level": 0.5}
    soundfile.write(path, wave.astype(np.float32), rate, format="MP3", **how)
    return path


def test_blocks_of_mp3_are_those_of_the_whole(
    variable: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = soundfile.read(variable, dtype="float32")[0]
    monkeypatch.setattr(recording, "BLOCK", 10_007)
    for samples in (np.concatenate(list(audio_blocks(variable))), read_audio(variable).samples):
        assert samples.shape == whole.shape
        assert np.abs(samples - whole).max() < 1e-6
    for start in (0.3, 5.0, 12.345, 18.75, 27.0):  # where soundfile alone is wrong by up to 0.4
        piece = read_audio(variable, start=start, end=start + 2).samples
        first = round(16_000 * start)
        assert np.abs(piece - whole[first : first + 32_000]).max() < 1e-5
    assert capfd.readouterr().err == ""  # libmpg123 has nothing to say of a good file


def test_only_complaints_are_kept_from_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with recording.filtered_stderr(recording.LIBRARY_MESSAGES):
        os.write(2, b"[src/libmpg123/layer3.c:1] error: part2_3_length\nof another thread\n")
    assert capfd.readouterr().err == "of another thread\n"


@pytest.mark.parametrize("name", ["text.mp3", "text.MP3", "text.wav"])
def test_text_with_the_name_of_sound(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("Liebe Grüße, this is no audio.\n" * 30, "utf-8")
    sentence = said(tmp_path / name)
    assert "is not audio that can be read here" in sentence
    assert "exist" not in sentence
    assert capfd.readouterr().err == ""
    (tmp_path / name).write_bytes(b"\xff\xfb" + np.random.default_rng(1).bytes(3000))
    assert "exist" not in said(tmp_path / name)


@pytest.mark.parametrize("suffix", ["ogg", "opus"])
def test_an_ogg_file_cut_between_two_pages_is_refused(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a.{suffix}", noise(16_000, 10.0), 16_000)
    raw = path.read_bytes()
    path.write_bytes(raw[: raw.rfind(b"OggS")])
    assert "the last page of an Ogg file is missing" in said(path)


def test_the_library_for_mp3_does_not_speak_of_what_was_cut_off(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.mp3", noise(16_000, 10.0), 16_000)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "truncated" in said(path)
    assert capfd.readouterr().err == ""


def test_an_error_keeps_no_resampler(tmp_path: Path) -> None:
    """soxr complains at the end of Python of what a traceback has kept until then."""
    path = write(tmp_path / "a.flac", noise(16_000, 4.0), 16_000)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match="truncated or damaged between 0") as found:
        list(audio_blocks(path, 8_000))
    assert not any("stream" in one.frame.f_locals for one in found.traceback)


@pytest.mark.parametrize("suffix", ["flac", "mp3"])  # Ogg fills holes, PCM cannot tell
def test_a_file_damaged_within_is_refused(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a.{suffix}", noise(16_000, 30.0), 16_000)
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 5_000] = np.random.default_rng(0).bytes(5_000)
    path.write_bytes(raw)
    assert "damaged between 0.0 and " in said(path)


def test_a_stream_without_a_length(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", tone(16_000), 16_000)
    raw = bytearray(path.read_bytes())
    raw[4:8] = raw[40:44] = b"\xff\xff\xff\xff"  # as recorders write into a pipe
    path.write_bytes(raw)
    assert len(read_audio(path).samples) == 32_000
    flac = write(tmp_path / "a.flac", tone(16_000), 16_000)
    raw = bytearray(flac.read_bytes())
    raw[21] &= 0xF0  # the 36 bits of STREAMINFO that count samples
    raw[22:26] = bytes(4)
    flac.write_bytes(raw)
    assert "has no length in its header" in said(flac)


@pytest.mark.parametrize("rate", [0, 1, 7, 2_000_000, 2**31 - 1, 2**32 - 1])
def test_an_absurd_rate_is_refused(tmp_path: Path, rate: int) -> None:
    path = write(tmp_path / "a.wav", tone(16_000), 16_000)
    raw = bytearray(path.read_bytes())
    raw[24:28] = struct.pack("<I", rate)
    path.write_bytes(raw)
    sentence = said(path)
    assert f"{rate:,} Hz" in sentence or "not audio that can be read" in sentence


def test_what_is_no_sound_is_reported(tmp_path: Path) -> None:
    empty = tmp_path / "empty.wav"
    empty.touch()
    assert "is empty" in said(empty)
    text = tmp_path / "text.wav"
    text.write_text("hello, world\n" * 100)
    assert "is not audio that can be read here (no audio format is recognised in it)" in said(text)
    cut = write(tmp_path / "cut.wav", tone(16_000), 16_000)
    cut.write_bytes(cut.read_bytes()[:30])
    assert "is not audio that can be read here (it ends within its header)" in said(cut)
    assert "is a folder" in said(tmp_path)
    assert "no audio file" in said(tmp_path / "none.wav")
    bare = write(tmp_path / "bare.wav", np.empty(0, dtype=np.float32), 16_000)
    assert "holds no audio" in said(bare)
    packed = tmp_path / "packed.sph"
    header = "NIST_1A\n   1024\nsample_coding -s26 pcm,embedded-shorten-v2.00\nend_head\n"
    packed.write_bytes(header.encode().ljust(1024))
    assert "sph2pipe" in said(packed)


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    samples = tone(16_000)
    samples[20_000] = np.nan
    soundfile.write(path, samples, 16_000, subtype="FLOAT")
    assert "not numbers" in said(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_forbidden_file_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", tone(16_000), 16_000)
    path.chmod(0)
    assert "cannot be read" in said(path)


def test_too_short_for_a_frame(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", tone(44_100, 0.010), 44_100)
    assert "10 ms of audio, less than one frame of 25 ms" in said(path)
    path = write(tmp_path / "b.wav", tone(44_100, 0.026), 44_100)
    assert read_audio(path).seconds == pytest.approx(0.026, abs=1e-3)


def test_pieces_that_cannot_be(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", tone(16_000), 16_000)
    assert "lasts 2.00 s: it has no audio at 2.5 s" in said(path, start=2.5)
    assert "from 1 s to 0.5 s" in said(path, start=1, end=0.5)
    assert "10 ms of audio from 1.99 s on" in said(path, start=1.99)
    assert len(read_audio(path, start=1.5, end=99.0).samples) == 8_000


def test_silence_is_accepted_and_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", np.zeros(16_000, dtype=np.float32), 16_000)
    audio = read_audio(path)
    assert len(audio.samples) == 16_000
    assert audio.remarks == (f"{path} is silent",)
    assert audio.silent


@pytest.mark.parametrize("loudness", [1.0, 0.4])
def test_clipping_is_accepted_and_said(tmp_path: Path, loudness: float) -> None:
    """Also where somebody made the clipped audio quieter afterwards."""
    samples = loudness * np.clip(12 * noise(44_100), -1, 1)
    path = write(tmp_path / "a.wav", samples, 44_100)
    assert read_audio(path).remarks == (f"{path} is clipped: it was recorded too loud",)
    assert not read_audio(path).silent
    assert audio_from_samples(noise(16_000), 16_000).remarks == ()
    assert audio_from_samples(tone(16_000, hertz=50.0), 16_000).remarks == ()


def test_a_recording_is_silent_if_all_of_it_is() -> None:
    loud, quiet = np.full((9, 2), 0.5, np.float32), np.zeros((9, 2), np.float32)
    assert audio.peaks_of([loud, quiet]) == audio.peaks_of([quiet, loud]) == (0.5, 0.5)


def test_channels_that_cancel_are_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", np.stack([noise(16_000), -noise(16_000)], axis=1), 16_000)
    assert "cancel each other" in read_audio(path).remarks[0]
    assert read_audio(path).silent


def test_several_remarks_are_told_apart() -> None:
    clipped = 3 * np.clip(12 * noise(44_100), -1, 1)
    remark = audio_from_samples(clipped, 44_100, name="it").remark
    assert remark == (
        "it is 3 times as loud as full scale: its samples may not be scaled to ±1; it is clipped: "
        "it was recorded too loud"
    )


def test_floats_under_a_header_of_integers_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", tone(16_000), 16_000)
    head = path.read_bytes()[:40]
    floats = (0.3 * noise(16_000)).astype("<f4").tobytes()
    path.write_bytes(head + struct.pack("<I", len(floats)) + floats)
    assert "look like 32-bit floating point numbers" in said(path)
    with pytest.raises(DataError, match="look like 32-bit floating point numbers"):
        list(audio_blocks(path))
    quiet = write(tmp_path / "quiet.wav", 1e-3 * noise(16_000), 16_000)
    assert not read_audio(quiet).remarks


def test_a_file_cut_in_its_header_is_to_be_copied_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", tone(16_000), 16_000)
    path.write_bytes(path.read_bytes()[:30])
    assert "copy it again" in said(path)


def test_numbers_that_are_not_of_full_scale_are_said() -> None:
    assert "3,000 times as loud" in audio_from_samples(10_000 * tone(16_000), 16_000).remarks[0]


@pytest.mark.parametrize("package", ["soundfile", "soxr"])
def test_a_missing_package_is_reported_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    path = write(tmp_path / "a.wav", tone(44_100), 44_100)
    monkeypatch.delitem(sys.modules, package)
    real = builtins.__import__

    def absent(name: str, *others: Any) -> Any:
        if name == package:
            raise ImportError(f"No module named {package!r}")
        return real(name, *others)

    monkeypatch.setattr(builtins, "__import__", absent)
    monkeypatch.setattr(importlib, "import_module", lambda name: absent(name, None, None, [""]))
    with pytest.raises(DataError, match=r"pip install '\.\[speech\]'"):
        read_audio(path)


def test_the_limit_of_a_frame_is_the_features() -> None:
    assert audio.SHORTEST * audio.RATE == 400


def test_raw_audio_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "talk.raw"
    path.write_bytes(noise(16_000).astype("<f4").tobytes())
    assert "--rate" in said(path)


@pytest.mark.parametrize("length", [0, 1_000])
@pytest.mark.parametrize("other_chunk", [False, True])
def test_a_wrong_length_of_the_samples(tmp_path: Path, length: int, other_chunk: bool) -> None:
    path = write(tmp_path / "a.wav", tone(16_000), 16_000)
    whole = read_audio(path)
    raw = bytearray(path.read_bytes())
    assert raw[36:40] == b"data"
    if other_chunk:  # before the samples
        raw[36:36] = b"LIST" + struct.pack("<I", 4) + b"tea "
    place = raw.index(b"data") + 4
    raw[place : place + 4] = struct.pack("<I", length)
    path.write_bytes(raw)
    np.testing.assert_array_equal(read_audio(path).samples, whole.samples)
    np.testing.assert_array_equal(np.concatenate([*audio_blocks(path)]), whole.samples)
    part = read_audio(path, start=0.5, end=1.0).samples
    np.testing.assert_array_equal(part, whole.samples[8_000:16_000])


def test_chunks_after_the_samples_are_not_audio(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", tone(16_000), 16_000)
    whole = read_audio(path)
    after = b"LIST" + struct.pack("<I", 5) + b"tea..\0" + b"id3 " + struct.pack("<I", 2) + b"ab"
    path.write_bytes(path.read_bytes() + after)
    np.testing.assert_array_equal(read_audio(path).samples, whole.samples)
    empty = bytearray(path.read_bytes()[:44])
    empty[40:44] = bytes(4)
    path.write_bytes(empty + after)
    assert "only a header" in said(path)


@pytest.mark.parametrize("ending", ["wav", "flac", "mp3", "ogg", "sph"])
def test_what_there_is_of_a_truncated_file(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a.{ending}", noise(16_000, 8.0), 16_000)
    whole = read_audio(path, partial=True)
    assert whole.remarks == read_audio(path).remarks == ()
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    assert "--partial" in said(path) or "copy it again" in said(path)
    found = read_audio(path, partial=True)
    assert 2.0 < found.seconds < 6.0
    assert found.remarks == (
        f"{path} is truncated or damaged: {found.seconds:.2f} s of it are used",
    )
