"""Floating point samples that are taken for 16-bit integers are noticed; speech is not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from transduce.data.audio.raw import looks_like_floats

DRAW = np.random.default_rng(1)
TIME = np.arange(8000) / 16_000


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.001])
def test_floats(scale: float) -> None:
    speech = scale * np.sin(2 * np.pi * 180 * TIME) * np.abs(np.sin(2 * np.pi * 3 * TIME))
    sent = np.concatenate([np.zeros(900), speech]).astype("<f4").tobytes()
    assert looks_like_floats(np.frombuffer(sent, "<i2"))


@pytest.mark.parametrize(
    "samples",
    [
        np.zeros(9000),
        DRAW.normal(0, 3000, 9000),
        DRAW.normal(0, 20, 9000),
        DRAW.uniform(-32768, 32767, 9000),
        16_000 * np.sin(2 * np.pi * 180 * TIME),
        np.full(9000, 500),
        DRAW.normal(0, 3000, 100),
    ],
)
def test_integers(samples: NDArray[np.float64]) -> None:
    assert not looks_like_floats(samples.clip(-32768, 32767).astype(np.int16))
    assert not looks_like_floats(samples)
