"""Live speech at the terminal: a microphone, a file played in real time, or standard input."""

from __future__ import annotations

import json
import math
import queue
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from transduce.cli.audio_sources import STANDARD_INPUT
from transduce.data.audio.corpus import FULL_SCALE
from transduce.data.audio.raw import FLOATS, looks_like_floats
from transduce.data.audio.read import SILENT as SILENT_PEAK
from transduce.data.audio.read import audio_blocks, audio_info
from transduce.errors import DataError, ModelError, load_package
from transduce.terminal import console as make_console
from transduce.terminal import say

if TYPE_CHECKING:
    from transduce.tasks import Model
    from transduce.tasks.live import Transcript

Samples = NDArray[Any]

BLOCK = 0.1  # seconds that are recognised at a time, if recognition keeps up
BACKLOG = 300.0  # seconds of the microphone that may wait; more is lost
SILENT = 5.0  # seconds without a block, not even of silence, after which it is taken as gone
BEHIND = 5.0  # seconds of delay that are mentioned
LOOKED_AT = 10.0  # seconds of standard input, in which samples of another type are noticed
MAX_HEADER = 1 << 20  # bytes of a part of a header
PCM = (1, 0xFFFE)  # codes of integers in a WAV header
UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # of a WAV that was begun before its end was known


def run_live(
    model: Model,
    sources: list[str],
    kind: str,
    times: bool,
    settings: Any,
    raw_rate: int | None = None,
) -> None:
    """Print transcripts while someone speaks, until the end of the file or Ctrl-C.

    raw_rate: of standard input, where it has no header.
    """
    from transduce.tasks import SpeechModel

    if not isinstance(model, SpeechModel):
        raise ModelError("--live needs a model that transcribes speech")
    if kind not in ("text", "json"):
        raise ModelError(f"--format is {kind}; with --live it must be text or json")
    if len(sources) > 1:
        raise DataError("--live takes one recording, or none: then it listens to the microphone")
    recogniser = model.live_recogniser(**{k: v for k, v in settings.items() if k != "tags"})
    tags = settings.get("tags", ())
    source = "the microphone" if not sources else sources[0]
    source = "standard input" if source == STANDARD_INPUT else source
    printer = Printer(kind, times)
    with _interrupted() as stopped, printer:
        if sources == [STANDARD_INPUT]:
            rate, audio = _piped(sys.stdin.buffer, raw_rate)
        elif sources:
            rate, audio = recogniser.rate, _played(Path(sources[0]), recogniser.rate)
        else:
            rate, audio = _microphone()
        with recogniser.session(rate, tags) as session:
            broken, peak = None, 0.0
            try:
                for samples in audio:
                    peak = max(peak, _peak(samples))
                    for transcript in session.feed(samples):
                        printer.show(transcript)
                    if stopped.is_set():
                        break
            except DataError as error:  # what was said before it is still recognised
                broken = error
            for transcript in session.finish():
                printer.show(transcript)
            seconds = session.seconds
    if broken is not None:
        raise broken
    if not seconds and not stopped.is_set():
        raise DataError(f"{source} is empty")
    if not printer.lines:
        silent = ", which is silent" if peak < SILENT_PEAK else ""
        say(f"no speech was recognised in {seconds:.1f} s of {source}{silent}")


def _peak(samples: Samples) -> float:
    """The greatest absolute value, of full scale 1."""
    scale = 1 if samples.dtype.kind == "f" else FULL_SCALE
    return float(np.abs(samples.astype(np.float32)).max(initial=0.0)) / scale


@contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets: what was said last is still recognised."""
    event = threading.Event()

    def stop(number: int, frame: Any) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, stop)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _played(path: Path, rate: int) -> Iterator[Samples]:
    """The samples of a file as time goes by; nothing, now and then, so that Ctrl-C is noticed."""
    audio_info(path)  # say what is wrong before the first second
    start, done = time.monotonic(), 0
    for block in audio_blocks(path, rate):
        place = 0
        while place < len(block):
            due = int((time.monotonic() - start) * rate) - done
            size = max(0, min(due, len(block) - place))
            yield block[place : place + size]
            place, done = place + size, done + size
            if due < 2 * BLOCK * rate:  # else recognition is behind
                time.sleep(BLOCK)


def _piped(stream: BinaryIO, raw_rate: int | None) -> tuple[int, Iterator[Samples]]:
    """The rate of standard input, and its samples as they come: 16 bits, raw or WAV."""
    rate, channels, length = _wav_header(stream) if raw_rate is None else (raw_rate, 1, math.inf)

    def blocks() -> Iterator[Samples]:
        rest, size, looked, left = b"", 2 * channels, 0, length
        while data := _some(stream, int(min(round(BLOCK * rate) * size, left))):
            left -= len(data)
            data = rest + data
            whole = len(data) // size * size
            rest = data[whole:]
            samples = np.frombuffer(data[:whole], "<i2").astype(np.int16)
            if looked < LOOKED_AT * rate and looks_like_floats(samples):
                raise DataError(f"standard input {FLOATS}")
            looked += len(samples)
            mono = samples.reshape(-1, channels).mean(axis=1).astype(np.int16)
            yield samples if channels == 1 else mono

    return rate, blocks()


def _some(stream: BinaryIO, size: int) -> bytes:
    """What has arrived, at most `size` bytes; empty: the end."""
    found: bytes = stream.read1(size) if hasattr(stream, "read1") else stream.read(size)
    return found


def _wav_header(stream: BinaryIO) -> tuple[int, int, float]:
    """The rate and the channels of a WAV file whose samples follow, and their bytes; inf: all that
    come. Raises DataError."""
    advice = "pipe a WAV of 16 bits, or raw samples of 16 bits with --rate"
    start = stream.read(12)
    if not start:
        raise DataError("standard input is empty")
    if start[:4] not in (b"RIFF", b"RF64") or start[8:] != b"WAVE":
        raise DataError(f"standard input has no WAV header; {advice}")
    found: tuple[int, int, int, int] | None = None
    size = 0
    while len(head := stream.read(8)) == 8:
        kind, size = struct.unpack("<4sI", head)
        if kind == b"data":
            break
        content = stream.read(min(size + size % 2, MAX_HEADER))
        if kind == b"fmt " and len(content) >= 16:
            code, channels, rate, _, _, bits = struct.unpack("<HHIIHH", content[:16])
            found = code, channels, rate, bits
    if found is None or found[0] not in PCM or found[3] != 16 or not found[1] or not found[2]:
        raise DataError(f"standard input is a WAV that is not of 16-bit integers; {advice}")
    return found[2], found[1], math.inf if size in UNKNOWN_SIZES else size


def _microphone() -> tuple[int, Iterator[Samples]]:
    """The rate of the microphone, and its samples."""
    try:
        sounddevice = load_package("sounddevice", "live")
    except OSError as error:
        raise ModelError(
            f"the microphone needs the library PortAudio ({error}); install it, as with apt "
            f"install libportaudio2, or give a recording, which is then played in real time"
        ) from None
    try:
        rate = round(float(sounddevice.query_devices(kind="input")["default_samplerate"]))
    except (sounddevice.PortAudioError, ValueError) as error:
        raise DataError(
            f"there is no microphone here ({str(error).strip() or 'no input device'}); connect "
            f"one, or give a recording, which is then played in real time"
        ) from None
    return rate, _recorded(sounddevice, rate)


def _recorded(sounddevice: Any, rate: int) -> Iterator[Samples]:
    waiting: queue.Queue[Samples] = queue.Queue(round(BACKLOG / BLOCK))
    said, last = False, time.monotonic()

    def on_audio(samples: Samples, frames: int, at: Any, status: Any) -> None:
        if not waiting.full():
            waiting.put_nowait(samples[:, 0].copy())

    with _started(sounddevice, rate, on_audio) as stream:
        print("Listening; Ctrl-C ends.", file=sys.stderr)
        while True:
            found = []
            try:
                found.append(waiting.get(timeout=BLOCK))
                while True:
                    found.append(waiting.get_nowait())
            except queue.Empty:
                pass
            if found:
                last = time.monotonic()
            elif time.monotonic() - last > SILENT or not _is_active(sounddevice, stream):
                raise DataError(
                    "the microphone sends nothing any more; connect it again, then start again"
                )
            if len(found) * BLOCK > BEHIND and not said:
                said = True
                say("recognition is slower than speech here; transcripts come late")
            yield np.concatenate(found) if found else np.empty(0, np.int16)


@contextmanager
def _started(sounddevice: Any, rate: int, on_audio: Any) -> Iterator[Any]:
    """The microphone's stream, listening until the end. Raises DataError."""
    try:
        stream = sounddevice.InputStream(
            rate, blocksize=round(BLOCK * rate), channels=1, dtype="int16", callback=on_audio
        )
    except sounddevice.PortAudioError as error:
        raise DataError(f"the microphone cannot be used: {error}") from None
    try:
        try:
            stream.start()
        except sounddevice.PortAudioError as error:
            raise DataError(f"the microphone cannot be used: {error}") from None
        yield stream
    finally:
        with suppress(sounddevice.PortAudioError):  # it may be gone
            stream.close()


def _is_active(sounddevice: Any, stream: Any) -> bool:
    try:
        return bool(stream.active)
    except sounddevice.PortAudioError:  # of a device that is gone
        return False


class Printer:
    """Final transcripts as lines; at a terminal, the partial one below them, overwritten."""

    def __init__(self, kind: str, times: bool) -> None:
        self.kind, self.times = kind, times
        self.lines = 0
        self._live: Any = None

    def __enter__(self) -> Printer:
        if self.kind == "text" and sys.stdout is not None and sys.stdout.isatty():
            from rich.live import Live

            console = make_console(highlight=False, markup=False)
            self._live = Live(
                console=console,
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, transcript: Transcript) -> None:
        self.lines += transcript.final and bool(transcript.text)
        if self.kind == "json":
            if transcript.final:
                print(json.dumps(transcript.to_json(), ensure_ascii=False), flush=True)
            return
        if not transcript.final:
            self._partial(transcript)
            return
        start = f"{transcript.start:8.2f}  " if self.times else ""
        if self._live is None:
            print(start + transcript.text, flush=True)
            return
        self._live.update("", refresh=True)
        if transcript.text:
            self._live.console.print(start + transcript.text, soft_wrap=True)

    def _partial(self, transcript: Transcript) -> None:
        if self._live is None:
            return
        from rich.text import Text

        stable = transcript.text[: transcript.stable]
        text = Text(stable)
        text.append(transcript.text[transcript.stable :], style="dim")
        width = self._live.console.width - 1
        if text.cell_len > width:  # its end, on one line
            text = text[max(0, len(text) - width) :]
        text.no_wrap = True
        self._live.update(text, refresh=True)
