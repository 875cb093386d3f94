"""Formats that libsndfile does not read: by ffmpeg, where it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transduce.data.audio import ffmpeg
from transduce.data.audio.read import audio_blocks, audio_info, read_audio
from transduce.errors import DataError, TransduceWarning

soundfile: Any = pytest.importorskip("soundfile")
pytest.importorskip("soxr")
needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
pytestmark = pytest.mark.filterwarnings("ignore::transduce.errors.TransduceWarning")


def tone(path: Path, seconds: float = 1.0) -> Path:
    time = np.arange(round(seconds * 16_000)) / 16_000
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * 440 * time), 16_000)
    return path


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A program ffmpeg of some lines of shell, alone in the path; OUT is the file to write."""

    def made(lines: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "ffmpeg"
        program.write_text(f'#!/bin/sh\nfor OUT; do :; done\nOUT="${{OUT#file:}}"\n{lines}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return program

    return made


def other(tmp_path: Path, name: str = "talk.m4a") -> Path:
    path = tmp_path / name
    path.write_bytes(b"\0\0\0\x20ftypM4A " + bytes(range(200)))
    return path


@needs_ffmpeg
@pytest.mark.parametrize("ending", ["m4a", "mp4", "webm", "aac", "mka", "avi"])
def test_what_telephones_and_browsers_record(tmp_path: Path, ending: str) -> None:
    source, path = tone(tmp_path / "a.wav"), tmp_path / f"talk.{ending}"
    command = ["ffmpeg", "-nostdin", "-loglevel", "error", "-i", str(source), str(path)]
    subprocess.run(command, check=True)
    found = read_audio(path, 16_000)
    assert found.seconds == pytest.approx(1.0, abs=0.1)
    middle = np.abs(np.fft.rfft(found.samples[4_000:12_000]))
    assert np.argmax(middle) * 2 == pytest.approx(440, abs=4)
    assert audio_info(path).seconds == pytest.approx(found.seconds, abs=0.01)
    assert sum(map(len, audio_blocks(path))) == len(found.samples)


@needs_ffmpeg
def test_a_playlist_opens_no_other_file(tmp_path: Path) -> None:
    tone(tmp_path / "secret.wav")
    playlist = tmp_path / "list.m4a"
    playlist.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.wav\n")
    with pytest.raises(DataError, match=r"list\.m4a is not audio that can be read here"):
        read_audio(playlist)


@needs_ffmpeg
def test_a_truncated_file_of_another_format(tmp_path: Path) -> None:
    source, path = tone(tmp_path / "a.wav", 3.0), tmp_path / "talk.webm"
    subprocess.run(["ffmpeg", "-loglevel", "error", "-i", str(source), str(path)], check=True)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match="truncated or damaged") as cut:
        read_audio(path)
    assert "ffmpeg" not in str(cut.value)
    found = read_audio(path, partial=True)
    assert 0.5 < found.seconds < 2.5
    assert "is truncated or damaged" in found.remarks[0]


@needs_ffmpeg
def test_why_there_is_no_audio(tmp_path: Path) -> None:
    """In plain words: a video without sound, and a file that was cut off before its index."""
    picture = ["ffmpeg", "-loglevel", "error", "-f", "lavfi", "-i", "color=c=black:s=16x16:d=0.2"]
    subprocess.run([*picture, str(tmp_path / "mute.mp4")], check=True)
    with pytest.raises(DataError, match=r"mute\.mp4 .*read here \(it has no sound\): copy"):
        read_audio(tmp_path / "mute.mp4")
    source, path = tone(tmp_path / "a.wav"), tmp_path / "talk.m4a"
    subprocess.run(["ffmpeg", "-loglevel", "error", "-i", str(source), str(path)], check=True)
    path.write_bytes(path.read_bytes()[:2_000])
    with pytest.raises(DataError, match=r"table of contents is missing, as where a recording was"):
        read_audio(path)
    for name, content in {"text.m4a": b"hello\n", "stub.ogg": b"OggS" + bytes(26)}.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataError) as found:
            read_audio(path)
        assert not re.search("ffmpeg|Invalid data|End of file", str(found.value))


def test_without_ffmpeg_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=r"install ffmpeg, which reads most others$"):
        read_audio(other(tmp_path))


def test_it_is_converted_once(tmp_path: Path, fake: Callable[[str], Path]) -> None:
    wave, path = tone(tmp_path / "a.wav"), other(tmp_path)
    fake(f'echo run >> {tmp_path}/runs; cp {wave} "$OUT"')
    with pytest.warns(TransduceWarning, match="converted by ffmpeg"):
        assert audio_info(path).seconds == 1.0
    assert read_audio(path).seconds == 1.0
    assert (tmp_path / "runs").read_text() == "run\n"
    path.write_bytes(path.read_bytes() + b"more")
    assert read_audio(path).seconds == 1.0
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_of_many_a_few_are_kept(tmp_path: Path, fake: Callable[[str], Path]) -> None:
    wave = tone(tmp_path / "a.wav")
    fake(f'cp {wave} "$OUT"')
    made = [ffmpeg.converted(other(tmp_path, f"{n}.m4a")).path for n in range(ffmpeg.MAX_KEPT + 2)]
    assert [path.exists() for path in made[-3:]] == [True] * 3
    assert not made[0].exists()
    assert sum(path.exists() for path in made) <= ffmpeg.MAX_KEPT


def test_time_and_size_are_limited(
    tmp_path: Path, fake: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = other(tmp_path)
    fake("exec sleep 60")
    monkeypatch.setattr(ffmpeg, "MAX_SECONDS", 0.2)
    with pytest.raises(DataError, match=r"talk\.m4a takes ffmpeg longer than 0\.2 s"):
        read_audio(path)
    monkeypatch.setattr(ffmpeg, "MAX_SECONDS", 60.0)
    monkeypatch.setattr(ffmpeg, "MAX_BYTES", 1_000)
    fake(f'cp {tone(tmp_path / "a.wav")} "$OUT"')
    with pytest.raises(DataError, match="more audio than fits"):
        read_audio(path)
    folder = Path(ffmpeg._folder())
    before = len(list(folder.iterdir()))
    with pytest.raises(DataError):
        read_audio(path)
    assert len(list(folder.iterdir())) == before  # nothing is left of what failed


def test_what_it_cannot_read(tmp_path: Path, fake: Callable[[str], Path]) -> None:
    path = other(tmp_path)
    fake('echo "[mov @ 0x1] moov atom not found" >&2; exit 1')
    with pytest.raises(DataError, match=r"here \(its table of contents is missing, .* cut off\)"):
        read_audio(path)
    fake("exit 0")  # a video without sound
    with pytest.raises(DataError, match="it has no sound"):
        read_audio(path)
    program = fake("")
    program.write_text("#!/nowhere\n")
    with pytest.raises(DataError, match="ffmpeg does not start"):
        read_audio(path)


def test_a_conversion_that_nobody_wants_ends_at_once(
    tmp_path: Path, fake: Callable[[str], Path]
) -> None:
    class GoneError(Exception):
        pass

    def check() -> None:
        raise GoneError

    fake(f"echo $$ > {tmp_path}/process; exec sleep 60")
    with pytest.raises(GoneError):
        ffmpeg.convert(other(tmp_path), tmp_path / "made.wav", check=check)
    if (written := tmp_path / "process").exists():  # it may have ended before its first line
        with pytest.raises(ProcessLookupError):
            os.kill(int(written.read_text()), 0)
    assert not list(tmp_path.glob("*.wav"))


def test_limits_of_the_caller(tmp_path: Path, fake: Callable[[str], Path]) -> None:
    path, wave, made = other(tmp_path), tone(tmp_path / "a.wav"), tmp_path / "b.wav"
    fake(f'cp {wave} "$OUT"')
    size = wave.stat().st_size
    with pytest.raises(DataError, match=rf"more audio than fits into {size:,} bytes"):
        ffmpeg.convert(path, made, max_bytes=size)
    assert not made.exists()
    assert ffmpeg.convert(path, made, max_bytes=size + 1).path == made
    fake("exec sleep 60")
    with pytest.raises(DataError, match=r"longer than 0\.2 s"):
        ffmpeg.convert(path, made, max_seconds=0.2)
