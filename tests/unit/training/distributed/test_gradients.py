"""Gradients are summed over the ranks while the backward pass goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transduce.training.distributed import gradients
from transduce.training.distributed.gradients import GradientExchange
from transduce.training.distributed.processes import Processes


class Twins(Processes):
    """One of two ranks, the other of which has the same gradients."""

    def __init__(self) -> None:
        super().__init__(rank=0, count=2)
        self.events: list[str] = []

    def start_all_reduce(self, tensor: Tensor) -> Any:
        self.events.append(f"send {tensor.numel()}")
        tensor.mul_(2)
        return SimpleNamespace(wait=lambda: self.events.append(f"wait {tensor.numel()}"))


def stack(ranks: Twins) -> nn.Sequential:
    """Three layers of 2, 6 and 12 weights; their backward passes are noted."""
    torch.manual_seed(1)
    layers = nn.Sequential(
        nn.Linear(1, 2, bias=False), nn.Linear(2, 3, bias=False), nn.Linear(3, 4, bias=False)
    )
    for layer in layers:
        size = sum(parameter.numel() for parameter in layer.parameters())
        layer.register_full_backward_pre_hook(
            lambda *_, n=size: ranks.events.append(f"backward {n}")
        )
    return layers


def backward(layers: nn.Module, exchange: GradientExchange, last: bool) -> None:
    exchange.begin_pass(last)
    layers(torch.ones(5, 1, requires_grad=True)).square().sum().backward()


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "BUCKET", 40)


def test_a_bucket_is_sent_before_earlier_layers_are_reached() -> None:
    ranks = Twins()
    layers = stack(ranks)
    exchange = GradientExchange(list(layers.parameters()), ranks)
    backward(layers, exchange, last=False)
    assert ranks.events == ["backward 12", "backward 6", "backward 2"]  # not complete yet
    alone = [2 * p.grad for p in layers.parameters() if p.grad is not None]
    ranks.events.clear()
    backward(layers, exchange, last=True)
    # The last layer has a bucket of its own, the first two share one.
    assert ranks.events == ["backward 12", "send 12", "backward 6", "backward 2", "send 8"]
    exchange.finish()
    assert ranks.events[-2:] == ["wait 12", "wait 8"]
    for parameter, own in zip(layers.parameters(), alone, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * own)  # two passes, two ranks


def test_a_rank_without_batches_sends_the_same_buckets() -> None:
    """And so does one whose passes leave a layer out, in the same order."""
    ranks = Twins()
    layers = stack(ranks)
    exchange = GradientExchange(list(layers.parameters()), ranks)
    exchange.finish()
    assert [event for event in ranks.events if "send" in event] == ["send 12", "send 8"]
    assert all(bool((p.grad == 0).all()) for p in layers.parameters() if p.grad is not None)
    ranks.events.clear()
    exchange.begin_pass(last=True)
    layers[:2](torch.ones(5, 1, requires_grad=True)).square().sum().backward()
    assert not [event for event in ranks.events if "send" in event]  # 12 comes first, everywhere
    exchange.finish()
    assert [event for event in ranks.events if "send" in event] == ["send 12", "send 8"]


def test_a_pass_that_is_repeated_sends_nothing_twice() -> None:
    """Memory ran out below a layer whose bucket was sent already."""
    ranks = Twins()
    layers = stack(ranks)
    exchange = GradientExchange(list(layers.parameters()), ranks)

    def fail(*given: Any) -> None:
        raise MemoryError

    failing = layers[1].register_full_backward_pre_hook(fail)
    with pytest.raises(MemoryError):
        backward(layers, exchange, last=True)
    failing.remove()
    layers.zero_grad()
    for last in (False, True):  # its halves, here as large as the whole
        exchange.begin_pass(last)
        (layers(torch.ones(5, 1, requires_grad=True)).square().sum() / 2).backward()
    exchange.finish()
    assert [event for event in ranks.events if "send" in event] == ["send 12", "send 8"]
    summed = [p.grad for p in layers.parameters()]
    layers.zero_grad()
    layers(torch.ones(5, 1, requires_grad=True)).square().sum().backward()
    for parameter, found in zip(layers.parameters(), summed, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(found, 2 * parameter.grad)


def test_types_are_not_mixed() -> None:
    ranks = Twins()
    kinds = [torch.float32, torch.float64, torch.float64]
    weights = [torch.ones(2, dtype=kind, requires_grad=True) for kind in kinds]
    GradientExchange(weights, ranks).finish()
    assert [event for event in ranks.events if "send" in event] == ["send 4", "send 2"]
