"""Matrices in eight bits: near, and the same when they are rounded again."""

from __future__ import annotations

import hypothesis
import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiny_models import tiny
from transduce.models.levels import (
    from_levels,
    matrices,
    pack_levels,
    round_to_levels,
    to_levels,
    unpack_levels,
)
from transduce.models.quantized import quantized
from transduce.models.weights import weights_of

NUMBERS = st.floats(-1e6, 1e6, width=32)


@hypothesis.given(arrays.arrays(np.float32, st.tuples(*[st.integers(1, 6)] * 2), elements=NUMBERS))
@hypothesis.settings(max_examples=300, deadline=None)
def test_rounding_is_near_and_done_once(given: NDArray[np.float32]) -> None:
    weight = torch.from_numpy(given)
    levels, scale = to_levels(weight)
    assert int(levels.abs().max()) <= 127
    rounded = from_levels(levels, scale)
    half = weight.abs().amax(dim=1, keepdim=True).double() / 127 / 2
    assert ((rounded.double() - weight.double()).abs() <= half * 1.001 + 1e-12).all()
    # The product is exact, so that nothing moves the second time.
    assert torch.equal(rounded.double(), levels.double() * scale.double()[:, None])
    again, scale_again = to_levels(rounded)
    assert torch.equal(levels, again)
    assert torch.equal(scale, scale_again)


def test_what_is_multiplied_is_what_was_stored() -> None:
    """The levels that a product is made with are those of the file, whoever makes them."""
    network = tiny().network
    round_to_levels(network)
    for weight in matrices(network):
        levels, scale = to_levels(weight)
        plain = weight.detach().abs().amax(dim=1) / 127
        assert torch.equal(plain, scale)
        assert torch.equal((weight / plain[:, None]).round(), levels.float())


def test_packing_comes_back_as_rounded() -> None:
    network = tiny(tie="all").network
    packed = pack_levels(network)
    back = unpack_levels(packed)
    round_to_levels(network)
    rounded = weights_of(network)
    assert list(back) == list(rounded)
    for name, weight in rounded.items():
        assert torch.equal(back[name], weight)
    small = [name for name, tensor in packed.items() if tensor.dtype == torch.int8]
    assert "front.table.weight" in small
    assert not any("norm" in name or "bias" in name for name in small)


@pytest.mark.parametrize("tie", ["all", "none"])
def test_embeddings_are_rounded_too(tie: str) -> None:
    network = tiny(tie=tie).network
    table = quantized(network, "int8").front.table.weight
    assert not torch.equal(table, network.front.table.weight)
    assert torch.equal(table, from_levels(*to_levels(network.front.table.weight)))
