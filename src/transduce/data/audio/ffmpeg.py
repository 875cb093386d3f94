"""Audio of other formats (m4a, mp4, webm, aac, amr, videos), converted by the program ffmpeg.

ffmpeg is used where it is installed. A file is converted once, to a temporary WAV file; of a
process, the last few of these are kept.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from transduce.errors import DataError, TransduceWarning

PROGRAM = "ffmpeg"
MAX_SECONDS = 120.0  # of one conversion
MAX_BYTES = 2 << 30  # of one converted file: 9 hours of 16 bits at 32 kHz
MAX_KEPT = 64  # converted files
# Formats that are one file. Playlists, for one, would make ffmpeg open files that they name.
FORMATS = (
    "aac ac3 aiff amr amrnb amrwb asf au avi caf dv flac flv gsm loas matroska mov mp3 mpeg mpegts "
    "ogg rm tta w64 wav webm wv"
)
Key = tuple[int, str, int, int, bool]


class Unreadable(DataError):
    """ffmpeg has found no audio; the message is its own."""


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
        made.set_result(_convert(path, partial))
    except BaseException as error:
        with _LOCK:
            _CONVERTED.pop(key, None)
        made.set_exception(error)
        raise
    _forget_old()
    return made.result()


def _convert(path: Path, partial: bool) -> Converted:
    handle, name = tempfile.mkstemp(".wav", dir=_folder())
    os.close(handle)
    made = Path(name)
    try:
        damaged = _run(path, made, partial)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    warnings.warn(
        "audio that libsndfile does not read, such as m4a or webm, is converted by ffmpeg",
        TransduceWarning,
        stacklevel=1,
    )
    return Converted(made, damaged)


def _run(path: Path, made: Path, partial: bool) -> bool:
    """Whether the file is damaged. Raises DataError."""
    command = [shutil.which(PROGRAM) or PROGRAM, "-nostdin", "-hide_banner", "-loglevel", "error"]
    command += ["-y", "-threads", "1", "-protocol_whitelist", "file"]
    command += ["-format_whitelist", FORMATS.replace(" ", ","), "-i", f"file:{path.resolve()}"]
    command += ["-map", "0:a:0", "-c:a", "pcm_s16le", "-fs", str(MAX_BYTES)]
    command += ["-f", "wav", f"file:{made}"]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=MAX_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataError(
            f"{path} takes ffmpeg longer than {MAX_SECONDS:g} s: convert it to WAV or FLAC"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be converted: ffmpeg does not start ({error})") from None
    if made.stat().st_size >= MAX_BYTES:
        raise DataError(
            f"{path} has more audio than fits into {MAX_BYTES >> 30} GB: cut it into parts"
        )
    lines = ended.stderr.decode("utf-8", "replace").strip().splitlines()
    damaged = bool(ended.returncode or lines)
    nothing = made.stat().st_size == 0
    if nothing or (damaged and not partial):
        # Without the part of ffmpeg that says it, where in memory that is, and the file, which the
        # sentence around it names.
        last = re.sub(r"^\[[^]]*\] ", "", lines[-1]) if lines else "there is no audio"
        why = last.replace(f"file:{path.resolve()}: ", "").replace(f"file:{path.resolve()}", "it")
        if nothing:
            raise Unreadable(why[:200])
        raise DataError(
            f"{path} is truncated or damaged, says ffmpeg ({why[:200]}): copy it again, or give "
            f"--partial for what there is"
        )
    return damaged


def _folder() -> str:
    """A folder of this process, which is removed at its end."""
    with _LOCK:
        if os.getpid() not in _FOLDERS:
            _FOLDERS[os.getpid()] = tempfile.TemporaryDirectory(prefix="transduce-audio-")
        return _FOLDERS[os.getpid()].name


def forget(folder: Path) -> None:
    """Remove what was made of the files of a folder, and what is being made of them as soon as it
    is done; with the last of them, the folder of this process."""
    begin = f"{folder.resolve()}{os.sep}"
    with _LOCK:
        own = [key for key in _CONVERTED if key[0] == os.getpid() and key[1].startswith(begin)]
        dropped = [_CONVERTED.pop(key) for key in own]
        _DROPPED.update(dropped)
    for one in dropped:
        one.add_done_callback(_remove)
    _leave_folder()


def _remove(one: Future[Converted]) -> None:
    if one.exception() is None:
        one.result().path.unlink(missing_ok=True)
    with _LOCK:
        _DROPPED.discard(one)
    _leave_folder()


def _leave_folder() -> None:
    with _LOCK:
        if not _DROPPED and not any(key[0] == os.getpid() for key in _CONVERTED):
            made = _FOLDERS.pop(os.getpid(), None)
            if made is not None:
                made.cleanup()


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
_DROPPED: set[Future[Converted]] = set()
"""What is being made, and needed no more."""
_FOLDERS: dict[int, tempfile.TemporaryDirectory[str]] = {}
