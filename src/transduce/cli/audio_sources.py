"""Audio that a command line gives in other ways than as a file that can be read as it is.

That is: standard input, raw samples without a header, and what there is of a truncated file.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from transduce.errors import DataError

if TYPE_CHECKING:
    from transduce.storage.members import AudioPlace
    from transduce.tasks.audio_input import AudioSegment

STANDARD_INPUT = "-"
RAW = (".raw", ".pcm")
MAX_BYTES = 2 << 30  # of standard input
AT_ONCE = 1 << 20
# The first bytes of audio, where lines with names of files could be as well.
MAGIC = (
    b"RIFF",
    b"RF64",
    b"fLaC",
    b"OggS",
    b"ID3",
    b"FORM",
    b"NIST_1A",
    b".snd",
    b"\xff\xfb",
    b"\x1aE\xdf\xa3",  # Matroska and WebM
    b"caff",
    b"#!AMR",
)


def is_audio(stream: BinaryIO) -> bool:
    """Whether what comes on a stream that can be peeked into is audio, and not text."""
    if isinstance(stream, io.BufferedReader):
        start = stream.peek(16)[:16]
    elif stream.seekable():
        start = stream.read(16)
        stream.seek(-len(start), io.SEEK_CUR)
    else:
        return False
    return _has_magic(start) or b"\0" in start


def _has_magic(start: bytes) -> bool:
    return start.startswith(MAGIC) or start[4:8] == b"ftyp"


def audio_sources(
    groups: Iterator[list[str]],
    rate: int,
    raw_rate: int | None,
    partial: bool,
    known: Collection[str] = (),
) -> Iterator[list[str]]:
    """The same sources, those that are not read as files as their samples.

    rate: of the model. raw_rate: of raw samples; None: there are none. known: the tags that a
    source may begin with. Raises DataError.
    """
    for group in groups:
        yield [_source(one, rate, raw_rate, partial, known) for one in group]


def standard_input(rate: int, raw_rate: int | None, partial: bool) -> Iterator[list[str]]:
    """The audio of standard input: a file of any format, or raw samples. Raises DataError."""
    with tempfile.TemporaryDirectory(prefix="transduce-") as folder:
        path = Path(folder) / "standard input"
        size = 0
        with path.open("wb") as file:
            while data := sys.stdin.buffer.read(AT_ONCE):
                size += len(data)
                if size > MAX_BYTES:
                    raise DataError(
                        f"standard input has more than {MAX_BYTES >> 30} GB: give it as files"
                    )
                file.write(data)
        try:
            yield [_samples("standard input", path, rate, raw_rate, partial)]
        except DataError as error:
            why = str(error).replace(str(path), "standard input")
            if raw_rate is None and not _has_magic(_bytes(path, 16)):
                why += "; of raw samples (16 bits, mono), give the --rate"
            raise DataError(why) from None


def _source(
    source: str, rate: int, raw_rate: int | None, partial: bool, known: Collection[str]
) -> str:
    from transduce.data.audio.read import decode_all, parse_place
    from transduce.data.text.tags import without_tags

    path, start, end = parse_place(without_tags(source, known)[1])
    raw = path.suffix.lower() in RAW
    try:
        if raw and raw_rate is not None:
            return _samples(source, path, rate, raw_rate, partial, start, end)
        if partial and not raw:
            try:
                decode_all(path)
            except DataError:
                return _samples(source, path, rate, None, True, start, end)
    except DataError as error:
        return _failed(source, str(error))
    return source


def _samples(
    name: str,
    path: AudioPlace,
    rate: int,
    raw_rate: int | None,
    partial: bool,
    start: float = 0.0,
    end: float | None = None,
) -> AudioSegment:
    import numpy as np

    from transduce.data.audio.corpus import to_int16
    from transduce.data.audio.raw import FLOATS, looks_like_floats
    from transduce.data.audio.read import audio_from_samples, read_audio
    from transduce.tasks.audio_input import AudioSegment

    if raw_rate is None:
        audio = read_audio(path, rate, start, end, partial)
    else:
        data = _bytes(path)
        samples = np.frombuffer(data[: len(data) // 2 * 2], "<i2")
        if looks_like_floats(samples):
            raise DataError(f"{name} {FLOATS}")
        first = round(start * raw_rate)
        last = None if end is None else round(end * raw_rate)
        audio = audio_from_samples(samples[first:last], raw_rate, rate, name)
    segment = AudioSegment.of(name, to_int16(audio.samples))
    segment.remark, segment.silent = audio.remark, audio.silent
    return segment


def _bytes(path: AudioPlace, size: int = -1) -> bytes:
    """The first bytes of a file; all, if no size is given."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _failed(name: str, why: str) -> AudioSegment:
    import numpy as np

    from transduce.tasks.audio_input import AudioSegment

    segment = AudioSegment.of(name, np.zeros(0, np.int16))
    segment.remark, segment.failed = why, True
    return segment
