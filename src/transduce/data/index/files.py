"""The index of a file: where each block of its lines begins, or the row groups of Parquet.

Plain text is indexed where it lies. A compressed file cannot be read from its middle: it is copied
into the cache once, in blocks that are compressed one by one (zlib, somewhat larger than gzip). An
index is a safetensors file with checksums; one that does not belong to its file any more, or is
damaged, is made again.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from transduce.corpora.unpack import DAMAGED, open_compressed
from transduce.data.cache.eviction import evict, note_use
from transduce.data.text.files import Span, locate
from transduce.data.text.parquet import RowGroup, opened_parquet
from transduce.errors import CheckpointError, DataError
from transduce.storage import GB, read_tensors, write_file, write_tensors
from transduce.storage.positions import Place, Version, open_at, version_of

FORMAT = 1  # format version: increase when the content of an index changes
SUFFIX = ".index.safetensors"
CHUNK = 1 << 23  # bytes that are searched for line breaks at a time
BUFFER = 1 << 20
LARGE = 10**9  # bytes; indexing a larger file is announced
MAX_LINE = 1 << 30  # bytes of a line in a compressed file
LEVEL = 1  # of zlib: its fastest
GROUP = 16_384  # rows; larger row groups are copied into blocks

Say = Callable[[str], object]


@dataclass(frozen=True)
class FileIndex:
    """The blocks of a file. The rows of line files are their lines, empty ones included."""

    name: str
    """As in the recipe."""
    version: Version
    rows: int
    """Of all blocks."""
    places: NDArray[np.int64]
    """Where each block begins, and where the last ends: in bytes, or of row groups in rows."""
    block: int = 0
    """Rows of each block but the last; 0: row groups of Parquet, as large as they are."""
    copy: Path | None = None
    """In the cache, in compressed blocks: `places` are in it."""

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self.places) - 1

    @property
    def sizes(self) -> NDArray[np.int32]:
        """The rows of each block; made anew, as an index of a billion rows is to be small."""
        if not self.block:
            return np.diff(self.places).astype(np.int32)
        found = np.full(len(self), self.block, np.int32)
        found[-1:] = self.rows - self.block * (len(self) - 1)
        return found

    def span(self, block: int) -> Span | RowGroup:
        start, end = (int(place) for place in self.places[block : block + 2])
        if not self.block:
            return RowGroup(block, start, self.version)
        first = self.block * block
        rows = min(self.block, self.rows - first)
        return Span(start, end, first + 1, rows, self.version, self.copy)


def index_lines(name: str, folder: str | None, block: int, cache: Path, say: Say) -> FileIndex:
    """The index of a text file, plain or compressed, from the cache or made; `block` lines each.

    Raises DataError where the file cannot be read, or is empty.
    """
    path = locate(name, folder).absolute()
    version = version_of(path)
    packed = path.suffix in (".gz", ".xz")
    key = sha256(json.dumps([FORMAT, str(path), block]).encode()).hexdigest()
    place, copy = cache / f"{key}{SUFFIX}", cache / f"{key}.blocks"
    offsets, stored = _load(place)
    if offsets is not None and stored.get("version") == vars(version):
        if not packed:
            note_use(place)
            return FileIndex(name, version, int(stored["lines"]), offsets, block)
        if copy.is_file() and copy.stat().st_size == offsets[-1]:
            note_use(place, copy)
            return FileIndex(name, version, int(stored["lines"]), offsets, block, copy)
        say(f"the copy of {name} in the cache is damaged or gone; it is made again")
    elif stored:
        say(f"{name} has changed since it was indexed; it is indexed again")
    elif place.exists():
        say(f"the index of {name} in the cache is damaged; it is made again")
    if packed:
        say(_copied(name, version.size, cache))
        lines, offsets = _write_blocks(copy, _whole_lines(name, path), block)
        say_all(say, evict(cache))
    else:
        if version.size > LARGE:
            say(f"{name} ({version.size / GB:.1f} GB) is indexed, once.")
        lines, offsets = _find_blocks(path, version, block)
    if not lines:
        raise DataError(f"{name} is empty; give a file with at least one line")
    _save(place, offsets, {"name": name, "version": vars(version), "lines": lines}, say)
    return FileIndex(name, version, lines, offsets, block, copy if packed else None)


def index_groups(name: str, folder: str | None) -> FileIndex | None:
    """The row groups of a Parquet file; None where some are too large to be read at random."""
    path = locate(name, folder)
    version = version_of(path)
    with opened_parquet(str(path), name) as file:
        groups = file.metadata
        rows = [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]
    if max(rows, default=0) > GROUP:
        return None
    if not sum(rows):
        raise DataError(f"{name} is empty; give a file with at least one row")
    return FileIndex(name, version, sum(rows), np.cumsum([0, *rows], dtype=np.int64))


def index_texts(
    name: str, key: str, texts: Callable[[], Iterable[str]], block: int, cache: Path, say: Say
) -> FileIndex:
    """Texts without line breaks, copied into the cache in compressed blocks, once for each key.

    For what cannot be read by position where it lies.
    """
    key = sha256(json.dumps([FORMAT, key, block]).encode()).hexdigest()
    place, copy = cache / f"{key}{SUFFIX}", cache / f"{key}.blocks"
    version = Version(0, key)
    offsets, stored = _load(place)
    if offsets is not None and copy.is_file() and copy.stat().st_size == offsets[-1]:
        note_use(place, copy)
        return FileIndex(name, version, int(stored["lines"]), offsets, block, copy)
    say(_copied(name, 0, cache))
    raw = (text.encode("utf-8", "surrogatepass") + b"\n" for text in texts())
    lines, offsets = _write_blocks(copy, raw, block)
    say_all(say, evict(cache))
    _save(place, offsets, {"name": name, "lines": lines}, say)
    return FileIndex(name, version, lines, offsets, block, copy)


def say_all(say: Say, sentences: Iterable[str]) -> None:
    for sentence in sentences:
        say(sentence)


def _copied(name: str, size: int, cache: Path) -> str:
    much = f" (somewhat more than {size / GB:.1f} GB)" if size > LARGE else ""
    return f"{name} cannot be read from its middle: it is copied to {cache}{much}, once."


def _find_blocks(path: Place, version: Version, block: int) -> tuple[int, NDArray[np.int64]]:
    """The number of lines, and the byte at which each block of them begins; last, the end."""
    found, lines, begin, ends = [np.zeros(1, np.int64)], 0, 0, True
    try:
        with open_at(path, 0, version) as file:
            while chunk := file.read(CHUNK):
                breaks = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
                # The breaks that end lines block, 2 block, 3 block, ... of the file.
                last = breaks[block - 1 - lines % block :: block]
                found.append(begin + last.astype(np.int64) + 1)
                lines, begin, ends = lines + len(breaks), begin + len(chunk), chunk[-1:] == b"\n"
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if not ends:
        lines += 1
    starts = np.concatenate(found)
    if not begin or starts[-1] == begin:
        return lines, starts
    return lines, np.append(starts, begin)


def _whole_lines(name: str, path: Place) -> Iterator[bytes]:
    """The lines of a compressed file, with their ends."""
    try:
        with open_compressed(path) as packed, BufferedReader(cast(Any, packed), BUFFER) as file:
            while raw := file.readline(MAX_LINE):
                if len(raw) == MAX_LINE:
                    raise DataError(
                        f"{name} has a line of more than {MAX_LINE >> 30} GB; decompress the file, "
                        f"or break its lines"
                    )
                yield raw
    except DAMAGED as error:
        raise DataError(
            f"{name}: the compressed file is damaged or truncated ({error}); download or compress "
            "it again"
        ) from None
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from None


def _write_blocks(
    path: Path, raw_lines: Iterator[bytes], block: int
) -> tuple[int, NDArray[np.int64]]:
    """Write lines in blocks that are compressed one by one, atomically."""
    count, offsets = 0, [0]

    def write(part: Path) -> None:
        nonlocal count
        with part.open("wb") as file:
            while some := list(islice(raw_lines, block)):
                count += len(some)
                file.write(packed := zlib.compress(b"".join(some), LEVEL))
                offsets.append(offsets[-1] + len(packed))

    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, write)
    return count, np.array(offsets, np.int64)


def _load(path: Path) -> tuple[NDArray[np.int64] | None, dict[str, Any]]:
    """The offsets and facts of an index; none where it is missing or damaged."""
    try:
        tensors, facts = read_tensors(path)
        offsets = tensors["offsets"].numpy()
        lines = facts["lines"]
    except (CheckpointError, KeyError):
        return None, {}
    sound = offsets.ndim == 1 and len(offsets) > 1 and isinstance(lines, int)
    return (offsets, facts) if sound else (None, {})


def _save(path: Path, offsets: NDArray[np.int64], facts: dict[str, Any], say: Say) -> None:
    try:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, {"offsets": torch.from_numpy(offsets)}, facts)
    except CheckpointError as error:
        say(f"the index of {facts['name']} is not kept, and made again next time: {error}")
