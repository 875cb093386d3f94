"""Growing arrays: appended to in pieces, as concatenating at the end would need twice the
memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray


class GrowingArray:
    """A flat, growing array of int32 or int64."""

    def __init__(self, dtype: type[np.int32] | type[np.int64] = np.int64) -> None:
        self._dtype = np.dtype(dtype)
        self._values = array("i" if self._dtype.itemsize == array("i").itemsize else "q")

    def add(self, values: Sequence[int] | NDArray[np.int64]) -> None:
        """Append values."""
        self._values.frombytes(np.ascontiguousarray(values, self._dtype).data.cast("B"))

    def whole(self) -> NDArray[np.int64]:
        """The whole array, without a copy; nothing can be appended any more."""
        if not self._values:
            return np.zeros(0, self._dtype)
        return np.frombuffer(self._values, self._dtype)


class Rows:
    """Growing rows of ids, stored as flat ids and offsets: see `Encoded`."""

    def __init__(self) -> None:
        self._ids, self._offsets = GrowingArray(np.int32), GrowingArray()
        self._end = 0
        self._offsets.add([0])

    def add(self, rows: Sequence[Sequence[int]]) -> None:
        """Append rows."""
        lengths = np.array([len(row) for row in rows], np.int64)
        size = int(lengths.sum())
        self._ids.add(np.fromiter(chain.from_iterable(rows), np.int32, size))
        self._offsets.add(self._end + np.cumsum(lengths))
        self._end += size

    def whole(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """All ids, and the offsets of the rows."""
        return self._ids.whole().view(np.int32), self._offsets.whole()
