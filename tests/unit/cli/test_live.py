"""`transduce run MODEL --live`: a file in real time, a microphone, Ctrl-C, and what is missing."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from command_line import Transduce, sentence
from fixtures.make_models import MODELS
from tiny_sounds import audio_model, noise
from transduce.cli import live
from transduce.errors import DataError, ModelError

RATE = 4000
SETTINGS = {"min_length": 3}


@pytest.fixture(scope="module")
def model() -> Any:
    return audio_model()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A second of noise between silences."""
    quiet = np.zeros(RATE // 2, np.int16)
    file = tmp_path / "noise.wav"
    soundfile.write(file, np.concatenate([quiet, noise(0.8), quiet, quiet]), RATE)
    return file


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_file_is_played_in_real_time(
    model: Any, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = time.monotonic()
    live.run_live(model, [str(recording)], "text", True, SETTINGS)
    assert time.monotonic() - start > 2.2
    (line,) = lines(capsys)
    second, _, text = line.strip().partition("  ")
    assert 0.3 < float(second) < 0.6
    assert len(text) >= 3


@pytest.mark.parametrize("form", ["wav", "stereo", "endless", "raw"])
def test_standard_input_is_recognised_as_it_comes(
    model: Any,
    recording: Path,
    form: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live.run_live(model, [str(recording)], "text", True, SETTINGS)
    expected = lines(capsys)
    samples, _ = soundfile.read(recording, dtype="int16")
    buffer = io.BytesIO()
    two = np.stack([samples, samples], axis=1) if form == "stereo" else samples
    soundfile.write(buffer, two, RATE, format="WAV")
    data = buffer.getvalue() + b"LIST\x04\0\0\0\1\2\3\4"  # what is no sample is left out
    if form == "endless":
        place = data.index(b"data") + 4
        data = data[:place] + b"\xff" * 4 + data[place + 4 : -12]
    data = samples.tobytes() if form == "raw" else data
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    start = time.monotonic()
    live.run_live(model, ["-"], "text", True, SETTINGS, RATE if form == "raw" else None)
    captured = capsys.readouterr()
    assert (captured.out.splitlines(), captured.err) == (expected, "")
    assert time.monotonic() - start < 2.0  # as it comes, not in real time


@pytest.mark.parametrize(
    ("data", "rate", "words"),
    [
        (b"", None, "standard input is empty"),
        (b"", RATE, "standard input is empty"),
        (b"RIFF", None, "no WAV header"),
        (
            b"\0" * 9000,
            None,
            "pipe a WAV of 16 bits, or raw samples of 16 bits with --rate",
        ),
        (b"RIFF\0\0\0\0WAVEdata\0\0\0\0", None, "not of 16-bit integers"),
        (np.sin(np.arange(9000)).astype("<f4").tobytes(), RATE, "32-bit floating point"),
    ],
)
def test_standard_input_of_another_kind(
    model: Any, data: bytes, rate: int | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(DataError, match=words):
        live.run_live(model, ["-"], "text", False, SETTINGS, rate)


def test_audio_without_speech_is_told_with_its_seconds(
    model: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a wrong rate is noticed."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bytes(3 * RATE))))
    live.run_live(model, ["-"], "text", False, SETTINGS, RATE)
    captured = capsys.readouterr()
    silent = "no speech was recognised in 1.5 s of standard input, which is silent"
    assert (captured.out, captured.err.count(silent)) == ("", 1)
    monkeypatch.setattr(live.Printer, "show", lambda *_: None)
    hum = (9 * np.sin(np.arange(RATE) / 9)).astype("<i2")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(hum.tobytes() + bytes(RATE))))
    live.run_live(model, ["-"], "text", False, SETTINGS, RATE)
    assert "no speech was recognised in 1.5 s of standard input\n" in capsys.readouterr().err


def test_ctrl_c_ends_the_utterance(
    model: Any, recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    original = live._played

    read = 0

    def interrupted(path: Path, rate: int) -> Any:
        nonlocal read
        for samples in original(path, rate):
            yield samples
            read += 1
            if read == 12:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(live, "_played", interrupted)
    before = signal.getsignal(signal.SIGINT)
    live.run_live(model, [str(recording)], "json", False, SETTINGS)
    assert read == 12  # and no more of the file
    (line,) = lines(capsys)
    assert '"final": true' in line
    assert signal.getsignal(signal.SIGINT) is before


class Microphone:
    """The package sounddevice, with one second of noise in a room."""

    PortAudioError = type("PortAudioError", (Exception,), {})

    def __init__(self) -> None:
        samples = np.concatenate([noise(0.6, rate=8000) // 300, noise(1.0, rate=8000)])
        self.blocks = samples.reshape(-1, 800, 1).astype(np.int16)

    def query_devices(self, kind: str) -> dict[str, float]:
        return {"default_samplerate": 8000.0}

    def InputStream(self, rate: int, **options: Any) -> Any:
        self.callback = options["callback"]
        return self

    active, closed = True, False

    def start(self) -> None:
        for block in self.blocks:
            self.callback(block, len(block), None, None)

    def close(self) -> None:
        self.closed = True


def test_a_microphone(model: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", Microphone())
    original = live._recorded

    def interrupted(*given: Any) -> Any:
        for samples in original(*given):
            yield samples
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(live, "_recorded", interrupted)
    live.run_live(model, [], "text", False, SETTINGS)
    printed = capsys.readouterr()
    assert "Listening" in printed.err
    assert len(printed.out.strip()) >= 3


def test_a_microphone_that_does_not_start(model: Any, monkeypatch: Any) -> None:
    class Busy(Microphone):
        def start(self) -> None:
            raise self.PortAudioError("Device unavailable")

    monkeypatch.setitem(sys.modules, "sounddevice", busy := Busy())
    with pytest.raises(DataError, match="the microphone cannot be used: Device unavailable"):
        live.run_live(model, [], "text", False, {})
    assert busy.closed


@pytest.mark.parametrize("sign", ["inactive", "error", "nothing"])
def test_a_microphone_that_is_unplugged(
    sign: str, model: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    class Unplugged(Microphone):
        @property
        def active(self) -> bool:  # type: ignore[override]
            if sign == "error":
                raise self.PortAudioError("Unanticipated host error")
            return sign == "nothing"

        def close(self) -> None:
            raise self.PortAudioError("Unanticipated host error")

    monkeypatch.setattr(live, "SILENT", 0.2)
    monkeypatch.setitem(sys.modules, "sounddevice", Unplugged())
    with pytest.raises(DataError, match="the microphone sends nothing any more"):
        live.run_live(model, [], "text", False, SETTINGS)
    assert len(capsys.readouterr().out.strip()) >= 3  # what was said before is not lost


def test_chunks_can_be_chosen_where_a_model_reads_in_them(
    transduce: Transduce, tmp_path: Path, monkeypatch: Any
) -> None:
    from transduce.tasks.live.streaming import StreamingRecogniser

    sizes = []
    original = StreamingRecogniser.session

    def noted(recogniser: Any, *given: Any) -> Any:
        sizes.append(recogniser.streams.shape.states)
        return original(recogniser, *given)

    monkeypatch.setattr(StreamingRecogniser, "session", noted)
    silent = tmp_path / "silent.wav"
    soundfile.write(silent, np.zeros(RATE // 10, np.int16), RATE)
    command = ("run", str(MODELS / "live"), str(silent), "--live")
    assert transduce(*command).status == 0
    assert transduce(*command, "--chunk-ms", "160").status == 0
    assert sizes == [8, 4]
    refused = sentence(transduce(*command, "--chunk-ms", "50"))
    assert "chunk_ms is 50, which is not a multiple of the 40 ms" in refused
    with pytest.raises(ModelError, match=r"trained to read in chunks \(model.encoder.chunk\)"):
        live.run_live(audio_model(), [str(silent)], "text", False, {"chunk_ms": 320})


def test_what_is_missing_is_said(model: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(ModelError, match=r"\.\[live\]"):
        live.run_live(model, [], "text", False, {})

    def nothing(kind: str) -> None:
        raise ValueError("No input device matching")

    nobody = types.SimpleNamespace(query_devices=nothing, PortAudioError=OSError)
    monkeypatch.setitem(sys.modules, "sounddevice", nobody)
    with pytest.raises(DataError, match="there is no microphone here"):
        live.run_live(model, [], "text", False, {})
    with pytest.raises(ModelError, match="text or json"):
        live.run_live(model, [], "srt", False, {})
    with pytest.raises(DataError, match="one recording"):
        live.run_live(model, ["a.wav", "b.wav"], "text", False, {})


def test_at_a_terminal_the_partial_transcript_is_overwritten(monkeypatch: Any) -> None:
    from transduce.tasks.live import Transcript

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with live.Printer("text", False) as printer:
        printer.show(Transcript("ab\x1b cd", False, 0, 0.0, 1.0, stable=2))
        printer.show(Transcript("word " * 100, False, 0, 0.0, 1.0))
        printer.show(Transcript("ab ce", True, 0, 0.0, 1.0))
    written = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert "ab ce\n" in written
    assert "\\x1b cd" in written
    assert written.count("\n") <= 3  # long ones are on one line, too
