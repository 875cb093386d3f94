"""An update's gradients, whatever way its batches are cut and run."""

from __future__ import annotations

import pytest
import torch

from transduce import recipe
from transduce.data.batches import Batch, collate
from transduce.models import Network, Vocabulary, build
from transduce.presets import PRESETS
from transduce.recipe import Train
from transduce.training.optimizer import build_optimizer
from transduce.training.update import PackedUpdate, Update

PAIRS = [([5, 6, 7], [8, 9]), ([6], [7, 8, 9, 10]), ([9, 9, 4, 5], [4]), ([7, 8], [5, 6, 7])]


def network(width: int = 16, positions: str = "sinusoidal") -> Network:
    torch.manual_seed(1)
    shape = {**PRESETS["transformer-tiny"], "width": width, "dropout": 0.0}
    for side in ("encoder", "decoder"):
        shape[side] = {**shape.get(side, {}), "positions": positions}
    return build(recipe.Model.model_validate(shape), Vocabulary(12, 12))


def batch(*rows: int) -> Batch:
    return collate([PAIRS[row][0] for row in rows], [PAIRS[row][1] for row in rows])


def gradients(made: Network) -> list[torch.Tensor]:
    return [p.grad.clone() for p in made.parameters() if p.grad is not None]


def test_accumulated_batches_are_one_batch() -> None:
    """The mean is over all tokens of the update, not over batches: a short batch counts less."""
    settings = Train(clip=0.0)
    found = []
    for cut in ([batch(0, 1, 2, 3)], [batch(0), batch(1, 2, 3)], [batch(3, 2), batch(1, 0)]):
        made = network().double()
        update = Update(made, build_optimizer(made, settings), settings, torch.float32)
        loss, norm = update(cut)
        found.append([loss, norm, *gradients(made)])
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_the_gradient_is_clipped_and_its_norm_told() -> None:
    settings = Train(clip=0.01)
    made = network()
    _, norm = Update(made, build_optimizer(made, settings), settings, torch.float32)([batch(0, 1)])
    assert float(norm) > 0.01
    clipped = torch.cat([g.flatten() for g in gradients(made)]).norm()
    assert float(clipped) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_packed_and_recorded_gradients_are_the_same(positions: str) -> None:
    """Every batch three times: run as it comes, recorded, replayed."""
    settings = Train(clip=0.0)
    long = collate([list(range(4, 12)) * 20, [5]], [[7], list(range(4, 12)) * 12])
    cuts = [[batch(0, 1)], [batch(2, 3)], [long], [batch(1, 0), batch(3)]] * 3
    made = network(64, positions=positions).cuda()
    optimizer = build_optimizer(made, settings)
    plain = Update(made, optimizer, settings, torch.float32)
    expected = []
    for cut in cuts:
        loss, norm = plain(cut)
        expected.append((loss, norm, gradients(made)))
        optimizer.zero_grad()
    packed = PackedUpdate(made, optimizer, settings, torch.bfloat16)
    for cut, (loss, norm, exact) in zip(cuts, expected, strict=True):
        my_loss, my_norm = packed(cut)
        torch.testing.assert_close(my_loss, loss, rtol=1e-2, atol=0)
        torch.testing.assert_close(my_norm, norm, rtol=2e-2, atol=0)
        mine, theirs = (torch.cat([g.flatten() for g in many]) for many in (gradients(made), exact))
        assert float((mine - theirs).norm() / theirs.norm()) < 3e-2
        optimizer.zero_grad(set_to_none=False)
    assert len(packed._recorded) == 2  # all the short ones are of one shape
