"""Downloading a file: in one go or in several, and in the end whole or not at all."""

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
PATIENCE = 30.0  # seconds without a byte
TRIES = 5  # that bring nothing new, one after the other
PAUSE = 1.0  # seconds before the second of them, doubled before each further one
BUSY = (408, 425, 429, 500, 502, 503, 504)

Progress = Callable[[int], None]
"""Is told, again and again, how many bytes of the file are there."""


class _Broken(Exception):
    """It stopped before the end, and why; what has come is kept."""


class _Unreachable(_Broken):
    """It did not even begin."""


def download(
    address: str, path: Path, size: int, is_right: Callable[[Path], bool], progress: Progress
) -> None:
    """Fetch a file of so many bytes, which `is_right` accepts.

    Until it is whole it lies beside `path`, under a name that ends in .part, and a later call goes
    on from there. Raises DataError where nobody answers, where there is no such file, where the
    connection breaks again and again (what came is kept), where the bytes are wrong, and where they
    cannot be written (nothing is kept).
    """
    part = path.with_name(path.name + ".part")
    for _ in range(2):
        in_pieces = _receive_all(address, part, size, progress)
        if is_right(part):
            part.replace(path)
            return
        part.unlink()
        if not in_pieces:
            break  # pieces may be of two versions, or one damaged; this came as it is there
    raise _other_bytes(address)


def _other_bytes(address: str) -> DataError:
    return DataError(
        f"{address} holds other bytes than it should, so none of them were kept; if you have the "
        f"files, name their folder with --from"
    )


def _receive_all(address: str, part: Path, size: int, progress: Progress) -> bool:
    """Go on until all is there; whether it came in pieces."""
    at_first = furthest = _size(part)
    in_pieces, fruitless = at_first > 0, 0
    while True:
        try:
            _receive(address, part, size, progress)
            return in_pieces
        except _Broken as broken:
            there = _size(part)
            # Against the furthest so far: without ranges, each try begins at the first byte.
            fruitless = 1 if there > furthest else fruitless + 1
            furthest = max(furthest, there)
            if fruitless == TRIES or (there == at_first and isinstance(broken, _Unreachable)):
                raise DataError(_sentence(address, broken, there, size)) from None
            in_pieces = there > 0
        time.sleep(PAUSE * 2 ** (fruitless - 1))


def _receive(address: str, part: Path, size: int, progress: Progress) -> None:
    """Add to a part what one connection brings."""
    have = _size(part)
    if have > size:  # of something else
        part.unlink()
        have = 0
    if have == size:
        return
    with _ask(address, part, have) as answer:
        goes_on = answer.status == 206
        _write(part, goes_on, _chunks(answer, have if goes_on else 0, size, progress))
    if _size(part) == size:
        return
    if answer.length == 0:  # all that was announced has come: another file, or a page for people
        part.unlink()
        raise _other_bytes(address)
    raise _Broken("the connection was closed")


def _ask(address: str, part: Path, have: int) -> HTTPResponse:
    headers = {"User-Agent": f"transduce/{__version__}"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(address, headers=headers)
    try:
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=PATIENCE)
        return answer
    except HTTPError as error:
        circle = 300 <= error.code < 400
        said = "with redirections without end" if circle else f"{error.code} ({error.reason})"
        if error.code == 416:  # the part is longer than what is there
            part.unlink(missing_ok=True)
        elif error.code not in BUSY:
            raise DataError(
                f"{address} answers {said}; if you have the files, name their folder with --from"
            ) from None
        raise _Broken(f"it answers {said}") from None
    except URLError as error:
        raise _Unreachable(_reason(error.reason)) from None
    except TimeoutError as error:
        raise _Unreachable(_reason(error)) from None
    except (HTTPException, OSError) as error:
        raise _Broken(_reason(error)) from None


def _chunks(answer: HTTPResponse, start: int, size: int, progress: Progress) -> Iterator[bytes]:
    """What arrives, never more than the file's size; errors of the network become _Broken."""
    there = start
    while there < size:
        try:
            chunk = answer.read1(min(AT_ONCE, size - there))
        except (HTTPException, OSError) as error:
            raise _Broken(_reason(error)) from None
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
        part.unlink(missing_ok=True)  # a full disk has better uses
        raise DataError(
            f"{part} could not be written ({error.strerror or error}) and was removed; free some "
            f"space, or choose another place with --output"
        ) from None


def _sentence(address: str, broken: _Broken, there: int, size: int) -> str:
    if isinstance(broken, _Unreachable):
        return (
            f"{urlsplit(address).netloc} cannot be reached ({broken}); is this machine connected? "
            f"If you have the files, name their folder with --from"
        )
    kept = "; what came is kept, and the same command goes on from there" if there else ""
    return f"only {there:,} of {size:,} bytes came from {address} ({broken}){kept}"


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came for {PATIENCE:g} seconds"
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(reason).split())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
