"""Which rows of an index are left out of training: decided once, and kept in the cache as a byte
for each row, which all processes read by position.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from transduce.data.cache.eviction import evict, note_use
from transduce.data.filters.repetitions import Repetitions
from transduce.data.filters.rules import Dropped, Hashes, PairRules, Reason, Reasons
from transduce.data.index.corpus import CorpusIndex
from transduce.data.index.files import Say, say_all
from transduce.errors import CheckpointError, DataError
from transduce.storage import write_file, write_json

FORMAT = 1  # format version: increase when the content of the file changes
SUFFIX = ".filters.npy"

Judged = tuple[list[tuple[int, Reasons, Hashes]], Dropped]
"""Of some blocks: the number of each, the reasons and the hashes of its pairs; and their counts."""


class FilteredRows:
    """The reason of each row of an index; in a file, of which only what is read is in memory."""

    def __init__(self, path: Path, starts: NDArray[np.int64]) -> None:
        self.path, self.starts = path, starts

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "starts": self.starts}

    @cached_property
    def _reasons(self) -> Reasons:
        return np.asarray(np.load(self.path, mmap_mode="r", allow_pickle=False), np.int8)

    def kept(self, block: int, count: int) -> list[int] | None:
        """Which of the first pairs of a block are kept; None: all."""
        start = int(self.starts[block])
        found = np.asarray(self._reasons[start : start + count])
        return np.flatnonzero(found == Reason.KEPT).tolist() if found.any() else None

    def dropped(self, blocks: range) -> int:
        """How many pairs of consecutive blocks are left out."""
        return int(
            np.count_nonzero(self._reasons[slice(*self.starts[[blocks.start, blocks.stop]])])
        )


def find_filtered(
    index: CorpusIndex, rules: PairRules, cache: Path
) -> tuple[FilteredRows, Path, Dropped | None]:
    """The rows that are left out, where the file with their counts is, and these; None where it has
    to be made."""
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(index.rows, dtype=np.int64)])
    key = sha256(json.dumps([FORMAT, rules.settings(), index.identity()]).encode()).hexdigest()
    rows, said = FilteredRows(cache / f"{key}{SUFFIX}", starts), cache / f"{key}.filters.json"
    try:
        stored = json.loads(said.read_text("utf-8"))
        size = len(np.load(rows.path, mmap_mode="r", allow_pickle=False))
        dropped = Dropped.of(stored)
    except (OSError, ValueError, TypeError, KeyError):
        return rows, said, None
    if size != starts[-1]:
        return rows, said, None
    note_use(rows.path, said)
    return rows, said, dropped


def make_filtered(
    rows: FilteredRows, said: Path, judged: Iterable[Judged], cache: Path, say: Say
) -> Dropped:
    """Write what becomes of each row; the memory does not grow with their number."""
    dropped = Dropped()

    def write(part: Path) -> None:
        reasons = open_memmap(part, "w+", np.int8, (int(rows.starts[-1]),))
        _reserve(part)
        with Repetitions() as repetitions:
            for blocks, counted in judged:
                dropped.join(counted)
                for block, found, hashes in blocks:
                    start = int(rows.starts[block])
                    reasons[start : start + len(found)] = found
                    repetitions.add(hashes, start)
            for places in repetitions.find():
                repeated = places[reasons[places] == Reason.KEPT]
                reasons[repeated] = Reason.DUPLICATE
                dropped.count(Reason.DUPLICATE, len(repeated))
        reasons.flush()

    try:
        rows.path.parent.mkdir(parents=True, exist_ok=True)
        write_file(rows.path, write)
        write_json(said, vars(dropped))
    except (OSError, CheckpointError) as error:
        raise DataError(
            f"what data.filters leaves out of a stream is kept in {cache}, which cannot be written "
            f"({error}); make room there, or set XDG_CACHE_HOME to another folder"
        ) from None
    say_all(say, evict(cache))
    return dropped


def _reserve(path: Path) -> None:
    """Take the room of a mapped file now: on a full disk, writing to its pages later would end the
    process by a signal. Raises OSError.
    """
    if hasattr(os, "posix_fallocate"):  # Linux
        with path.open("rb+") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
