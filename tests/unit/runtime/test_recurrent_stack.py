"""Stacks of recurrent cells in C: the numbers of torch, whatever sequences are in a batch."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from transduce import recipe
from transduce.models.build import Vocabulary, build
from transduce.nn.recurrent.cells import CELLS, State
from transduce.nn.recurrent.stack import Recurrent
from transduce.runtime import library, why_not
from transduce.runtime.c_library import FILE, open_variants
from transduce.runtime.packed_copy import packed
from transduce.runtime.recurrent_stack import CompiledRecurrent

pytestmark = pytest.mark.skipif(library() is None, reason=f"no C library: {why_not()}")
LENGTHS = torch.tensor([4, 9, 0, 1, 6])  # 9 steps; one sequence is empty
INPUTS, WIDTH, LAYERS = 20, 28, 3  # no multiples of a SIMD vector


def stack(cell: str, bidirectional: bool, skip: bool) -> Recurrent:
    torch.manual_seed(1)
    made = Recurrent(cell, INPUTS, WIDTH, LAYERS, bidirectional=bidirectional, skip=skip)
    return made.eval().requires_grad_(False)


def inputs(batch: int = 5) -> Tensor:
    return torch.randn(batch, 9, INPUTS, generator=torch.Generator().manual_seed(2))


def some_state(network: Recurrent) -> list[State]:
    return [tuple(torch.randn_like(part) for part in parts) for parts in network.zeros(5, inputs())]


@pytest.mark.parametrize("skip", [False, True], ids=["", "skip"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "both ways"])
@pytest.mark.parametrize("cell", CELLS)
def test_it_computes_what_torch_does_in_float64(cell: str, bidirectional: bool, skip: bool) -> None:
    network = stack(cell, bidirectional, skip)
    exact = deepcopy(network).double()
    for state in (None, some_state(network)):
        precise = state and [tuple(part.double() for part in parts) for parts in state]
        for lengths in (LENGTHS, None):
            expected, ends = exact(inputs().double(), precise, lengths)
            for variant in open_variants(FILE):
                found, after = CompiledRecurrent(variant, network)(inputs(), state, lengths)
                torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=0)
                for parts, others in zip(after, ends, strict=True):
                    for part, other in zip(parts, others, strict=True):
                        torch.testing.assert_close(part.double(), other, atol=2e-6, rtol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_a_sequence_does_not_depend_on_the_others_by_a_bit(cell: str) -> None:
    made = library()
    assert made is not None
    compiled = CompiledRecurrent(made, stack(cell, True, True))
    together, ends = compiled(inputs(), None, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        alone, end = compiled(inputs()[row : row + 1, :length], None, None)
        assert torch.equal(alone[0], together[row, :length])
        for parts, others in zip(end, ends, strict=True):
            assert all(torch.equal(a[0], b[row]) for a, b in zip(parts, others, strict=True))


def test_lengths_that_do_not_fit_are_refused() -> None:
    made = library()
    assert made is not None
    compiled = CompiledRecurrent(made, stack("gru", True, False))
    for lengths in ([1, 2, 3, 4, 10], [1, 2, 3, 4, -1], [1, 2]):
        with pytest.raises(ValueError, match="Lengths must"):
            compiled(inputs(), None, torch.tensor(lengths))


def test_a_packed_network_uses_it_unless_a_cell_has_a_hook() -> None:
    side = {"kind": "recurrent", "cell": "lstm", "layers": 2}
    shape = recipe.Model.model_validate({"width": 16, "encoder": side, "decoder": side})
    network = build(shape, Vocabulary(9, 9)).eval()
    fast = packed(network, "float32")
    source_BS, lengths_B = torch.tensor([[5, 6, 7, 3], [8, 3, 0, 0]]), torch.tensor([4, 2])
    with torch.inference_mode():
        first = fast.encode(source_BS, lengths_B)
        seen: list[object] = []
        hook = fast.encoder.recurrent.cells[0].register_forward_hook(  # type: ignore[union-attr, operator]
            lambda *_: seen.append(1)
        )
        second = fast.encode(source_BS, lengths_B)
        hook.remove()
    assert len(seen) == 1
    assert not torch.equal(first.states_BSD, second.states_BSD)  # another order of sums
    torch.testing.assert_close(first.states_BSD, second.states_BSD, atol=1e-6, rtol=0)
    assert network.encoder.recurrent.compiled is None  # type: ignore[union-attr]
    assert packed(network, "bfloat16").encoder.recurrent.compiled is None  # type: ignore[union-attr]
