"""AdamW, schedules and averages against values by hand and plain loops."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transduce import recipe
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from transduce.training.optimizer import (
    MovingAverage,
    build_optimizer,
    learning_rate,
    mean_of,
    set_learning_rate,
)


def settings(**values: Any) -> recipe.Train:
    return recipe.Train.model_validate({"steps": 100, "lr": 0.01, "warmup": 10, **values})


def network() -> EncoderDecoder:
    torch.manual_seed(1)
    part = {"layers": 1, "heads": 2, "feed_forward": 16}
    model = recipe.Model.model_validate({"width": 8, "encoder": part, "decoder": part})
    return build(model, Vocabulary(9, 9))


# --------------------------------------------------------------------------- learning rate

SCHEDULES = ["inverse-sqrt", "linear", "cosine", "constant"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_rises_evenly_to_its_peak_at_warmup(schedule: str) -> None:
    train = settings(schedule=schedule)
    rates = [learning_rate(step, train) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([0.001 * n for n in range(1, 11)])
    assert max(rates) == rates[9] == pytest.approx(0.01)
    assert all(a >= b for a, b in pairwise(rates[9:]))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_warmup_it_starts_at_the_peak(schedule: str) -> None:
    train = settings(schedule=schedule, warmup=0)
    assert learning_rate(1, train) == pytest.approx(0.01, rel=0.011)
    assert learning_rate(1, train) <= 0.01
    for step in range(1, 150):
        assert 0 <= learning_rate(step, train) <= 0.01


@pytest.mark.parametrize(
    ("schedule", "step", "rate"),
    [
        ("inverse-sqrt", 40, 0.005),
        ("inverse-sqrt", 90, 0.01 / 3),
        ("inverse-sqrt", 1000, 0.001),
        ("linear", 55, 0.005),
        ("linear", 100, 0.0),
        ("linear", 120, 0.0),
        ("cosine", 55, 0.005),
        ("cosine", 40, 0.01 * 0.5 * (1 + math.cos(math.pi / 3))),
        ("cosine", 100, 0.0),
        ("cosine", 120, 0.0),
        ("constant", 55, 0.01),
        ("constant", 100, 0.01),
    ],
)
def test_schedules_by_hand(schedule: str, step: int, rate: float) -> None:
    assert learning_rate(step, settings(schedule=schedule)) == pytest.approx(rate, abs=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warmup_as_long_as_the_run_only_rises(schedule: str) -> None:
    for warmup in (100, 300):
        train = settings(schedule=schedule, warmup=warmup)
        rates = [learning_rate(step, train) for step in range(1, 101)]
        assert rates == pytest.approx([0.01 * n / warmup for n in range(1, 101)])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_run_of_so_many_minutes_has_fallen_to_zero_when_they_are_over(schedule: str) -> None:
    train = settings(schedule=schedule, minutes=2.0)
    assert learning_rate(20, train, seconds=60.0) == pytest.approx(0.005)
    assert learning_rate(20, train, seconds=120.0) == 0.0
    assert learning_rate(100, train, seconds=10.0) == 0.0  # updates ended first
    assert learning_rate(5, train, seconds=60.0) == pytest.approx(0.005)  # warm-up is in updates


def test_the_rate_reaches_every_group() -> None:
    optimizer = build_optimizer(network(), settings())
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


# --------------------------------------------------------------------------------- AdamW


def test_only_matrices_decay() -> None:
    """Without gradients nothing but the decay moves a weight."""
    net = network()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimizer = build_optimizer(net, settings(weight_decay=0.5, lr=0.1))
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    decayed = set()
    for name, p in net.named_parameters():
        if p.ndim >= 2:
            torch.testing.assert_close(p.detach(), before[name] * (1 - 0.1 * 0.5))
            decayed.add(name)
        else:
            assert torch.equal(p, before[name]), name
    assert "front.table.weight" in decayed
    assert not any("norm" in name or name.endswith("bias") for name in decayed)


def test_every_parameter_is_optimised_once() -> None:
    net = network()
    net.head.bias.requires_grad_(False)
    groups = build_optimizer(net, settings()).param_groups
    ours = [id(p) for group in groups for p in group["params"]]
    assert sorted(ours) == sorted(id(p) for p in net.parameters() if p.requires_grad)


def test_an_update_is_that_of_the_paper() -> None:
    """Loshchilov and Hutter 2019, algorithm 2, for two steps of one matrix."""
    layer = nn.Linear(2, 2, bias=False)
    w = layer.weight.detach().double().numpy().copy()
    train = settings(weight_decay=0.1, lr=0.05, betas=(0.8, 0.95))
    optimizer = build_optimizer(layer, train)
    m, v = np.zeros((2, 2)), np.zeros((2, 2))
    for step in (1, 2):
        g = np.array([[1.0, -2.0], [0.5, 3.0]]) * step
        layer.weight.grad = torch.tensor(g, dtype=torch.float32)
        optimizer.step()
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        direction = (m / (1 - 0.8**step)) / (np.sqrt(v / (1 - 0.95**step)) + 1e-9)
        w = w - 0.05 * 0.1 * w - 0.05 * direction
    np.testing.assert_allclose(layer.weight.detach().numpy(), w, rtol=1e-5)


# ------------------------------------------------------------------------------ averages


def test_a_moving_average_is_the_plain_loop() -> None:
    net = network()
    average = MovingAverage(net, 0.9)
    expected = {n: p.detach().double().numpy().copy() for n, p in net.named_parameters()}
    for step in range(1, 101):
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.randn_like(p))
        average.set_step(step)
        average.move()
        decay = min(0.9, (1 + step) / (10 + step))
        for name, p in net.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach().double().numpy()
    assert list(average.weights) == [name for name, _ in net.named_parameters()]
    for name, weight in average.weights.items():
        np.testing.assert_allclose(weight.numpy(), expected[name], rtol=1e-4, atol=1e-5)


def test_a_moving_average_does_not_move_the_weights() -> None:
    net = network()
    average = MovingAverage(net, 0.5)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    with torch.no_grad():
        average.weights["head.bias"].add_(1.0)
    average.set_step(1)
    average.move()
    for name, p in net.named_parameters():
        assert torch.equal(p, before[name]), name
    assert all(not w.requires_grad for w in average.weights.values())


def test_the_mean_of_checkpoints_is_numpys() -> None:
    generator = torch.Generator().manual_seed(1)
    several: list[dict[str, Tensor]] = [
        {
            "matrix": 1000 + torch.randn(3, 4, generator=generator),
            "vector": torch.randn(5, generator=generator),
            "half": torch.randn(3, generator=generator).bfloat16(),
        }
        for _ in range(5)
    ]
    mean = mean_of(several)
    for name, weight in mean.items():
        assert weight.dtype == several[0][name].dtype
        assert weight.shape == several[0][name].shape
        expected = np.mean([w[name].double().numpy() for w in several], axis=0)
        closest = torch.from_numpy(expected).to(weight.dtype)
        assert torch.equal(weight, closest), name
    assert torch.equal(mean_of(several[:1])["matrix"], several[0]["matrix"])
