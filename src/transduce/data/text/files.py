"""Files of a recipe: where they are, and their lines, whatever they are packed in."""

from __future__ import annotations

import difflib
import glob
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from transduce.errors import DataError
from transduce.storage import expanded

LONGEST = 100_000  # letters of a line that are read; a longer one is no pair to learn from
NEAR = 1000  # bytes before the end of what is read, in which a place to cut is looked for
MOST_BYTES = 1 << 26  # of a table's line, which holds several columns


def locate(name: str, folder: str | None) -> Path:
    """Where a file of a recipe is: relative names start at `folder`, ~ is the home folder."""
    return Path(folder or ".") / expanded(name)


def find_files(given: str | list[str], folder: str | None) -> list[str]:
    """Names as given, globs resolved and sorted. Raises DataError for a file that is not there."""
    found: list[str] = []
    for name in [given] if isinstance(given, str) else given:
        path = locate(name, folder)
        if path.is_file():
            found.append(name)
        elif path.is_dir():
            raise DataError(
                f"{path.absolute()} is a folder where a file is needed; name the files in it, "
                f"for example {name.rstrip('/')}/*.txt"
            )
        elif glob.has_magic(name):
            pattern = str(expanded(name))
            # root_dir keeps brackets in the folder's own name from being read as a pattern.
            matches = glob.glob(pattern, root_dir=folder or ".", recursive=True)  # noqa: PTH207
            files = sorted(match for match in matches if locate(match, folder).is_file())
            if not files:
                raise DataError(
                    f"no file matches {path.absolute()}; mend the pattern, or say where the files "
                    "are with data.folder=..."
                )
            found += files
        else:
            raise DataError(f"there is no file {path.absolute()}; {_other_name(path)}")
    return found


def _other_name(path: Path) -> str:
    """What to do about a file that is not there: the nearest name beside it, if one is near.

    One that ends otherwise is another thing: train.de is not meant by train.en.
    """
    there = path.parent.iterdir() if path.parent.is_dir() else ()
    beside = [other.name for other in there if other.suffix == path.suffix]
    near = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.8)
    if near:
        return f"did you mean {near[0]}?"
    return "mend the name, or say where the files are with data.folder=..."


def read_lines(
    name: str, folder: str | None, breaks: bool = False, table: bool = False
) -> Iterator[str]:
    """The lines of a text file without their ends, or with a \\n for each. Raises DataError.

    Of a line that is too long, a little more than LONGEST letters are read. With `breaks` it comes
    in pieces, nothing left out: some texts are one line. A line of a `table` comes whole, or is a
    DataError.
    """
    line = 0
    try:
        with _open(locate(name, folder)) as file:
            # A binary file is cut at \n only, and says which byte of which line is wrong.
            for line, raw in _raw_lines(file, name, breaks, table):
                bare = raw[:-1] if raw.endswith(b"\n") else raw
                bare = bare[:-1] if bare.endswith(b"\r") else bare
                if line == 1:
                    bare = bare.removeprefix(b"\xef\xbb\xbf")
                text = bare.decode("utf-8")
                yield text + "\n" if breaks and raw.endswith(b"\n") else text
    except UnicodeDecodeError as error:
        start, bad = error.start, error.object[error.start]
        if line == 1 and error.object[:2] in (b"\xff\xfe", b"\xfe\xff"):
            hint = f"it looks like UTF-16; convert it with `iconv -f UTF-16 -t UTF-8 {name}`"
        else:
            hint = "convert the file, for example with `iconv -f LATIN1 -t UTF-8`"
        raise DataError(
            f"{name}:{line}: byte {start + 1} of the line (0x{bad:02x}) is not UTF-8; {hint}"
        ) from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        if line == 0 and not _is_packed(locate(name, folder)):
            raise DataError(
                f"{name} is not compressed, whatever its name says: take "
                f"{Path(name).suffix} off the name, or compress it"
            ) from None
        raise DataError(
            f"{name}:{line + 1}: the compressed file is damaged or cut short here ({error}); "
            "fetch or compress it again"
        ) from None
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from None
    if line == 0:
        raise DataError(f"{name} is empty; give a file with at least one line")


def _raw_lines(file: BinaryIO, name: str, pieces: bool, table: bool) -> Iterator[tuple[int, bytes]]:
    """The bytes of each line and its number, in memory that has a bound."""
    most = MOST_BYTES if table else 4 * LONGEST + 2 * NEAR
    line = 0
    while raw := file.readline(most):
        line += 1
        ended = raw.endswith(b"\n") or len(raw) < most
        if ended:
            yield line, raw
            continue
        if table:
            raise DataError(
                f"{name}:{line}: the line has more than {most >> 20} MB; cut it into several"
            )
        kept, rest = _at_a_letter(raw)
        yield line, kept
        while not ended:
            more = file.readline(most)
            ended = more.endswith(b"\n") or len(more) < most
            if pieces:
                kept, rest = (rest + more, b"") if ended else _at_a_letter(rest + more)
                if kept:
                    yield line, kept


def _at_a_letter(raw: bytes) -> tuple[bytes, bytes]:
    """Bytes cut before a space if one is near, else where no letter of UTF-8 is cut in two."""
    space = raw.rfind(b" ", len(raw) - NEAR)
    if space > 0:
        return raw[:space], raw[space:]
    end = len(raw)
    # A \r at the end of what is kept would be taken for the line's.
    while end > len(raw) - NEAR and (raw[end - 1] >= 0x80 or raw[end - 1] == 0x0D):
        end -= 1
        if raw[end] >= 0xC0:
            break
    return raw[:end], raw[end:]


def _is_packed(path: Path) -> bool:
    """Whether a file begins as gzip and xz files do."""
    with path.open("rb") as file:
        return file.read(6).startswith((b"\x1f\x8b", b"\xfd7zXZ\x00"))


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path))
    if path.suffix == ".xz":
        return cast(BinaryIO, lzma.open(path))
    return path.open("rb")
