"""The cache of blocks of remote files: bounded, shared by all processes of the machine.

A block is a file of its own, with a checksum. Those that were not used for longest leave when the
cache is full. A lock for each group of blocks has one process fetch a block while the others wait.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from transduce.errors import CheckpointError
from transduce.storage import default_cache_folder, gigabytes, locked
from transduce.storage.versions import Version

BLOCK = 1 << 16  # bytes; small, as a corpus in random order is read by pieces of this size
TOGETHER = 128  # blocks that are fetched by one request at most
GROUP = 4  # blocks that have one lock
CHECKSUM = 4  # bytes at the end of a block
VARIABLE = "TRANSDUCE_REMOTE_CACHE_GB"
GB_USUALLY = 10.0
LEFT = 7 / 8  # of the limit, after blocks have left
SIZE = "size"  # the file with the size of the cache
PART = ".part"  # how the names of files end that are being written

Fetch = Callable[[int, int], bytes]
"""The bytes from a start to an end."""


@dataclass(frozen=True)
class BlockCache:
    folder: Path
    limit: float
    """In bytes."""

    @classmethod
    def usual(cls) -> BlockCache:
        """Raises DataError where the variable holds no number."""
        return cls(default_cache_folder() / "remote", gigabytes(VARIABLE, GB_USUALLY))

    def read(self, url: str, version: Version, start: int, end: int, fetch: Fetch) -> bytes:
        """Bytes of a version of a file, from the cache or fetched.

        Where the cache cannot be written, all is fetched.
        """
        key = sha256(f"{url}\0{version.size}\0{version.changed}".encode()).hexdigest()[:32]
        folder = self.folder / key
        first, last = start // BLOCK, -(-end // BLOCK)
        edges = [first, *range((first // TOGETHER + 1) * TOGETHER, last, TOGETHER), last]
        parts: list[bytes] = []
        for begin, stop in pairwise(edges):
            parts += self._read(folder, version.size, range(begin, stop), fetch)
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        return whole[start - first * BLOCK : end - first * BLOCK]

    def _read(self, folder: Path, size: int, numbers: range, fetch: Fetch) -> list[bytes]:
        found = {number: _load(folder, number, size) for number in numbers}
        groups = {number // GROUP for number, block in found.items() if block is None}
        if groups:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with ExitStack() as locks:
                    for group in sorted(groups):  # in one order, so that nobody waits for ever
                        locks.enter_context(locked(folder / f"{group}.group"))
                    self._complete(folder, size, found, fetch)
            except (OSError, CheckpointError):  # a full disk, or one that cannot be written
                for run in _runs(found):
                    found |= _fetched(run, size, fetch)
        return [block for block in found.values() if block is not None]

    def _complete(
        self, folder: Path, size: int, found: dict[int, bytes | None], fetch: Fetch
    ) -> None:
        """Fetch the blocks that are missing, except those that another process has fetched."""
        for number in [number for number, block in found.items() if block is None]:
            found[number] = _load(folder, number, size)
        written = 0
        for run in _runs(found):
            made = _fetched(run, size, fetch)
            found |= made
            for number, block in made.items():
                written += _save(folder, number, block)
        if written:
            self._count(written)

    def _count(self, written: int) -> None:
        """Note that the cache has grown; above the limit, remove what was not used for longest."""
        path = self.folder / SIZE
        with locked(path):
            try:
                total = int(path.read_text()) + written
            except (OSError, ValueError):
                total = sum(size for _, size, _ in self._blocks())
            if total > self.limit:
                total = self._evict()
            _replace(path, str(total).encode())

    def _evict(self) -> int:
        blocks = sorted(self._blocks())
        total = sum(size for _, size, _ in blocks)
        for _, size, block in blocks:
            if total <= LEFT * self.limit:
                break
            with suppress(OSError):
                block.unlink()
            total -= size
        for folder in {block.parent for _, _, block in blocks}:
            with suppress(OSError):  # it holds others
                folder.rmdir()
        return total

    def _blocks(self) -> Iterator[tuple[float, int, Path]]:
        """Last use, size and file of each block."""
        for path in self.folder.glob("*/*"):
            if path.suffix not in (".block", PART):
                continue
            with suppress(OSError):  # another process has removed it
                status = path.stat()
                yield status.st_mtime, status.st_size, path


def _runs(found: dict[int, bytes | None]) -> list[range]:
    """The blocks that are missing, each run of neighbours as one range."""
    runs: list[range] = []
    for number in (number for number, block in found.items() if block is None):
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs


def _fetched(run: range, size: int, fetch: Fetch) -> dict[int, bytes]:
    raw = fetch(run.start * BLOCK, min(run.stop * BLOCK, size))
    return {number: raw[at * BLOCK : (at + 1) * BLOCK] for at, number in enumerate(run)}


def _load(folder: Path, number: int, size: int) -> bytes | None:
    """A block of a file of so many bytes; None where it is missing or damaged."""
    path = folder / f"{number}.block"
    try:
        raw = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    block, checksum = raw[:-CHECKSUM], raw[-CHECKSUM:]
    whole = len(block) == min(BLOCK, size - number * BLOCK)
    return block if whole and checksum == _checksum(block) else None


def _save(folder: Path, number: int, block: bytes) -> int:
    """Write a block; how many bytes it takes."""
    _replace(folder / f"{number}.block", block + _checksum(block))
    return len(block) + CHECKSUM


def _replace(path: Path, raw: bytes) -> None:
    """Write a file that is renamed when it is complete. It is not flushed to the disk: a checksum
    tells of one that a power failure cuts.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        part.write_bytes(raw)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _checksum(block: bytes) -> bytes:
    return zlib.crc32(block).to_bytes(CHECKSUM, "little")
