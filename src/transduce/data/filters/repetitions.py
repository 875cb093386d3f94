"""Repetitions among many hashes, in bounded memory: hashes are sorted into files by their first
bits, so that equal ones meet in one file, and each file is sorted by itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

HELD = 1 << 20
"""Hashes in memory; more go to files."""
FILES = 256
"""So that of a billion hashes, a file has 63 MB."""
RECORD = np.dtype([("hash", np.uint64), ("place", np.int64)])
WITH_MORE = np.dtype([*RECORD.descr, ("more", np.uint64)])


class Repetitions:
    """Hashes in the order of their places, from 0 on, and which of them occurred before."""

    def __init__(self, record: np.dtype[np.void] = RECORD) -> None:
        """record: WITH_MORE, where each place has a second hash."""
        self._record = record
        self._waiting: list[NDArray[np.void]] = []
        self._count = self._held = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(
        self,
        hashes: NDArray[np.uint64],
        first: int | None = None,
        more: NDArray[np.uint64] | None = None,
    ) -> None:
        """The hashes of consecutive places: those after the last, or from `first` on."""
        start = self._count if first is None else first
        records = np.empty(len(hashes), self._record)
        records["hash"], records["place"] = hashes, np.arange(start, start + len(hashes))
        if more is not None:
            records["more"] = more
        self._waiting.append(records)
        self._count, self._held = start + len(hashes), self._held + len(hashes)
        if self._held > HELD:
            self._write()

    def _write(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="transduce-")
        records = np.concatenate(self._waiting)
        self._waiting, self._held = [], 0
        numbers = (records["hash"] >> np.uint64(64 - FILES.bit_length() + 1)).astype(np.int64)
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(FILES + 1)).tolist()
        for number in range(FILES):
            part = records[order[bounds[number] : bounds[number + 1]]]
            if len(part):
                with (Path(self._folder.name) / str(number)).open("ab") as file:
                    part.tofile(file)

    def find(self) -> Iterator[NDArray[np.int64]]:
        """The places whose hash has an earlier place, in parts of any order."""
        return map(repeated, self.parts())

    def parts(self) -> Iterator[NDArray[np.void]]:
        """All records; those with the same hash are in one part."""
        if self._folder is None:
            yield np.concatenate([np.zeros(0, self._record), *self._waiting])
            return
        if self._waiting:
            self._write()
        for path in sorted(Path(self._folder.name).iterdir()):
            yield np.fromfile(path, self._record)


def repeated(records: NDArray[np.void], field: str = "hash") -> NDArray[np.int64]:
    """The places whose hash has an earlier place among these."""
    order = np.lexsort((records["place"], records[field]))
    hashes = records[field][order]
    return np.asarray(records["place"][order[1:][hashes[1:] == hashes[:-1]]], np.int64)
