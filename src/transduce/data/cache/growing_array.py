"""Arrays that grow piece by piece: joining pieces at the end would need twice the memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray


class Growing:
    """A flat array of whole numbers, of 4 or 8 bytes each."""

    def __init__(self, dtype: type[np.int32] | type[np.int64] = np.int64) -> None:
        self._dtype = np.dtype(dtype)
        self._values = array("i" if self._dtype.itemsize == array("i").itemsize else "q")

    def add(self, values: Sequence[int] | NDArray[np.int64]) -> None:
        """Put some more at its end."""
        self._values.frombytes(np.ascontiguousarray(values, self._dtype).data.cast("B"))

    def whole(self) -> NDArray[np.int64]:
        """All of it, without a copy; nothing can be added any more."""
        if not self._values:
            return np.zeros(0, self._dtype)
        return np.frombuffer(self._values, self._dtype)


class Rows:
    """Rows of ids, one after the other: see `Encoded`."""

    def __init__(self) -> None:
        self._ids, self._offsets = Growing(np.int32), Growing()
        self._end = 0
        self._offsets.add([0])

    def add(self, rows: Sequence[Sequence[int]]) -> None:
        """Put some more rows at the end."""
        lengths = np.array([len(row) for row in rows], np.int64)
        size = int(lengths.sum())
        self._ids.add(np.fromiter(chain.from_iterable(rows), np.int32, size))
        self._offsets.add(self._end + np.cumsum(lengths))
        self._end += size

    def whole(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """All ids, and where each row begins and ends among them."""
        return self._ids.whole().view(np.int32), self._offsets.whole()
