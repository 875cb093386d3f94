"""An audio file on disk: what it says of itself, and whether all of it is there.

A file that was cut off while it was copied often opens without complaint and is merely short. Its
transcript then speaks of audio that is not there, so such files are refused, not read.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.errors import DataError

Samples = npt.NDArray[np.float32]

BLOCK = 2**18  # frames read at a time
UNKNOWN_FRAMES = 2**62  # of a stream that was written before its end was known
UNKNOWN_BYTES = 0x7FFF0000  # what recorders write for "until the end" in a WAV header
RATES = range(1_000, 768_001)  # of all recordings that people make
SLACK = 0.1  # seconds that lossy formats may promise and not hold
RUN_IN = 2.0  # seconds of MP3 after which no frame needs bits from before a jump
SEARCHED = 2**16  # bytes in which a frame of MP3 begins, whatever comes before it
COMPLAINTS = re.compile(rb"\[src/libmpg123/|Note: |Warning: ")
UNRECOGNISED = "no audio format is recognised in it"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a header says."""

    seconds: float
    rate: int
    channels: int
    format: str


def load_audio_package(name: str) -> Any:
    """soundfile or soxr, when somebody asks for audio; DataError with the line that installs it."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: the package is there, its library is not
        raise DataError(
            f"audio needs the package {name}, which cannot be loaded here ({error}): "
            f"pip install 'transduce[speech]'"
        ) from None


class Recording:
    """An open audio file, read in blocks of frames; close it, or use it in a with statement.

    Raises DataError, in one sentence that names the file, for all that is not whole, sane audio.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        start = _first_bytes(self.path)
        soundfile = load_audio_package("soundfile")
        self._broken: type[Exception] = soundfile.SoundFileError
        try:
            self._file: Any = _forwards(soundfile.SoundFile)(self.path)
        except self._broken as error:
            reason = str(error).removeprefix(f"Error opening {str(self.path)!r}: ").rstrip(".")
            if reason.startswith("File does not exist"):  # so libsndfile says of what is no MP3
                reason = UNRECOGNISED
            raise DataError(
                f"{self.path} is not audio that can be read here ({reason}): give WAV, FLAC, MP3, "
                f"Ogg or SPHERE, or convert it to one of them"
            ) from None
        try:
            self._check(start)
        except DataError:
            self._file.close()
            raise

    @property
    def rate(self) -> int:
        return int(self._file.samplerate)

    @property
    def frames(self) -> int:
        return int(self._file.frames)

    @property
    def facts(self) -> Facts:
        seconds = self.frames / self.rate
        return Facts(seconds, self.rate, int(self._file.channels), str(self._file.format))

    def blocks(self, start: int = 0, end: int | None = None) -> Iterator[Samples]:
        """Frames start … end − 1, or all that follow, as blocks [frames, channels]."""
        stop = self.frames if end is None else min(end, self.frames)
        position = start
        try:
            if start:
                self._seek(start)
            while position < stop:
                size = min(BLOCK, stop - position)
                block: Samples = self._file.read(size, dtype="float32", always_2d=True)
                if not len(block):
                    break
                if not np.isfinite(block).all():
                    raise DataError(
                        f"{self.path} holds samples that are not numbers (NaN or infinite), near "
                        f"{position / self.rate:.1f} s: export it again"
                    )
                position += len(block)
                yield block
        except self._broken as error:
            raise DataError(
                f"{self.path} is damaged after {position / self.rate:.1f} s "
                f"({str(error).removeprefix('Error : ').rstrip('.')}): copy it again"
            ) from None
        self._check_promise(stop / self.rate, position / self.rate)

    def _seek(self, start: int) -> None:
        """Go to a frame. One of MP3 needs bits of frames before it, which a jump leaves out: the
        decoder complains of what is missing, and is right again after some of them."""
        if self._file.format != "MP3":
            self._file.seek(start)
            return
        early = max(0, start - round(RUN_IN * self.rate))
        with without_complaints(COMPLAINTS):
            self._file.seek(early)
            if start > early:
                self._file.read(start - early, dtype="float32", always_2d=True)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, start: bytes) -> None:
        if self.rate not in RATES:
            raise DataError(
                f"{self.path} says that it has {self.rate:,} samples a second, which no recording "
                f"has: mend its header"
            )
        if self.frames == 0:
            raise DataError(f"{self.path} holds no audio, only a header: leave it out")
        if self.frames >= UNKNOWN_FRAMES:
            raise DataError(
                f"{self.path} does not say how long it is, as if it had been written into a pipe: "
                f"convert it once more, into a file"
            )
        promised = self._promised_seconds(start)
        if promised is not None:
            self._check_promise(promised, self.frames / self.rate)

    def _promised_seconds(self, start: bytes) -> float | None:
        """What the file itself says it should last, where libsndfile does not compare."""
        kind = self._file.format
        if kind in ("WAV", "WAVEX", "RF64", "AIFF"):
            told = re.search(r"(?:data|SSND) : (\d+) \(should be (\d+)\)", self._file.extra_info)
            if told is None or int(told[1]) >= UNKNOWN_BYTES or int(told[2]) == 0:
                return None
            return self.frames / self.rate * int(told[1]) / int(told[2])
        if kind == "NIST":
            told = re.search(r"sample_count -i (\d+)", start.decode("latin-1"))
            return None if told is None else int(told[1]) / self.rate
        if kind == "OGG":
            return self._promised_by_ogg()
        return None

    def _promised_by_ogg(self) -> float:
        """The position that the last page has; a file whose last page is not an end was cut."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - 2 * 65_307))  # a page is no longer
            tail = file.read()
        page = tail[tail.rfind(b"OggS") :]
        if len(page) < 14 or not page[5] & 4:
            raise DataError(
                f"{self.path} is cut short: the page that ends an Ogg file is not there; copy it "
                f"again"
            )
        position = int.from_bytes(page[6:14], "little", signed=True)
        return position / (48_000 if self._file.subtype == "OPUS" else self.rate)

    def _check_promise(self, promised: float, there: float) -> None:
        slack = SLACK if self._file.format in ("MP3", "OGG") else 0.5 / self.rate
        if there < promised - slack:
            raise DataError(
                f"{self.path} is cut short or damaged: it says that it lasts {promised:.2f} s, but "
                f"only {there:.2f} s are there; copy it again"
            )


def _forwards(kind: type) -> type:
    """SoundFile that is read from one end to the other.

    soundfile seeks after each block that it has read, to where it is; of MP3 the decoder then has
    lost the bits that the next frame needs, and the block begins with wrong samples.
    """

    class Forwards(kind):  # type: ignore[misc]
        def seekable(self) -> bool:
            return False

    return Forwards


@contextmanager
def without_complaints(complaints: re.Pattern[bytes]) -> Iterator[None]:
    """Drop the lines that match from what is written to standard error meanwhile, by C code too."""
    with _ONE_AT_A_TIME:
        try:
            kept = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        with tempfile.TemporaryFile() as told:
            if sys.stderr is not None:
                sys.stderr.flush()
            os.dup2(told.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(kept, 2)
                os.close(kept)
                told.seek(0)
                for line in told.readlines():
                    if not complaints.match(line):
                        os.write(2, line)


_ONE_AT_A_TIME = threading.Lock()


def _may_be_audio(path: Path, start: bytes) -> bool:
    """Whether a file named as MP3 has a tag, a frame of MPEG, or the first bytes of another format;
    of all others libmpg123 complains at length before libsndfile says something else."""
    if start.startswith((b"ID3", b"RIFF", b"fLaC", b"OggS", b"FORM", b"NIST_1A", b"RF64", b".snd")):
        return True
    with path.open("rb") as file:
        return re.search(rb"\xff[\xe2-\xff]", file.read(SEARCHED)) is not None


def _first_bytes(path: Path) -> bytes:
    """The header's text, and the errors that libsndfile tells badly."""
    try:
        with path.open("rb") as file:
            start = file.read(1024)
    except IsADirectoryError:
        raise DataError(f"{path} is a folder, not an audio file: give the files in it") from None
    except FileNotFoundError:
        raise DataError(f"there is no audio file {path}: check the name") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if not start:
        raise DataError(f"{path} is empty: leave it out, or copy it again")
    if path.suffix.lower() in (".mp3", ".mp2") and not _may_be_audio(path, start):
        raise DataError(
            f"{path} is not audio that can be read here ({UNRECOGNISED}): give WAV, FLAC, MP3, Ogg "
            f"or SPHERE, or convert it to one of them"
        )
    if start.startswith(b"NIST_1A") and b"shorten" in start:
        raise DataError(
            f"{path} is SPHERE compressed by shorten, which cannot be read here: convert it with "
            f"sph2pipe -f wav"
        )
    return start
