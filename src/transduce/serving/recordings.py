"""Recordings that clients upload: read, and converted where libsndfile does not read them, off the
event loop."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request

from transduce.data.audio import ffmpeg
from transduce.data.audio.recording import Recording
from transduce.errors import DataError
from transduce.serving.body import Upload, exchange_of
from transduce.serving.limits import Limits
from transduce.serving.threads import NotWantedError, Threads, check_wanted


@dataclass(frozen=True)
class Recorded:
    """A file that libsndfile reads, in the folder of its upload."""

    path: Path
    seconds: float
    name: str
    """As the client calls the file."""

    def named(self, text: str) -> str:
        """A text about the file, under its client's name."""
        return text.replace(str(self.path), self.name)


async def read_recordings(
    threads: Threads, request: Request, uploads: Sequence[Upload]
) -> list[Recorded | DataError]:
    """Each upload as a recording, or what is wrong with it. Raises Timeout and Overloaded."""
    exchange = exchange_of(request)
    found = await threads.run(lambda: [_read(one, exchange.limits) for one in uploads])
    for upload, one in zip(uploads, found, strict=True):
        if isinstance(one, Recorded) and one.path != upload.path:
            exchange.count_file(one.path.stat().st_size)
    return found


def _read(upload: Upload, limits: Limits) -> Recorded | DataError:
    def convert(path: Path, partial: bool) -> ffmpeg.Converted:
        maximum, seconds = limits.converted_bytes, math.inf  # the thread's work has a deadline
        made = path.with_name(f"{path.name}.wav")
        return ffmpeg.convert(path, made, partial, maximum, seconds, check_wanted)

    check_wanted()
    name = upload.filename or "the file"
    try:
        with Recording(upload.path, convert=convert) as recording:
            assert isinstance(recording.source, Path)  # the upload, or what was converted from it
            return Recorded(recording.source, recording.info.seconds, name)
    except DataError as error:
        return DataError(str(error).replace(str(upload.path), name))
    except NotWantedError:  # its folder was removed, while ffmpeg wrote into it
        shutil.rmtree(upload.path.parent, ignore_errors=True)
        raise
