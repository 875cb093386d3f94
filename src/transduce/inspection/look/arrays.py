"""Arrays of numbers inside JSON: whole numbers of 8 or 16 bits, deflated, as base64."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

TEN_THOUSANDTHS = 10_000
Packed = dict[str, Any]


def packed(values: ArrayLike, scale: int = TEN_THOUSANDTHS) -> Packed:
    """Numbers from 0 to 6.5 to four decimals: {"shape", "scale", "bits", "data"}.

    With a scale of 255 it is bytes of numbers from 0 to 1, for pictures.
    """
    given = np.asarray(values, np.float64)
    bits = 8 if scale < 256 else 16
    whole = np.rint(given * scale).clip(0, 2**bits - 1).astype("u1" if bits == 8 else "<u2")
    data = base64.b64encode(zlib.compress(whole.tobytes(), 6)).decode("ascii")
    return {"shape": list(given.shape), "scale": scale, "bits": bits, "data": data}


def packed_signed(values: ArrayLike) -> Packed:
    """Numbers of either sign, to a ten-thousandth of the largest of them, which is "signed"."""
    given = np.asarray(values, np.float64)
    largest = float(np.abs(given).max(initial=0.0)) or 1.0
    return {**packed((given / largest + 1.0) / 2.0, 2 * TEN_THOUSANDTHS), "signed": largest}


def unpacked(one: Packed) -> NDArray[np.float64]:
    """What was packed."""
    kind = "u1" if one["bits"] == 8 else "<u2"
    whole = np.frombuffer(zlib.decompress(base64.b64decode(one["data"])), kind)
    shares = whole.reshape(one["shape"]).astype(np.float64) / one["scale"]
    return np.asarray((2.0 * shares - 1.0) * one["signed"] if "signed" in one else shares)
