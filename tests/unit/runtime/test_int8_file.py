"""Matrices in eight bits: near, and the same when they are rounded again."""

from __future__ import annotations

import hypothesis
import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from transduce.errors import ModelError
from transduce.runtime.int8_file import dequantize_weights, quantize_weights

NUMBERS = st.floats(-1e6, 1e6, width=32)


@hypothesis.given(arrays.arrays(np.float32, st.tuples(*[st.integers(1, 6)] * 2), elements=NUMBERS))
@hypothesis.settings(max_examples=100, deadline=None)
def test_rounding_is_near_and_done_once(given: NDArray[np.float32]) -> None:
    packed = quantize_weights({"x": torch.from_numpy(given)})
    levels, rounded = packed["x"], dequantize_weights(packed)["x"]
    assert levels.dtype == torch.int8
    assert int(levels.int().abs().max()) <= 127
    half = np.abs(given).max(axis=1, keepdims=True).astype(np.float64) / 127 / 2
    assert (np.abs(rounded.double().numpy() - given) <= half * 1.001 + 1e-12).all()
    again = quantize_weights({"x": rounded})
    assert torch.equal(again["x"], levels)
    assert torch.allclose(again["x.scale"], packed["x.scale"], rtol=1e-6, atol=0)


def test_what_is_no_matrix_stays() -> None:
    weights = {"bias": torch.randn(5), "filter": torch.randn(2, 3, 4), "matrix": torch.randn(3, 4)}
    packed = quantize_weights(weights)
    assert list(packed) == ["bias", "filter", "matrix", "matrix.scale"]
    back = dequantize_weights(packed)
    assert list(back) == list(weights)
    for name in ("bias", "filter"):
        assert torch.equal(back[name], weights[name])
    assert not torch.equal(back["matrix"], weights["matrix"])
    # a file of full size
    assert torch.equal(dequantize_weights(weights)["matrix"], weights["matrix"])


@pytest.mark.parametrize("scale", [None, torch.ones(2), torch.ones(3, 1)])
def test_rows_without_scales_are_reported(scale: torch.Tensor | None) -> None:
    packed = quantize_weights({"x": torch.randn(3, 4)})
    del packed["x.scale"]
    if scale is not None:
        packed["x.scale"] = scale
    with pytest.raises(ModelError, match="no scale for each row of x: export the model again"):
        dequantize_weights(packed)
