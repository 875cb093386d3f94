"""Text files of a recipe: finding them, and reading their lines, compressed or not."""

from __future__ import annotations

import difflib
import glob
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import SEEK_CUR, BufferedReader, BytesIO
from pathlib import Path
from typing import BinaryIO

from transduce.corpora.unpack import DAMAGED, open_compressed
from transduce.errors import DataError, unreadable
from transduce.storage import expanded
from transduce.storage.positions import Place, Version, open_at, place_at
from transduce.storage.remote import RemotePath

LONGEST = 100_000  # characters of a line that are read; a longer one is not a useful pair
BOM = b"\xef\xbb\xbf"  # some editors begin a file with it
UTF16 = (b"\xff\xfe", b"\xfe\xff")  # how a file of UTF-16 begins
NEAR = 1000  # bytes before the limit in which a space to cut at is searched
MAX_BYTES = 1 << 26  # longest line of a table, which holds several columns
BLOCK = 1 << 17  # bytes whose lines are read at once


Some = Callable[[bytes], tuple[int, list[int], list[str]]]
"""Of a block of whole lines: how many there are, and the numbers from 0 and the texts of some."""


@dataclass(frozen=True)
class Span:
    """A block of lines of a text file, to be read by position."""

    start: int
    """In bytes."""
    end: int
    line: int
    """The number of its first line, from 1."""
    lines: int
    version: Version
    copy: Path | None = None
    """A copy of the file in separately compressed blocks; `start` and `end` are places in it."""


def locate(name: str, folder: str | None) -> Place:
    """The path or address of a file of a recipe: relative names start at `folder`, ~ is the home
    folder.
    """
    return place_at(name, folder or ".")


def locate_here(name: str, folder: str | None) -> Path:
    """The path of what must be on this machine. Raises DataError for an address."""
    place = locate(name, folder)
    if isinstance(place, RemotePath):
        raise DataError(f"{place} must be on this machine: download it, and give its path")
    return place


def suffix_of(name: str) -> str:
    """How a name ends, without .gz or .xz. Raises DataError for compressed Parquet."""
    file = place_at(name).name  # of a web address, without its query
    packed = Path(file).suffix in (".gz", ".xz")
    suffix = Path(Path(file).stem if packed else file).suffix
    if packed and suffix == ".parquet":
        raise DataError(f"{name}: Parquet is compressed by itself; decompress the file")
    return suffix


def find_files(names: str | list[str], folder: str | None) -> list[str]:
    """Names as given, globs expanded and sorted. Raises DataError for a missing file."""
    found: list[str] = []
    for name in [names] if isinstance(names, str) else names:
        path = locate(name, folder)
        if path.is_file():
            found.append(name)
        elif path.is_dir():
            raise DataError(
                f"{path.absolute()} is a folder where a file is needed; name the files in it, "
                f"for example {name.rstrip('/')}/*.txt"
            )
        elif isinstance(path, RemotePath):
            found += _remote_files(path)
        elif glob.has_magic(name):
            pattern = str(expanded(name))
            # root_dir keeps brackets in the folder's own name from being read as a pattern.
            matches = glob.glob(pattern, root_dir=folder or ".", recursive=True)  # noqa: PTH207
            files = sorted(match for match in matches if locate(match, folder).is_file())
            if not files:
                raise DataError(
                    f"no file matches {path.absolute()}; correct the pattern, or say where the "
                    "files are with data.folder=..."
                )
            found += files
        else:
            raise DataError(f"there is no file {path.absolute()}; {_other_name(path)}")
    return found


def _remote_files(path: RemotePath) -> list[str]:
    """The files that match a pattern. Raises DataError where there are none."""
    matches = path.glob() if path.is_pattern else []
    if not matches:
        what = "no file matches" if path.is_pattern else "there is no file"
        raise DataError(f"{what} {path}; correct the name, or give data.folder=...")
    return matches


def _other_name(path: Path) -> str:
    """A suggestion for a missing file: the most similar name beside it, if there is one.

    A different ending does not count as similar: train.de is not meant by train.en.
    """
    there = path.parent.iterdir() if path.parent.is_dir() else ()
    beside = [other.name for other in there if other.suffix == path.suffix]
    near = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.8)
    if near:
        return f"did you mean {near[0]}?"
    return "correct the name, or say where the files are with data.folder=..."


def read_lines(
    name: str,
    folder: str | None,
    breaks: bool = False,
    table: bool = False,
    span: Span | None = None,
) -> Iterator[str]:
    r"""The lines of a text file without their ends, or with a \n for each. Raises DataError.

    An overlong line is cut a little after LONGEST characters. With `breaks` it comes in pieces,
    without loss: some texts are one line. A line of a `table` comes whole, or is a DataError. With
    `span`, these lines alone.
    """
    for _, _, lines in read_blocks(name, folder, breaks, table, span):
        yield from lines


def read_blocks(
    name: str,
    folder: str | None,
    breaks: bool = False,
    table: bool = False,
    span: Span | None = None,
    some: Some | None = None,
) -> Iterator[tuple[int, Sequence[int], Sequence[str]]]:
    """The lines as `read_lines` gives them, in blocks: the number of the last line so far, from 1,
    and the numbers and the texts of lines.

    some: of a file on this machine that is not compressed, only the lines that this finds, and
    those of the first block and of each that needs a closer look.
    """
    line, maximum = 0, MAX_BYTES if table else 4 * LONGEST + 2 * NEAR
    if span is not None and not breaks and (lines := block_lines(name, folder, span)) is not None:
        last = span.line + len(lines)
        yield last - 1, range(span.line, last), lines
        return
    try:
        with _open(locate(name, folder), span) as file:
            if span is None:
                for end, numbers, texts in _plain_blocks(file, min(BLOCK, maximum), some):
                    line = end
                    yield end, numbers, [f"{text}\n" for text in texts] if breaks else texts
            # Read as binary: split at \n only, and decoding errors can name line and byte.
            first = line if span is None else span.line - 1
            for line, raw in _raw_lines(file, name, breaks, table, maximum, first, span):
                bare = raw[:-1] if raw.endswith(b"\n") else raw
                bare = bare[:-1] if bare.endswith(b"\r") else bare
                if line == 1:
                    bare = bare.removeprefix(BOM)
                text = bare.decode("utf-8")
                yield line, (line,), (text + "\n" if breaks and raw.endswith(b"\n") else text,)
    except UnicodeDecodeError as error:
        start, bad = error.start, error.object[error.start]
        if line == 1 and error.object[:2] in UTF16:
            hint = f"it looks like UTF-16; convert it with `iconv -f UTF-16 -t UTF-8 {name}`"
        elif b"\0" in error.object:
            hint = "nor has a text zero bytes: it is a file of another kind; save it as text"
        else:
            hint = _other_encoding(name, error.object, start)
        raise DataError(
            f"{name}:{line}: byte {start + 1} of the line (0x{bad:02x}) is not UTF-8; {hint}"
        ) from None
    except DAMAGED as error:
        if line == 0 and not is_compressed(locate(name, folder)):
            raise DataError(
                f"{name} is not compressed, despite its name: remove "
                f"{Path(name).suffix} from the name, or compress it"
            ) from None
        raise DataError(
            f"{name}:{line + 1}: the compressed file is damaged or truncated here ({error}); "
            "download or compress it again"
        ) from None
    except OSError as error:
        raise unreadable(name, error) from None
    if line == 0:
        raise DataError(f"{name} is empty; give a file with at least one line")


def _other_encoding(name: str, line: bytes, place: int) -> str:
    """How to convert a line that is not UTF-8, with the word as it is in the usual encoding."""
    first, end = line.rfind(b" ", 0, place) + 1, line.find(b" ", place)
    first = max(first, line.rfind(b"\t", 0, place) + 1, place - 20)
    tab = line.find(b"\t", place)
    ends = [one for one in (end, tab, place + 20) if one > 0]
    word = line[first : min(ends)].decode("cp1252", "replace").strip()
    command = f"`iconv -f WINDOWS-1252 -t UTF-8 {name} > NEW`"
    return f"if {word!r} is right there, it is Windows-1252: {command}; else, another encoding"


def block_lines(name: str, folder: str | None, span: Span) -> list[str] | None:
    """The lines of a block, read at once, which is several times faster than one by one; None
    where some need a closer look: a line is very long, has another break inside, or is not UTF-8.
    """
    try:
        with _open(locate(name, folder), span) as file:
            raw = file.read() if span.copy is not None else file.read(span.end - span.start)
        text = raw.decode("utf-8")
    except (UnicodeDecodeError, OSError):
        return None
    lines = text.removesuffix("\n").split("\n")
    if len(lines) != span.lines or text.splitlines() != lines:
        return None
    if max(map(len, lines)) > LONGEST or (span.line == 1 and raw.startswith((BOM, *UTF16))):
        return None
    return lines


def _open(path: Place, span: Span | None) -> BinaryIO:
    """The decompressed bytes of a file; with `span`, from its start on."""
    if span is None:
        return open_compressed(path)
    if span.copy is None:
        return open_at(path, span.start, span.version, span.end)
    with open_at(span.copy, span.start) as file:
        packed = file.read(span.end - span.start)
    try:
        return BytesIO(zlib.decompress(packed))
    except zlib.error as error:
        raise DataError(
            f"{span.copy}, a copy of {path} in the cache, is damaged ({error}); remove it, and it "
            f"is made again"
        ) from None


def _plain_blocks(
    file: BinaryIO, size: int, some: Some | None
) -> Iterator[tuple[int, Sequence[int], list[str]]]:
    """The lines of a file on this machine in blocks, several times faster than one by one; of
    blocks after the first, `some` of them.

    It ends before the first block of `size` bytes that has no whole line, or one that is not UTF-8;
    the file then stands there.
    """
    if not isinstance(file, BufferedReader) or not file.seekable():
        return
    line = 0
    while block := file.read(size):
        whole = block[: block.rfind(b"\n") + 1]
        try:
            text = whole.decode("utf-8")
        except UnicodeDecodeError:
            whole = b""
        file.seek(len(whole) - len(block), SEEK_CUR)
        if not whole:
            return
        if line and some is not None:
            count, places, lines = some(whole)
            numbers: Sequence[int] = [line + 1 + place for place in places]
        else:
            if not line:
                text = text.removeprefix("\ufeff")
            if "\r" in text:
                text = text.replace("\r\n", "\n")
            lines = text[:-1].split("\n")
            count = len(lines)
            numbers = range(line + 1, line + 1 + count)
        line += count
        yield line, numbers, lines


def _raw_lines(
    file: BinaryIO,
    name: str,
    pieces: bool,
    table: bool,
    maximum: int,
    line: int,
    span: Span | None,
) -> Iterator[tuple[int, bytes]]:
    """The bytes of each line and its number, after so many lines, in bounded memory.

    maximum: bytes of a line that are read at once.
    """
    last = None if span is None else line + span.lines
    while line != last and (raw := file.readline(maximum)):
        line += 1
        ended = raw.endswith(b"\n") or len(raw) < maximum
        if ended:
            yield line, raw
            continue
        if table:
            raise DataError(f"{name}:{line}: the line has more than {maximum >> 20} MB; split it")
        kept, rest = _cut_at_character(raw)
        yield line, kept
        while not ended:
            more = file.readline(maximum)
            ended = more.endswith(b"\n") or len(more) < maximum
            if pieces:
                kept, rest = (rest + more, b"") if ended else _cut_at_character(rest + more)
                if kept:
                    yield line, kept


def _cut_at_character(raw: bytes) -> tuple[bytes, bytes]:
    """Bytes cut at a nearby space, else at a character boundary of UTF-8."""
    space = raw.rfind(b" ", len(raw) - NEAR)
    if space > 0:
        return raw[:space], raw[space:]
    end = len(raw)
    # A \r at the end of the first part would be taken for a line ending.
    while end > len(raw) - NEAR and (raw[end - 1] >= 0x80 or raw[end - 1] == 0x0D):
        end -= 1
        if raw[end] >= 0xC0:
            break
    return raw[:end], raw[end:]


def is_compressed(path: Place) -> bool:
    """Whether a file begins with the magic bytes of gzip or xz."""
    with path.open("rb") as file:
        return file.read(6).startswith((b"\x1f\x8b", b"\xfd7zXZ\x00"))
