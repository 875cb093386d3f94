"""An audio file on disk: its header, and checks that it is complete.

A truncated file often opens without an error and is merely short. Its transcript then does not
match the audio, so such files are refused.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from transduce.data.audio import ffmpeg
from transduce.data.audio.raw import FLOATS_AS_INTEGERS, looks_like_floats
from transduce.errors import DataError, MissingPackageError, load_package
from transduce.storage.members import AudioPlace, TarMember, audio_place, size_of
from transduce.storage.remote import RemotePath

Samples = npt.NDArray[np.float32]

BLOCK = 2**18  # frames read at a time
UNKNOWN_FRAMES = 2**62  # header value of a stream that was written before its length was known
UNKNOWN_BYTES = 0x7FFF0000  # what recorders write for "until the end" in a WAV header
RATES = range(1_000, 768_001)  # plausible sampling rates
SLACK = 0.1  # seconds that lossy formats may be shorter than their header says
RUN_IN = 2.0  # seconds of MP3 to decode after a seek until no frame needs bits from before it
SEARCHED = 2**16  # bytes searched for the first MP3 frame
LIBRARY_MESSAGES = re.compile(rb"\[src/libmpg123/|Note: |Warning: ")
OWN_FORMATS = (b"ID3", b"RIFF", b"fLaC", b"FORM", b"NIST_1A", b"RF64", b".snd")
PARTIAL_BLOCK = 2**12  # of a damaged file: what is in a block that cannot be read is lost
MONO_INT16 = (("WAV", "PCM_16", 1), ("WAVEX", "PCM_16", 1))
FULL_SCALE = 2**15
LOOKED_AT = 2**14  # samples of a file, in which numbers of another type are noticed
UNRECOGNISED = "no audio format is recognised in it"
# What libsndfile says of files that it cannot open, in other words.
PLAINLY = {
    "Format not recognised": UNRECOGNISED,
    "File does not exist": UNRECOGNISED,  # so it says of what is no MP3
    "No 'data' chunk": "it ends within its header",
    "unimplemented format": "it is cut off, or of a kind that is not known here",
}


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """What the header of a file says."""

    seconds: float
    rate: int
    channels: int
    format: str


def load_audio_package(name: str) -> Any:
    """Import soundfile or soxr on demand; MissingPackageError says how to install it."""
    return load_package(name, "speech", "audio", MissingPackageError)


class Recording:
    """An open audio file, read in blocks of frames; close it, or use it in a with statement.

    Raises DataError, in one sentence that names the file, for incomplete or invalid audio.
    """

    def __init__(
        self,
        path: AudioPlace | str,
        partial: bool = False,
        convert: Callable[[Path, bool], ffmpeg.Converted] = ffmpeg.converted,
    ) -> None:
        """partial: of a truncated or damaged file, what there is. convert: makes a WAV file of what
        libsndfile does not read."""
        self.path, self.partial = audio_place(path), partial
        self.source: AudioPlace = self.path
        """The file that is read: `path`, or what was converted from it."""
        self.cut = False
        """With partial: whether less was found than the header says."""
        start = _first_bytes(self.path)
        self._file: Any = self._open(start, convert)
        try:
            self._check(start)
        except DataError:
            self._file.close()
            raise

    def _open(self, start: bytes, convert: Callable[[Path, bool], ffmpeg.Converted]) -> Any:
        """The file, or what ffmpeg makes of it. Raises DataError."""
        soundfile = load_audio_package("soundfile")
        self._broken: type[Exception] = soundfile.SoundFileError
        if self.path.suffix.lower() in (".raw", ".pcm"):
            raise DataError(
                f"{self.path} is raw audio, whose sampling rate is not known: convert it to WAV, "
                f"or give the rate with --rate of transduce run"
            )
        opened = _sequential(soundfile.SoundFile)
        if self._is_mp3() and not _may_be_audio(self.path, start):
            reason = UNRECOGNISED
        else:
            try:
                with filtered_stderr(LIBRARY_MESSAGES) if self._is_mp3() else nullcontext():
                    return opened(repaired(self.path, start) or _readable(self.path))
            except (self._broken, TypeError, ValueError) as error:
                said = str(error).removeprefix(f"Error opening {str(self.path)!r}: ").rstrip(".")
                reason = next((plain for words, plain in PLAINLY.items() if words in said), said)
        unreadable = f"{self.path} is not audio that can be read here ({reason}"
        if isinstance(self.path, RemotePath | TarMember):
            raise DataError(f"{unreadable}): store WAV, FLAC, MP3, Ogg or SPHERE there")
        if self._is_own_format(start):
            raise DataError(f"{unreadable}): copy it again, or convert it to 16-bit WAV or FLAC")
        if not ffmpeg.is_installed():
            raise DataError(
                f"{unreadable}): give WAV, FLAC, MP3, Ogg or SPHERE, or install ffmpeg, which "
                f"reads most others"
            )
        try:
            made = convert(self.path, self.partial)
        except ffmpeg.Unreadable as error:
            raise DataError(
                f"{self.path} is not audio that can be read here ({error}): copy it again, or "
                f"convert it to WAV or FLAC"
            ) from None
        self.source, self.cut = made
        return opened(self.source)

    def _is_own_format(self, start: bytes) -> bool:
        """Whether it is of a format that libsndfile reads, and so it is damaged."""
        if start.startswith(OWN_FORMATS):
            return start[8:12] != b"AVI "
        return self._is_mp3() and _may_be_audio(self.path, start)

    def _is_mp3(self) -> bool:
        """By its name."""
        return self.path.suffix.lower() in (".mp3", ".mp2")

    @property
    def rate(self) -> int:
        return int(self._file.samplerate)

    @property
    def frames(self) -> int:
        return int(self._file.frames)

    @property
    def info(self) -> AudioInfo:
        seconds = self.frames / self.rate
        return AudioInfo(seconds, self.rate, int(self._file.channels), str(self._file.format))

    def _check_type(self, block: Samples) -> None:
        """Of the first block: of a WAV file of one channel of 16-bit integers, by its header."""
        file = self._file
        if (file.format, file.subtype, file.channels) not in MONO_INT16:
            return
        if looks_like_floats((block[:LOOKED_AT, 0] * FULL_SCALE).astype(np.int16)):
            raise DataError(f"{self.path} {FLOATS_AS_INTEGERS}")

    def blocks(self, start: int = 0, end: int | None = None) -> Iterator[Samples]:
        """Frames start … end − 1, or all that follow, as blocks [frames, channels]."""
        stop = self.frames if end is None else min(end, self.frames)
        position = start
        try:
            if start:
                self._seek(start)
            while position < stop:
                size = min(PARTIAL_BLOCK if self.partial else BLOCK, stop - position)
                block: Samples = self._file.read(size, dtype="float32", always_2d=True)
                if not len(block):
                    break
                if not np.isfinite(block).all():
                    raise DataError(
                        f"{self.path} holds samples that are not numbers (NaN or infinite), near "
                        f"{position / self.rate:.1f} s: export it again"
                    )
                if position == start:
                    self._check_type(block)
                position += len(block)
                yield block
        except self._broken:
            if self.partial and position > start:
                self.cut = True
                return
            raise DataError(
                f"{self.path} is truncated or damaged between {position / self.rate:.1f} and "
                f"{min(position + size, self.frames) / self.rate:.1f} s: {ffmpeg.WHAT_THERE_IS}"
            ) from None
        self._check_promise(stop / self.rate, position / self.rate)

    def _seek(self, start: int) -> None:
        """Seek to a frame. An MP3 frame needs bits of frames before it (bit reservoir): decoding
        starts earlier, and the decoder's messages about missing bits are suppressed.
        """
        if self._file.format != "MP3":
            self._file.seek(start)
            return
        early = max(0, start - round(RUN_IN * self.rate))
        with filtered_stderr(LIBRARY_MESSAGES):
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
                f"{self.path} has a sampling rate of {self.rate:,} Hz by its header, which is not "
                f"plausible: correct its header"
            )
        if self.frames == 0:
            raise DataError(f"{self.path} holds no audio, only a header: leave it out")
        if self.frames >= UNKNOWN_FRAMES and not self.partial:
            raise DataError(
                f"{self.path} has no length in its header, as if it had been written into a pipe: "
                f"convert it again, into a file"
            )
        try:
            promised = self._promised_seconds(start)
        except DataError:
            if not self.partial:
                raise
            promised, self.cut = None, True
        if promised is not None:
            self._check_promise(promised, self.frames / self.rate)

    def _promised_seconds(self, start: bytes) -> float | None:
        """The duration by the file's own header, where libsndfile does not check it."""
        kind = self._file.format
        if kind in ("WAV", "WAVEX", "RF64", "AIFF"):
            found = re.search(r"(?:data|SSND) : (\d+) \(should be (\d+)\)", self._file.extra_info)
            if found is None or int(found[1]) >= UNKNOWN_BYTES or int(found[2]) == 0:
                return None
            return self.frames / self.rate * int(found[1]) / int(found[2])
        if kind == "NIST":
            found = re.search(r"sample_count -i (\d+)", start.decode("latin-1"))
            return None if found is None else int(found[1]) / self.rate
        if kind == "OGG":
            return self._promised_by_ogg()
        return None

    def _promised_by_ogg(self) -> float:
        """The position of the last Ogg page; a file whose last page is not an end-of-stream page
        was truncated.
        """
        with self.path.open("rb") as file:
            file.seek(max(0, size_of(self.path) - 2 * 65_307))  # a page is no longer
            tail = file.read()
        page = tail[tail.rfind(b"OggS") :]
        if len(page) < 14 or not page[5] & 4:
            raise DataError(
                f"{self.path} is truncated: the last page of an Ogg file is missing; "
                f"{ffmpeg.WHAT_THERE_IS}"
            )
        position = int.from_bytes(page[6:14], "little", signed=True)
        return position / (48_000 if self._file.subtype == "OPUS" else self.rate)

    def _check_promise(self, promised: float, there: float) -> None:
        slack = SLACK if self._file.format in ("MP3", "OGG") else 0.5 / self.rate
        if there >= promised - slack:
            return
        if self.partial:
            self.cut = True
            return
        raise DataError(
            f"{self.path} is truncated or damaged: its header says {promised:.2f} s, but there are "
            f"only {there:.2f} s; {ffmpeg.WHAT_THERE_IS}"
        )


def repaired(path: AudioPlace, start: bytes) -> RepairedWave | None:
    """A WAV file whose header has a wrong length of the samples, such as 0, though others follow;
    None: it is right, or no WAV file."""
    if not start.startswith(b"RIFF") or start[8:12] != b"WAVE":
        return None
    size, place = size_of(path), 12
    with path.open("rb") as file:
        while True:
            file.seek(place)
            head = file.read(8)
            length = int.from_bytes(head[4:8], "little")
            if len(head) < 8 or not head[:4].isascii():
                return None
            if head[:4] == b"data":
                break
            place += 8 + length + length % 2
        samples = place + 8
        if length >= UNKNOWN_BYTES or samples + length >= size:
            return None  # libsndfile reads to the end, or says that it is truncated
        # Other chunks may follow, one after the other to the end.
        after = samples + length + length % 2
        while after < size:
            file.seek(after)
            head = file.read(8)
            after += 8 + int.from_bytes(head[4:8], "little")
            after += after % 2
            if not re.fullmatch(rb"[A-Za-z0-9 _-]{4}", head[:4]) or after > size + 1:
                return RepairedWave(path, place + 4, min(size - samples, UNKNOWN_BYTES))
    return None


class RepairedWave(io.RawIOBase):
    """A file whose four bytes at a place are a length."""

    def __init__(self, path: AudioPlace, place: int, length: int) -> None:
        self._inner = path.open("rb")
        self._place, self._bytes = place, length.to_bytes(4, "little")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        return self._inner.seek(place, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def readinto(self, buffer: Any) -> int:
        start = self._inner.tell()
        data = bytearray(self._inner.read(len(buffer)))
        for offset, value in enumerate(self._bytes, start=self._place - start):
            if 0 <= offset < len(data):
                data[offset] = value
        buffer[: len(data)] = bytes(data)
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()


def _sequential(kind: type) -> type:
    """A SoundFile class for sequential reading.

    soundfile seeks after each block, to the position where it already is; an MP3 decoder then loses
    the bits that the next frame needs, and the block begins with wrong samples.
    """

    class Sequential(kind):  # type: ignore[misc]
        def seekable(self) -> bool:
            return False

    return Sequential


@contextmanager
def filtered_stderr(patterns: re.Pattern[bytes]) -> Iterator[None]:
    """Drop matching lines from standard error meanwhile, also those written by C code."""
    with _ONE_AT_A_TIME:
        try:
            kept = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        with tempfile.TemporaryFile() as found:
            if sys.stderr is not None:
                sys.stderr.flush()
            os.dup2(found.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(kept, 2)
                os.close(kept)
                found.seek(0)
                for line in found.readlines():
                    if not patterns.match(line):
                        os.write(2, line)


_ONE_AT_A_TIME = threading.Lock()


def _may_be_audio(path: AudioPlace, start: bytes) -> bool:
    """Whether a file with an MP3 name has an ID3 tag, an MPEG frame, or the magic bytes of another
    format; for other files libmpg123 prints many messages before libsndfile fails.
    """
    if start.startswith((*OWN_FORMATS, b"OggS")):
        return True
    with path.open("rb") as file:
        return re.search(rb"\xff[\xe2-\xff]", file.read(SEARCHED)) is not None


def _readable(path: AudioPlace) -> Path | BinaryIO:
    """What libsndfile reads a file from."""
    return path if isinstance(path, Path) else path.open("rb")


def _first_bytes(path: AudioPlace) -> bytes:
    """The first bytes of a file, and clear errors where libsndfile's are not."""
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
    if start.startswith(b"NIST_1A") and b"shorten" in start:
        raise DataError(
            f"{path} is SPHERE compressed by shorten, which cannot be read here: convert it with "
            f"sph2pipe -f wav"
        )
    return start
