"""Location-aware attention by its formulas in plain loops, and step by step as in one pass."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from transduce.nn.attention.location_aware import LocationAware, LocationAwareAttention
from transduce.nn.masks import padding

B, T, S, WIDTH, FILTERS, KERNEL = 3, 4, 6, 5, 3, 3
LENGTHS = torch.tensor([6, 1, 4])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def attention() -> LocationAwareAttention:
    torch.manual_seed(7)
    score = LocationAware(WIDTH, WIDTH, filters=FILTERS, kernel=KERNEL)
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter)
    return LocationAwareAttention(score).double()


def by_loops(part: LocationAwareAttention, query_TD: Tensor, keys_SD: Tensor) -> Tensor:
    """The weights of each step, by equations 8 and 9 of the paper."""
    score = part.score
    assert isinstance(score, LocationAware)
    before, rows = [0.0] * len(keys_SD), []
    for s_D in query_TD:
        energies = []
        for i, h_D in enumerate(keys_SD):
            f = []
            for filter_K in score.filters.weight[:, 0].tolist():
                places = [i + k - KERNEL // 2 for k in range(KERNEL)]
                there = zip(filter_K, places, strict=True)
                f.append(sum(w * before[p] for w, p in there if 0 <= p < len(keys_SD)))
            inner_F = score.query_projection.weight @ s_D + score.key_projection.weight @ h_D
            inner_F = inner_F + score.location_projection.weight @ torch.tensor(f).double()
            inner_F = inner_F + score.location_projection.bias
            energies.append(float(score.energy.weight[0] @ inner_F.tanh()))
        total = sum(map(math.exp, energies))
        before = [math.exp(energy) / total for energy in energies]
        rows.append(before)
    return torch.tensor(rows, dtype=torch.float64)


@torch.no_grad()
def test_it_is_its_formula_in_every_row() -> None:
    part, query_BTD, values_BSD = attention(), random(B, T, WIDTH), random(B, S, WIDTH, seed=1)
    seen: list[Tensor] = []
    part.watch = seen.append
    mask = padding(LENGTHS, S)
    context_BTD, last_BS = part.along(query_BTD, part.prepare(values_BSD), values_BSD, mask)
    assert torch.equal(last_BS, seen[0][:, 0, -1])
    for row, length in enumerate(LENGTHS.tolist()):
        weights_TS = by_loops(part, query_BTD[row], values_BSD[row, :length])
        torch.testing.assert_close(seen[0][row, 0, :, :length], weights_TS)
        assert (seen[0][row, 0, :, length:] == 0).all()
        torch.testing.assert_close(context_BTD[row], weights_TS @ values_BSD[row, :length])


@torch.no_grad()
def test_steps_need_the_weights_of_the_last_one() -> None:
    part, query_BTD, values_BSD = attention(), random(B, T, WIDTH), random(B, S, WIDTH, seed=1)
    keys_BSD, mask = part.prepare(values_BSD), padding(LENGTHS, S)
    whole_BTD = part(query_BTD, keys_BSD, values_BSD, mask)
    before_BS, forgetful = None, []
    for t in range(T):
        query_B1D = query_BTD[:, t : t + 1]
        context_B1D, before_BS = part.along(query_B1D, keys_BSD, values_BSD, mask, before_BS)
        torch.testing.assert_close(context_B1D[:, 0], whole_BTD[:, t])
        forgetful.append(part(query_B1D, keys_BSD, values_BSD, mask))
    assert not torch.allclose(torch.cat(forgetful, dim=1)[:, 1:], whole_BTD[:, 1:])


def test_the_gradients_are_those_of_small_differences() -> None:
    part = attention()
    inputs = random(B, 3, WIDTH).requires_grad_(), random(B, S, WIDTH, seed=1).requires_grad_()

    def run(query_BTD: Tensor, values_BSD: Tensor, *_: Tensor) -> Tensor:
        mask = padding(LENGTHS, S)
        context_BTD: Tensor = part(query_BTD, part.prepare(values_BSD), values_BSD, mask)
        return context_BTD

    assert torch.autograd.gradcheck(run, (*inputs, *part.parameters()), fast_mode=True)


def test_a_filter_has_a_middle() -> None:
    with pytest.raises(ValueError, match="must be odd"):
        LocationAware(WIDTH, WIDTH, kernel=4)
