"""G.711: telephone audio, 8-bit samples on a logarithmic scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def _mu_law() -> NDArray[np.int16]:
    """ITU-T G.711, table 2a: sign, three bits of exponent, four of mantissa, all inverted."""
    code = ~np.arange(256, dtype=np.uint8)
    exponent, mantissa = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    size = ((mantissa << 3) + 132 << exponent) - 132
    return np.where(code & 128, -size, size).astype(np.int16)


def _a_law() -> NDArray[np.int16]:
    """ITU-T G.711, table 1a: every second bit is inverted; exponent 0 has no hidden bit."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent, mantissa = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    size = (mantissa << 4) + 8
    size = np.where(exponent > 0, size + 256 << np.maximum(exponent - 1, 0), size)
    return np.where(code & 128, size, -size).astype(np.int16)


MU_LAW, A_LAW = _mu_law(), _a_law()


def decode(data: bytes, table: NDArray[np.int16]) -> NDArray[np.int16]:
    """16-bit samples; table: MU_LAW or A_LAW."""
    return table[np.frombuffer(data, np.uint8)]
