"""Download a file, resumable, and complete in the end or not there at all."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from transduce import __version__
from transduce.errors import DataError

AT_ONCE = 1 << 16
TIMEOUT = 30.0  # timeout: seconds without a byte
ATTEMPTS = 5  # attempts in a row without progress
PAUSE = 1.0  # seconds before the second attempt, doubled before each further one
BUSY = (408, 425, 429, 500, 502, 503, 504)

Progress = Callable[[int], None]
"""Called repeatedly with the number of bytes received so far."""


class _Interrupted(Exception):
    """The download stopped before the end, and why; the received part is kept."""


class _Unreachable(_Interrupted):
    """The server could not be reached."""


def download(
    address: str, path: Path, size: int, is_right: Callable[[Path], bool], progress: Progress
) -> None:
    """Download a file of `size` bytes, which `is_right` accepts.

    Until it is complete it is beside `path`, under a name that ends in .part, and a later call
    resumes from there. Raises DataError if the server does not answer, has no such file, the
    connection breaks repeatedly (the received part is kept), the content is wrong, or it cannot be
    written (nothing is kept).
    """
    part = path.with_name(path.name + ".part")
    for _ in range(2):
        in_pieces = _receive_all(address, part, size, progress)
        if is_right(part):
            part.replace(path)
            return
        part.unlink()
        if not in_pieces:
            # parts may be of two versions, or one damaged; this came in one piece, so it is really
            # wrong
            break
    raise _other_bytes(address)


def _other_bytes(address: str) -> DataError:
    return DataError(
        f"{address} has other content than expected, so it was not kept; if you have the "
        f"files, name their folder with --from"
    )


def _receive_all(address: str, part: Path, size: int, progress: Progress) -> bool:
    """Receive until the file is complete; whether it came in several parts."""
    at_first = furthest = _size(part)
    in_pieces, fruitless = at_first > 0, 0
    while True:
        try:
            _receive(address, part, size, progress)
            return in_pieces
        except _Interrupted as broken:
            there = _size(part)
            # Compared with the most so far: without range requests, each attempt begins at the
            # first byte.
            fruitless = 1 if there > furthest else fruitless + 1
            furthest = max(furthest, there)
            if fruitless == ATTEMPTS or (there == at_first and isinstance(broken, _Unreachable)):
                raise DataError(_sentence(address, broken, there, size)) from None
            in_pieces = there > 0
        time.sleep(PAUSE * 2 ** (fruitless - 1))


def _receive(address: str, part: Path, size: int, progress: Progress) -> None:
    """Append to a partial file what one connection brings."""
    have = _size(part)
    if have > size:  # it is of another file
        part.unlink()
        have = 0
    if have == size:
        return
    with _ask(address, part, have) as answer:
        goes_on = answer.status == 206
        _write(part, goes_on, _chunks(answer, have if goes_on else 0, size, progress))
    if _size(part) == size:
        return
    # all announced bytes have come, but too few: another file, or an HTML page
    if answer.length == 0:
        part.unlink()
        raise _other_bytes(address)
    raise _Interrupted("the connection was closed")


def _ask(address: str, part: Path, have: int) -> HTTPResponse:
    headers = {"User-Agent": f"transduce/{__version__}"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(address, headers=headers)
    try:
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
        return answer
    except HTTPError as error:
        circle = 300 <= error.code < 400
        status = "with redirections without end" if circle else f"{error.code} ({error.reason})"
        if error.code == 416:  # 416 Range Not Satisfiable: the part is longer than the file
            part.unlink(missing_ok=True)
        elif error.code not in BUSY:
            raise DataError(
                f"{address} answers {status}; if you have the files, name their folder with --from"
            ) from None
        raise _Interrupted(f"it answers {status}") from None
    except URLError as error:
        raise _Unreachable(_reason(error.reason)) from None
    except TimeoutError as error:
        raise _Unreachable(_reason(error)) from None
    except (HTTPException, OSError) as error:
        raise _Interrupted(_reason(error)) from None


def _chunks(answer: HTTPResponse, start: int, size: int, progress: Progress) -> Iterator[bytes]:
    """Received chunks, never more than the size of the file; network errors become _Interrupted."""
    there = start
    while there < size:
        try:
            chunk = answer.read1(min(AT_ONCE, size - there))
        except (HTTPException, OSError) as error:
            raise _Interrupted(_reason(error)) from None
        if not chunk:
            return
        there += len(chunk)
        yield chunk
        progress(there)


def _write(part: Path, append: bool, chunks: Iterator[bytes]) -> None:
    try:
        with part.open("ab" if append else "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            os.fsync(file.fileno())
    except OSError as error:
        part.unlink(missing_ok=True)  # do not keep a partial file on a full disk
        raise DataError(
            f"{part} could not be written ({error.strerror or error}) and was removed; free some "
            f"space, or choose another place with --output"
        ) from None


def _sentence(address: str, broken: _Interrupted, there: int, size: int) -> str:
    if isinstance(broken, _Unreachable):
        return (
            f"{urlsplit(address).netloc} cannot be reached ({broken}); is this machine connected? "
            f"If you have the files, name their folder with --from"
        )
    kept = "; the received part is kept, and the same command resumes from there" if there else ""
    return f"only {there:,} of {size:,} bytes were received from {address} ({broken}){kept}"


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came for {TIMEOUT:g} seconds"
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(reason).split())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
