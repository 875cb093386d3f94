"""Row sums travel beside a gradient, and no longer than it is unchanged and alive."""

from __future__ import annotations

import gc

import torch

from transduce.nn.gradient_sums import GradientSums


def test_sums_belong_to_one_gradient() -> None:
    sums = GradientSums()
    gradient, other = torch.ones(5, 3), torch.ones(5, 3)
    sums.put(gradient, gradient.sum(dim=0))
    found = sums.get(gradient)
    assert found is not None
    assert found.tolist() == [5.0] * 3
    assert sums.get(other) is None  # equal numbers, another tensor


def test_sums_of_a_gradient_that_was_changed_in_place_are_out_of_date() -> None:
    sums = GradientSums()
    gradient = torch.ones(5, 3)
    sums.put(gradient, gradient.sum(dim=0))
    gradient.add_(1.0)
    assert sums.get(gradient) is None


def test_sums_end_with_their_gradient() -> None:
    sums = GradientSums()
    gradient = torch.ones(5, 3)
    sums.put(gradient, gradient.sum(dim=0))
    assert len(sums) == 1
    del gradient
    gc.collect()
    assert len(sums) == 0


def test_sums_reach_the_backward_function_before() -> None:
    """Through autograd, which may drop the Python object of a gradient in between."""
    sums = GradientSums()
    found = []

    class Producer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
            found.append(sums.get(gradients[0]))
            return gradients[0] * 2

    class Consumer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
            by_x = gradients[0] * 3
            sums.put(by_x, by_x.sum(dim=0))
            return by_x

    x = torch.ones(5, 3, requires_grad=True)
    y = Producer.apply(x)  # type: ignore[no-untyped-call]
    Consumer.apply(y).sum().backward()  # type: ignore[no-untyped-call]
    assert [sums_F.tolist() for sums_F in found if sums_F is not None] == [[15.0] * 3]
    both = Producer.apply(x)  # type: ignore[no-untyped-call]
    (Consumer.apply(both) + Consumer.apply(both)).sum().backward()  # type: ignore[no-untyped-call]
    assert found[1] is None or found[1].tolist() == [30.0] * 3


def test_clear() -> None:
    sums = GradientSums()
    gradient = torch.ones(5, 3)
    sums.put(gradient, gradient.sum(dim=0))
    sums.clear()
    assert sums.get(gradient) is None
