"""Activation checkpointing: the same gradients to the bit, from less memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import transduce
from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.models.build import Vocabulary, build
from transduce.nn.checkpointing import set_checkpointing
from transduce.recipe.presets import PRESETS

BATCH = collate(
    [[5, 6, 7] * 4, [6] * 9, [9, 9, 4, 5]], [[8, 9] * 5, [7, 8, 9, 10], [4, 5, 6, 7, 8, 9]]
)


def network(preset: str) -> Any:
    torch.manual_seed(1)
    shape = {**PRESETS[preset], "width": 32, "dropout": 0.2}
    for side in ("encoder", "decoder"):
        layers = {"layers": 4} | ({"heads": 2} if "transformer" in preset else {})
        shape[side] = {**shape.get(side, {}), **layers}
    return build(recipe.Model.model_validate(shape), Vocabulary(12, 12)).train()


def passed(made: Any) -> tuple[Tensor, list[Tensor], Tensor]:
    """The loss, the gradients, and a random number drawn after them."""
    torch.manual_seed(7)
    loss = made.batch_loss(BATCH, 0.1).total
    gradients = torch.autograd.grad(loss, list(made.parameters()))
    return loss.detach(), list(gradients), torch.rand(1)


def kept_bytes(made: Any) -> int:
    """Bytes that a forward pass keeps for the backward pass, weights not counted."""
    weights = {p.untyped_storage().data_ptr() for p in made.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = made.batch_loss(BATCH, 0.1).total
    found = sum(kept.values())
    del loss
    return found


@pytest.mark.parametrize("preset", ["transformer-tiny", "convolutional-small"])
def test_gradients_are_the_same_to_the_bit(preset: str) -> None:
    made = network(preset)
    loss, gradients, after = passed(made)
    assert set_checkpointing(made, True) == 2
    again, same, then = passed(made)
    assert torch.equal(loss, again)
    assert torch.equal(after, then)  # the generators go on as without
    for one, other in zip(gradients, same, strict=True):
        assert torch.equal(one, other)
    set_checkpointing(made, False)
    assert all(torch.equal(a, b) for a, b in zip(gradients, passed(made)[1], strict=True))


@pytest.mark.parametrize("preset", ["transformer-tiny", "convolutional-small"])
def test_less_is_kept_for_the_backward_pass(preset: str) -> None:
    made = network(preset)
    plain = kept_bytes(made)
    set_checkpointing(made, True)
    assert kept_bytes(made) < plain / 2


def test_language_models_have_a_stack_and_recurrent_networks_none() -> None:
    part = {"layers": 2, "heads": 2, "feed_forward": 16}
    language = {"task": "language_modeling", "model": {"width": 16, "decoder": part}}
    assert set_checkpointing(transduce.build(language, 12), True) == 1
    assert set_checkpointing(transduce.build({"model": {"preset": "gru-attention"}}, 12), True) == 0
