"""Samples of 16 bits, without a header or with one: and whether they are, for all one can see."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOATS = (
    "looks like samples of 32-bit floating point numbers, and 16-bit integers are expected; "
    "convert them, as with ffmpeg -f f32le -ar RATE -ac 1 -i IN -f s16le OUT"
)
FLOATS_AS_INTEGERS = (
    "has samples of 16-bit integers by its header, but they look like 32-bit floating point "
    "numbers: write it again, as floating point numbers"
)
MIN_NUMBERS = 128  # numbers that are needed to tell
SHARE = 0.98  # of them that must look like samples
QUIETEST = 1e-7


def looks_like_floats(samples: NDArray[Any]) -> bool:
    """Whether 16-bit samples are the halves of 32-bit floating point samples.

    As one such number, two samples of speech are NaN, or far above 1, or next to nothing: each
    second sample is the exponent, and hardly ever in the narrow range that stands for ±1.
    """
    if samples.dtype != np.int16:
        return False
    whole = np.ascontiguousarray(samples[: len(samples) // 2 * 2]).view(np.float32)
    spoken = whole[whole != 0]
    if len(spoken) < MIN_NUMBERS:
        return False
    with np.errstate(invalid="ignore"):
        size = np.abs(spoken)
        return bool(((size > QUIETEST) & (size <= 1.0)).mean() > SHARE)
