"""Muon against a plain float64 loop, and its iteration against the singular value decomposition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transduce import recipe
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from transduce.training.muon import Muon, hidden_matrices, orthogonalize
from transduce.training.optimizer import build_optimizer, set_learning_rate

SHAPE: dict[str, Any] = {"layers": 1, "heads": 2, "feed_forward": 16}


def network(**keys: Any) -> EncoderDecoder:
    torch.manual_seed(1)
    shape = {"width": 8, "encoder": SHAPE, "decoder": SHAPE, **keys}
    return build(recipe.Model.model_validate(shape), Vocabulary(9, 9)).double()


def settings(**values: Any) -> recipe.Train:
    return recipe.Train.model_validate({"optimizer": "muon", "lr": 0.01, **values})


def by_svd(matrix: Tensor) -> Tensor:
    """The same singular vectors; singular values through the polynomial, five times."""
    u, s, v = torch.linalg.svd(matrix / (matrix.norm() + 1e-7), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ torch.diag(s) @ v


@pytest.mark.parametrize("shape", [(5, 5), (3, 8), (8, 3)])
def test_the_iteration_changes_singular_values_alone(shape: tuple[int, int]) -> None:
    torch.manual_seed(2)
    several = torch.randn(4, *shape, dtype=torch.float64)
    found = orthogonalize(several)
    for one, made in zip(several, found, strict=True):
        torch.testing.assert_close(made, by_svd(one), rtol=1e-9, atol=1e-9)
        values = torch.linalg.svdvals(made)
        assert float(values.max()) < 1.3
    assert not orthogonalize(torch.zeros(1, 3, 4)).any()


def test_embeddings_and_the_output_layer_are_not_among_the_matrices() -> None:
    for tied in ("none", "target", "all"):
        names = [name for name, _ in hidden_matrices(network(tie_embeddings=tied))]
        assert "encoder.blocks.0.feed_forward.expand.weight" in names
        assert not any("table" in name or name.startswith("head") for name in names)
        assert not any(name.endswith("bias") or "norm" in name for name in names)


def test_updates_are_those_of_a_plain_loop() -> None:
    made = network()
    optimizer = build_optimizer(made, settings(weight_decay=0.1))
    assert isinstance(optimizer, Muon)
    matrices = dict(hidden_matrices(made))
    own = {name: weight.detach().clone() for name, weight in matrices.items()}
    past = {name: torch.zeros_like(weight) for name, weight in own.items()}
    rest = {n: p.detach().clone() for n, p in made.named_parameters() if n not in own}
    twin = {name: torch.nn.Parameter(weight.clone()) for name, weight in rest.items()}
    groups = [
        {"params": [p for p in twin.values() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in twin.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    random = torch.Generator().manual_seed(3)
    for step in range(4):
        rate = 0.01 / (step + 1)
        for other in (optimizer, adamw):
            set_learning_rate(other, rate)
        for name, parameter in made.named_parameters():
            gradient = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            parameter.grad = gradient
            if name in twin:
                twin[name].grad = gradient.clone()
                continue
            past[name] = 0.95 * past[name] + 0.05 * gradient
            look = 0.05 * gradient + 0.95 * past[name]
            blocks = look.split(8) if "in_projection" in name else [look]
            update = torch.cat([by_svd(one) * 0.2 * max(one.shape) ** 0.5 for one in blocks])
            own[name] = own[name] * (1 - rate * 0.1) - rate * update
        optimizer.step()
        adamw.step()
    for name, parameter in made.named_parameters():
        expected = own.get(name, twin.get(name))
        torch.testing.assert_close(parameter.detach(), expected.detach(), rtol=1e-8, atol=1e-9)


def test_a_gradient_that_is_no_number_changes_nothing() -> None:
    made = network()
    optimizer = build_optimizer(made, settings())
    optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    for wrong in (False, True, False):
        before = {name: p.detach().clone() for name, p in made.named_parameters()}
        states = [
            {part: value.clone() for part, value in optimizer.state[p].items()}
            for p in made.parameters()
        ]
        optimizer.found_inf.fill_(float(wrong))  # type: ignore[attr-defined]
        for parameter in made.parameters():
            parameter.grad = torch.full_like(parameter, float("nan") if wrong else 0.5)
        optimizer.step()
        same = [torch.equal(before[name], p.detach()) for name, p in made.named_parameters()]
        assert all(same) if wrong else not any(same)
        if wrong:
            for parameter, old in zip(made.parameters(), states, strict=True):
                for part, value in optimizer.state[parameter].items():
                    assert torch.equal(value, old[part]), part


def test_muon_does_not_go_with_fsdp() -> None:
    with pytest.raises(ValueError, match="needs whole matrices"):
        settings(fsdp=True)
