"""A state whose hypotheses share their source's memory steps as one with a copy for each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from transduce import recipe
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from transduce.models.decoders import TransformerState

V = 17
SOURCE = torch.tensor([[5, 6, 7, 3], [8, 9, 3, 0], [4, 3, 0, 0]])
LENGTHS = torch.tensor([4, 3, 2])


def network() -> EncoderDecoder:
    side = {"layers": 2, "heads": 2, "feed_forward": 24}
    shape = {"width": 16, "dropout": 0.0, "encoder": side, "decoder": side}
    torch.manual_seed(1)
    made = build(recipe.Model.model_validate(shape), Vocabulary(V, V)).double().eval()
    return made.requires_grad_(False)


# How the rows change between steps, and how many of them then share a row of the memory.
PATHS = {
    "a beam": [([0, 0, 1, 1, 2, 2], 2), ([1, 0, 2, 2, 5, 4], 2), ([0, 0, 3, 2, 4, 4], 2)],
    "sources that end": [([0, 0, 0, 1, 1, 1, 2, 2, 2], 3), ([2, 1, 0, 6, 8, 6], 3), ([3, 3, 4], 3)],
    "single rows": [([2, 0], 1), ([1, 1], 1)],
    "anything": [([0, 1, 1, 2], 1), ([3, 0], 1)],
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_shared_memory(path: list[tuple[list[int], int]]) -> None:
    made = network()
    state = made.start(SOURCE, LENGTHS)
    tokens = torch.tensor([2, 2, 2])
    rows = torch.arange(3)
    written: list[Tensor] = []
    for index, each in path:
        _, state = made.step(tokens, state)
        written.append(tokens)
        order = torch.tensor(index)
        state.reorder(order)
        assert isinstance(state, TransformerState)
        assert state.each == each
        rows, written = rows[order], [before[order] for before in written]
        tokens = torch.randint(4, V, (len(order),), generator=torch.Generator().manual_seed(3))
    found, _ = made.step(tokens, state)
    whole = torch.stack([*written, tokens], dim=1)
    features = made(SOURCE[rows], LENGTHS[rows], whole)[:, -1]
    expected = torch.log_softmax(made.head(features), dim=-1)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6)
