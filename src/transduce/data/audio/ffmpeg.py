"""Audio of other formats (m4a, mp4, webm, aac, amr, videos), converted by the program ffmpeg.

ffmpeg is used where it is installed. `converted` converts a file once, to a temporary WAV file; of
a process, the last few of these are kept. `convert` writes a WAV file where the caller wants it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from transduce.errors import DataError, warn_once

PROGRAM = "ffmpeg"
MAX_SECONDS = 120.0  # of one conversion
MAX_BYTES = 2 << 30  # of one converted file: 9 hours of 16 bits at 32 kHz
MAX_KEPT = 64  # converted files
LOOK_SECONDS = 0.1  # between two looks whether the result is still wanted
# Formats that are one file. Playlists, for one, would make ffmpeg open files that they name.
FORMATS = (
    "aac ac3 aiff amr amrnb amrwb asf au avi caf dv flac flv gsm loas matroska mov mp3 mpeg mpegts "
    "ogg rm tta w64 wav webm wv"
)
# What ffmpeg says of files in which it has found no audio, in other words; the first that fit.
PLAINLY = {
    "moov atom not found": "its table of contents is missing, as where a recording was cut off",
    "No space left on device": "the folder for temporary files is full",
    "Invalid data found": "no audio format is recognised in it",
    "End of file": "it ends before any sound",
    "ended prematurely": "it ends before any sound",
}
NOTHING = "it has no sound"
WHAT_THERE_IS = "copy it again, or take what there is with --partial of transduce run"
Key = tuple[int, str, int, int, bool]


class Unreadable(DataError):
    """ffmpeg has found no audio; the message says why."""


class Converted(NamedTuple):
    """A WAV file that ffmpeg has made."""

    path: Path
    damaged: bool
    """Whether not all of the source could be decoded."""


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


def converted(path: Path, partial: bool = False) -> Converted:
    """A WAV file with the audio of a file. Raises DataError.

    partial: of a damaged file, whatever can be decoded.
    """
    state = path.stat()
    key = (os.getpid(), str(path.resolve()), state.st_mtime_ns, state.st_size, partial)
    with _LOCK:
        known = _CONVERTED.get(key)
        if known is None:
            made: Future[Converted] = Future()
            _CONVERTED[key] = made
        else:
            _CONVERTED.move_to_end(key)
    if known is not None:
        return known.result()
    try:
        made.set_result(convert(path, _new_file(), partial))
    except BaseException as error:
        with _LOCK:
            _CONVERTED.pop(key, None)
        made.set_exception(error)
        raise
    _forget_old()
    return made.result()


def convert(
    path: Path,
    made: Path,
    partial: bool = False,
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    check: Callable[[], None] | None = None,
) -> Converted:
    """Write the audio of a file into a WAV file, `made`. Raises DataError.

    max_bytes: of the WAV file. max_seconds: that ffmpeg may take. check: called from time to time;
    what it raises ends ffmpeg.
    """
    try:
        made.touch(mode=0o600)
        damaged = _run(
            path, made, partial, max_bytes or MAX_BYTES, max_seconds or MAX_SECONDS, check
        )
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    warn_once("audio that libsndfile does not read, such as m4a or webm, is converted by ffmpeg")
    return Converted(made, damaged)


def _run(
    path: Path,
    made: Path,
    partial: bool,
    max_bytes: int,
    max_seconds: float,
    check: Callable[[], None] | None,
) -> bool:
    """Whether the file is damaged. Raises DataError."""
    command = [shutil.which(PROGRAM) or PROGRAM, "-nostdin", "-hide_banner", "-loglevel", "error"]
    command += ["-y", "-threads", "1", "-protocol_whitelist", "file"]
    command += ["-format_whitelist", FORMATS.replace(" ", ","), "-i", f"file:{path.resolve()}"]
    command += ["-map", "0:a:0", "-c:a", "pcm_s16le", "-fs", str(max_bytes)]
    command += ["-f", "wav", f"file:{made}"]
    try:
        failed, errors = _finished(command, max_seconds, check)
    except subprocess.TimeoutExpired:
        raise DataError(
            f"{path} takes ffmpeg longer than {max_seconds:g} s: convert it to WAV or FLAC"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be converted: ffmpeg does not start ({error})") from None
    if made.stat().st_size >= max_bytes:
        raise DataError(
            f"{path} has more audio than fits into {max_bytes:,} bytes: cut it into parts"
        )
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    damaged = failed or bool(lines)
    if made.stat().st_size == 0:
        said = "\n".join(lines)
        raise Unreadable(
            next((plainly for words, plainly in PLAINLY.items() if words in said), NOTHING)
        )
    if damaged and not partial:
        raise DataError(f"{path} is truncated or damaged: {WHAT_THERE_IS}")
    return damaged


def _finished(
    command: list[str], max_seconds: float, check: Callable[[], None] | None
) -> tuple[bool, bytes]:
    """Run a program to its end: whether it has failed, and its standard error. Raises
    TimeoutExpired, OSError, and what `check` raises; the program has ended then, too."""
    end = time.monotonic() + max_seconds
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=pipe) as program:
        try:
            while True:
                left = end - time.monotonic()
                try:
                    _, errors = program.communicate(timeout=max(0.0, min(LOOK_SECONDS, left)))
                    return program.returncode != 0, errors
                except subprocess.TimeoutExpired:
                    if left <= LOOK_SECONDS:
                        raise
                if check is not None:
                    check()
        except BaseException:
            program.kill()
            raise


def _new_file() -> Path:
    handle, name = tempfile.mkstemp(".wav", dir=_folder())
    os.close(handle)
    return Path(name)


def _folder() -> str:
    """A folder of this process, which is removed at its end."""
    with _LOCK:
        if os.getpid() not in _FOLDERS:
            _FOLDERS[os.getpid()] = tempfile.TemporaryDirectory(prefix="transduce-audio-")
        return _FOLDERS[os.getpid()].name


def _forget_old() -> None:
    with _LOCK:
        while len(_CONVERTED) > MAX_KEPT:
            key = next((key for key, one in _CONVERTED.items() if one.done()), None)
            if key is None:
                return
            # Those who read it have it open.
            _CONVERTED.pop(key).result().path.unlink(missing_ok=True)


_LOCK = threading.Lock()
_CONVERTED: OrderedDict[Key, Future[Converted]] = OrderedDict()
_FOLDERS: dict[int, tempfile.TemporaryDirectory[str]] = {}
