"""The ctypes structure of a search over slots: as in slots.c."""

from __future__ import annotations

import ctypes
from ctypes import c_int64

from transduce.runtime.c.product import Address

MOST_BEAM = 64  # as in slots.c

NUMBERS = (
    *("slots", "beam", "nbest", "target", "vocabulary", "pad", "begin", "end"),
    *("least", "most"),
)
ARRAYS = (
    *("penalties", "open", "steps", "limits", "finished", "reached", "last", "written"),
    *("scores", "totals", "found", "row", "row_step", "row_token", "best", "best_token", "old"),
)


class Slots(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in NUMBERS),
        *((name, Address) for name in ARRAYS),
    )
