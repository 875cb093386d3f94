"""Products and dropout with a backward pass of their own, against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from transduce.nn.linear import column_sums, counters_of_sums, linear
from transduce.nn.mixed_precision import CastCopies, cast
from transduce.nn.pass_buffers import pass_buffers
from transduce.nn.residual import dropped


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 8), (1, 1, 8), (4, 8)])
def test_linear_is_torchs(relu: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(6, dtype=torch.float64, requires_grad=True)
    ours = linear(x, weight, bias, relu)
    theirs = F.linear(x, weight, bias)
    theirs = theirs.relu() if relu else theirs
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    grad = torch.randn_like(theirs)
    inputs = (x, weight, bias)
    for mine, other in zip(
        torch.autograd.grad(ours, inputs, grad),
        torch.autograd.grad(theirs, inputs, grad),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("relu", [False, True])
def test_linear_passes_gradcheck(relu: bool) -> None:
    torch.manual_seed(2)
    inputs = [
        torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((4, 3), (5, 3), (5,))
    ]
    assert torch.autograd.gradcheck(lambda *given: linear(*given, relu), inputs)


def test_under_autocast_it_is_as_near_as_torchs() -> None:
    torch.manual_seed(3)
    inputs = [torch.randn(*s, requires_grad=True) for s in ((64, 32), (16, 32), (16,))]
    grad = torch.randn(64, 16)
    exact = [t.detach().double().requires_grad_() for t in inputs]
    expected = torch.autograd.grad(F.linear(*exact), exact, grad.double())
    apart = []
    for function in (linear, F.linear):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = function(*inputs)
        assert y.dtype == torch.bfloat16
        found = torch.autograd.grad(y, inputs, grad.bfloat16())
        assert [g.dtype for g in found] == [torch.float32] * 3
        apart.append(
            [
                float((g.double() - e).norm() / e.norm())
                for g, e in zip(found, expected, strict=True)
            ]
        )
    for mine, theirs in zip(*apart, strict=True):
        assert mine <= 1.5 * theirs


def test_cast_copies_are_used_only_inside_their_block() -> None:
    weight, bias = torch.randn(6, 8, requires_grad=True), torch.randn(6, requires_grad=True)
    weights = [weight, bias]
    casts = CastCopies(weights, torch.bfloat16)
    x = torch.randn(3, 8)

    def product() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(x, weight, bias)

    with casts.active():
        assert cast(weight, torch.bfloat16) is casts.copy_of(weight)
        assert cast(weight, torch.float64).dtype == torch.float64
        assert cast(x, torch.bfloat16).tolist() == x.bfloat16().tolist()  # no weight
        before = product()
    torch.testing.assert_close(before, product())
    for w in weights:
        w.grad = torch.ones_like(w)
    torch.optim.AdamW(weights, lr=0.5, fused=True).step()  # does not raise weight._version
    expected = F.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16())
    torch.testing.assert_close(product(), expected)
    assert not torch.equal(product(), before)
    with casts.active():
        torch.testing.assert_close(product(), expected)  # copied anew
    with pytest.raises(KeyError), casts.active():
        raise KeyError
    assert cast(weight, torch.bfloat16) is not casts.copy_of(weight)


def test_of_nested_cast_copies_the_inner_ones_are_used() -> None:
    weight = torch.randn(4, 4)
    outer, inner = CastCopies([weight], torch.bfloat16), CastCopies([weight], torch.bfloat16)
    with outer.active():
        with inner.active():
            assert cast(weight, torch.bfloat16) is inner.copy_of(weight)
        assert cast(weight, torch.bfloat16) is outer.copy_of(weight)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_column_sums_on_several_streams_at_once() -> None:
    torch.manual_seed(1)
    many = [torch.randn(4096, 640, device="cuda") for _ in range(8)]
    expected = [x.sum(dim=0) for x in many]
    streams = [torch.cuda.Stream() for _ in many]
    torch.cuda.synchronize()
    for _ in range(50):
        found = []
        for x, stream in zip(many, streams, strict=True):
            with torch.cuda.stream(stream):
                found.append(column_sums(x))
        torch.cuda.synchronize()
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


def test_column_sums() -> None:
    x = torch.randn(50, 7, dtype=torch.float64)
    torch.testing.assert_close(column_sums(x), x.sum(dim=0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_every_place_is_dropped_as_often(share: float) -> None:
    torch.manual_seed(1)
    x = torch.ones(4001, 101, requires_grad=True)  # no multiple of four
    y = dropped(x, share, training=True)
    kept = y.detach() > 0
    for first in range(4):  # each random number serves four places in turn
        of_one = kept.flatten()[first::4]
        assert float(of_one.float().mean()) == pytest.approx(1 - share, abs=0.006)
    assert float(y.detach().mean()) == pytest.approx(1.0, abs=0.01)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, y.detach())
    assert not torch.equal(kept, dropped(x, share, training=True).detach() > 0)
    assert torch.equal(dropped(x, share, training=False), x)


def test_what_is_dropped_follows_torchs_seed() -> None:
    x = torch.ones(100)
    torch.manual_seed(5)
    first = dropped(x, 0.5, training=True)
    torch.manual_seed(5)
    assert torch.equal(dropped(x, 0.5, training=True), first)


@pytest.mark.parametrize("relu", [False, True])
def test_a_frozen_layer_passes_the_gradient_on(relu: bool) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 4, 5), torch.randn(6, 5), torch.randn(6)
    factors, found = torch.randn(3, 4, 6), []
    for frozen in (True, False):
        own = x.clone().requires_grad_()
        parts = [part.clone().requires_grad_(not frozen) for part in (weight, bias)]
        (linear(own, *parts, relu) * factors).sum().backward()
        found.append(own.grad)
        assert all((part.grad is None) == frozen for part in parts)
    assert torch.allclose(found[0], found[1], atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_counters_of_a_pass_serve_one_sum_after_the_other() -> None:
    """The kernel leaves zeros behind, so that another backward pass may use them again."""
    with pass_buffers():
        counters = counters_of_sums(640, torch.device("cuda"))
    assert counters is not None
    for rows in (4096, 700, 1):
        x = torch.randn(rows, 640, device="cuda")
        torch.testing.assert_close(column_sums(x, counters), x.sum(dim=0), rtol=1e-4, atol=1e-3)
        assert not counters.any()
