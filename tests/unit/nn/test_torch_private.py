"""What torch does not document: each test names the function that a new torch has broken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn import torch_private as private

# As any of them may be gone in a torch to come, each has a public way; these have not.
WITHOUT = {"reorder_linear_weight", "linear_pointwise"}


@pytest.fixture(params=["private", "public"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As this torch does it, and as if it had none of its private names."""
    if request.param == "public":
        monkeypatch.setattr(private, "_found", dict.fromkeys(private.PRIVATE))
    return str(request.param)


def some(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", private.PRIVATE)
def test_this_torch_still_has_it(name: str) -> None:
    reported = f"torch.{private.PRIVATE[name]} is gone from torch {torch.__version__}: mend {name}"
    assert private.find(private.PRIVATE[name]) is not None, reported


def test_a_name_that_is_gone_is_none() -> None:
    assert private.find("_there_was_never_this") is None
    assert private.find("ops.mkldnn._nor_this") is None


@pytest.mark.usefixtures("way")
def test_addmm_relu() -> None:
    bias, x, weight = some(5), some(7, 3), some(3, 5)
    expected = (x @ weight + bias).clamp(min=0)
    torch.testing.assert_close(private.addmm_relu(bias, x, weight), expected)


@pytest.mark.usefixtures("way")
def test_relu_backward() -> None:
    x = some(7, 3).requires_grad_()
    y, grad = F.relu(x), some(7, 3, seed=2)
    (expected,) = torch.autograd.grad(y, x, grad)
    torch.testing.assert_close(private.relu_backward(grad, y.detach()), expected)


@pytest.mark.usefixtures("way")
def test_embedding_backward() -> None:
    table, tokens = some(9, 4).requires_grad_(), torch.tensor([[1, 2, 1], [8, 0, 1]])
    grad = some(2, 3, 4, seed=2)
    (expected,) = torch.autograd.grad(F.embedding(tokens, table), table, grad)
    torch.testing.assert_close(private.embedding_backward(grad, tokens, 9), expected)


@pytest.mark.usefixtures("way")
def test_many_tensors() -> None:
    ones, twos = [some(3), some(2, 2)], [some(3, seed=2), some(2, 2, seed=3)]
    apart = private.differences(ones, twos)
    for found, one, two in zip(apart, ones, twos, strict=True):
        torch.testing.assert_close(found, one - two)
    private.multiply_all(apart, 0.5)
    private.multiply_all(apart, torch.tensor(2.0))
    private.add_all(apart, twos)
    for found, one in zip(apart, ones, strict=True):
        torch.testing.assert_close(found, one)
    halves = [tensor.bfloat16() for tensor in twos]
    private.copy_all(halves, ones)
    assert all(half.equal(one.bfloat16()) for half, one in zip(halves, ones, strict=True))


def test_a_weight_that_is_laid_out_anew() -> None:
    if not private.can_reorder():
        pytest.skip("this torch was built without oneDNN")
    x, weight, bias = some(8, 16), some(32, 16), some(32)
    packed = private.reorder_linear_weight(weight)
    product = private.linear_pointwise()
    plain = F.linear(x, weight, bias)
    close: dict[str, Any] = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(product(x, packed, bias, "none", [], ""), plain, **close)
    torch.testing.assert_close(product(x, packed, bias, "relu", [], ""), plain.relu(), **close)


def test_without_its_names_nothing_is_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from transduce.runtime.packed_weight import bfloat16, float32_by_torch

    monkeypatch.setattr(private, "_found", dict.fromkeys(private.PRIVATE))
    assert not private.can_reorder()
    assert not private.has_bfloat16_on_cpu()
    x, weight, bias = some(8, 16), some(32, 16), some(32)
    expected = F.linear(x, weight, bias)
    torch.testing.assert_close(float32_by_torch(weight, bias)(x, False), expected)
    torch.testing.assert_close(bfloat16(weight, bias)(x, False), expected, atol=0.1, rtol=0.1)


def test_versions(way: str) -> None:
    tensor = torch.zeros(3)
    before = private.version_of(tensor)
    assert (private.version_of(tensor) == before) == (way == "private")
    tensor.add_(1)
    assert private.version_of(tensor) != before


def test_forward_hooks() -> None:
    module = nn.Linear(2, 2)
    assert not private.has_forward_hooks(module)
    for register in (module.register_forward_hook, module.register_forward_pre_hook):
        handle = register(lambda *_: None)  # type: ignore[operator]
        assert private.has_forward_hooks(module)
        assert any(private.forward_hooks(module))
        handle.remove()
        assert not private.has_forward_hooks(module)
    named = {name for name in vars(module) if name.startswith("_forward")}
    assert named == set(private.FORWARD_HOOKS), "torch keeps forward hooks elsewhere as well"


def test_kept_tensors() -> None:
    module = nn.BatchNorm1d(3)
    module.register_buffer("computed", torch.zeros(1), persistent=False)
    module.register_parameter("nothing", None)
    kept = private.kept_tensors(module)
    assert {id(tensor) for tensor in kept} == {
        id(tensor) for tensor in module.state_dict(keep_vars=True).values()
    }


def test_with_weights() -> None:
    module, other = nn.Linear(2, 2), torch.ones(2, 2, requires_grad=True)
    own = module.weight
    with private.with_weights([(module, other)]):
        module(torch.ones(1, 2)).sum().backward()
    assert module.weight is own
    assert own.grad is None
    assert torch.equal(other.grad, torch.ones(2, 2))
    with pytest.raises(RuntimeError), private.with_weights([(module, other)]):
        module(torch.ones(1, 3))
    assert module.weight is own


@pytest.mark.parametrize("fused", [False, True])
def test_adamw(fused: bool) -> None:
    """To the bit that of torch: updates, the state, and what goes on from a state."""
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    optimizers: list[torch.optim.Optimizer] = [
        kind(module.parameters(), lr=0.1, weight_decay=0.2, fused=fused)
        for kind, module in ((private.AdamW, ours), (torch.optim.AdamW, theirs))
    ]
    for update in range(4):
        for module, optimizer in zip((ours, theirs), optimizers, strict=True):
            module(some(4, 3, seed=update)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert module.weight.grad is None
            assert module.weight.grad_fn is None
            if update == 1:
                optimizer.load_state_dict(optimizer.state_dict())
    assert torch.equal(ours.weight, theirs.weight)
    own, other = (optimizer.state_dict() for optimizer in optimizers)
    assert own["param_groups"] == other["param_groups"]
    for index, state in other["state"].items():
        assert own["state"][index].keys() == state.keys()
        for name, value in state.items():
            assert torch.equal(own["state"][index][name], value)


def test_a_method_called_with_hooks_is_called_as_forward_is() -> None:
    torch.manual_seed(1)
    module, x = nn.Linear(3, 2), some(4, 3)
    module.register_forward_pre_hook(lambda _, given: given[0] + 1)
    module.register_forward_pre_hook(
        lambda _, given, named: ((given[0] * 2,), named), with_kwargs=True
    )
    module.register_forward_hook(lambda _, given, output: output - given[0].sum())
    module.register_forward_hook(lambda _, given, named, output: output / 3, with_kwargs=True)
    module.register_forward_hook(lambda *_: None)
    assert torch.equal(private.call_hooked(module, module.forward, x), module(x))


def test_a_hook_may_call_its_module_which_stays_as_it_was() -> None:
    module, seen = nn.Linear(3, 2), list[Any]()
    module.register_forward_hook(
        lambda _, given, output: seen.append((module.forward(given[0]), output))
    )
    private.call_hooked(module, lambda x: torch.zeros(len(x), 2), some(4, 3))
    own, given = seen[0]
    assert torch.equal(own, F.linear(some(4, 3), module.weight, module.bias))
    assert not given.any()
