"""Files that corpora are made of: archives and tables.

Archives are read safely: bounded size, and nothing is written by the names inside.
"""

from __future__ import annotations

import gzip
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, cast

from transduce.corpora.entry import Checksum
from transduce.errors import DataError
from transduce.storage.positions import Place

PACKED = ("", ".gz", ".xz")
MAX_BYTES = 1 << 30  # upper bound of the bytes read from an archive
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
"""What is raised where compressed bytes are damaged or truncated."""
AT_ONCE = 1 << 20


def read_bytes(path: Path) -> bytes:
    """The content of a file of known size, decompressed if its name ends in .gz or .xz."""
    with open_compressed(path) as file:
        return file.read()


def read_rows(path: Path) -> list[list[str]]:
    """The rows of a table, its header included; empty lines are left out."""
    lines = read_bytes(path).decode("utf-8").split("\n")
    return [line.split("\t") for line in lines if line]


def write_rows(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write a table, a row a line."""
    path.write_bytes("".join("\t".join(row) + "\n" for row in rows).encode("utf-8"))


def part_of(text: str, parts: int) -> int:
    """Which of so many parts of a corpus a text is in, by its hash: equal texts are together."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") % parts


def has_sum(path: Path, expected: Checksum, suffix: str) -> bool:
    """Whether a file, compressed as `suffix` says, has the expected checksum."""
    digest, size = sha256(), 0
    try:
        with open_compressed(path, suffix) as file:
            while block := file.read(AT_ONCE):
                size += len(block)
                if size > expected.bytes:
                    return False
                digest.update(block)
    except DAMAGED:
        return False
    return digest.hexdigest() == expected.sha256


def open_compressed(path: Place, suffix: str | None = None) -> BinaryIO:
    """The bytes of a file, decompressed as a suffix says: its own, unless one is given."""
    suffix = path.suffix if suffix is None else suffix
    if suffix not in (".gz", ".xz"):
        return path.open("rb")
    packed = path if isinstance(path, Path) else path.open("rb")
    return cast(BinaryIO, gzip.open(packed) if suffix == ".gz" else lzma.open(packed))


def members(
    path: Path, wanted: re.Pattern[str], maximum: int = MAX_BYTES
) -> Iterator[tuple[re.Match[str], bytes]]:
    """The regular files of a tar archive, or of a folder, whose full names match; in any order.

    Contents are returned and never written, and links are not followed: no path traversal. Raises
    DataError if the archive is damaged, or holds more than `maximum` bytes.
    """
    found = _files_below(path) if path.is_dir() else _files_within(path, maximum)
    total = 0
    try:
        for name, file in found:
            match = wanted.fullmatch(name)
            if match is None:
                continue
            contents = file.read(maximum - total + 1)
            total += len(contents)
            if total > maximum:
                raise _too_much(path, maximum)
            yield match, contents
    except (*DAMAGED, tarfile.TarError) as error:
        raise DataError(f"the archive {path} is damaged ({error}); get it again") from None


def _files_below(folder: Path) -> Iterator[tuple[str, BinaryIO]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                yield f"{folder.name}/{path.relative_to(folder).as_posix()}", file


def _files_within(path: Path, maximum: int) -> Iterator[tuple[str, BinaryIO]]:
    total = 0
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            total += member.size  # skipped files are decompressed too
            if total > maximum:
                raise _too_much(path, maximum)
            if member.isreg():
                yield member.name, cast(BinaryIO, archive.extractfile(member))


def _too_much(path: Path, maximum: int) -> DataError:
    return DataError(
        f"{path} holds more than {maximum:,} bytes, which is not plausible; get it again"
    )
