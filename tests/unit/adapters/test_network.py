"""Adapters beside a frozen network: what they compute, what is trained, what merging gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tiny_models import SOURCES, TARGETS, tiny
from transduce.adapters import AdaptedNetwork, adaptable
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.models.weights import weights_of
from transduce.nn.low_rank import LowRank, adapted
from transduce.tasks.transduce import Transducer


def batch_of(model: Transducer) -> tuple[Tensor, Tensor, Tensor]:
    rows = [
        (model.source_tokens.encode(s), model.target_tokens.encode(t))
        for s, t in zip(SOURCES, TARGETS, strict=True)
        if s
    ]
    sources = [torch.tensor([*s, END]) for s, _ in rows]
    targets = [torch.tensor([BEGIN, *t, END]) for _, t in rows]
    pad = torch.nn.utils.rnn.pad_sequence
    return (
        pad(sources, batch_first=True, padding_value=PAD),
        torch.tensor([len(s) for s in sources]),
        pad(targets, batch_first=True, padding_value=PAD),
    )


def adapted_network(model: Transducer, kind: str, only: str = "", **more: float) -> AdaptedNetwork:
    places = [place for name, place in adaptable(model.network).items() if name.endswith(only)]
    return AdaptedNetwork(
        model.network, places, rank=3, alpha=6.0, magnitude=kind == "dora", **more
    )  # type: ignore[arg-type]


def shake(network: AdaptedNetwork) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in network.low_rank.named_parameters():
            if name.endswith((".A", ".B")):
                parameter.normal_(std=0.3)
            else:
                parameter.mul_(1 + 0.3 * torch.rand_like(parameter))


def test_lora_is_a_second_path_beside_the_matrix() -> None:
    torch.manual_seed(0)
    W, x = torch.randn(5, 7), torch.randn(4, 7)
    one = LowRank(W, rank=2, alpha=6.0)
    torch.nn.init.normal_(one.B)
    expected = x @ W.T + 3.0 * (x @ one.A.T) @ one.B.T
    assert torch.allclose(x @ one(W).T, expected, atol=1e-5)


def test_the_rows_of_dora_have_the_trained_lengths() -> None:
    torch.manual_seed(0)
    W = torch.randn(5, 7)
    one = LowRank(W, rank=2, alpha=6.0, magnitude=True)
    assert torch.allclose(one(W), W, atol=1e-6)  # at first it changes nothing
    torch.nn.init.normal_(one.B)
    assert one.magnitude is not None
    with torch.no_grad():
        one.magnitude.copy_(torch.arange(1.0, 6.0))
    assert torch.allclose(one(W).norm(dim=1), torch.arange(1.0, 6.0), atol=1e-5)
    direction = torch.nn.functional.normalize(W + 3.0 * one.B @ one.A, dim=1)
    assert torch.allclose(torch.nn.functional.normalize(one(W), dim=1), direction, atol=1e-5)


def test_dropout_drops_inputs_of_the_adapter_alone() -> None:
    torch.manual_seed(0)
    W = torch.randn(5, 400)
    one = LowRank(W, rank=2, alpha=2.0, dropout=0.25)
    torch.nn.init.normal_(one.B)
    ratio = ((one(W) - W) / (one.B @ one.A))[0]
    kept = ratio.abs() > 1e-3
    assert 0.65 < kept.float().mean() < 0.85
    assert torch.allclose(ratio[kept], torch.tensor(4 / 3), rtol=1e-2)
    assert torch.allclose(one.eval()(W), adapted(W, one.A, one.B, 1.0))


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_it_starts_as_the_network_and_trains_nothing_else(kind: str) -> None:
    model = tiny()
    batch = batch_of(model)
    before = model.network.loss(*batch).total.item()
    own = dict(model.network.named_parameters())
    network = adapted_network(model, kind)
    loss = network.loss(*batch)
    assert loss.total.item() == pytest.approx(before, rel=1e-6)
    loss.total.backward()
    assert all(parameter.grad is None for parameter in own.values())
    assert all(p.grad is not None for p in network.low_rank.parameters())
    # The modules have their own parameters back, not copies.
    assert all(own[n] is p for n, p in model.network.named_parameters())


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_merged_and_unmerged_agree(kind: str) -> None:
    model = tiny()
    batch, before = batch_of(model), weights_of(model.network)
    network = adapted_network(model, kind)
    shake(network)
    unmerged = network.loss(*batch).total.item()
    merged = network.state().merged(before, adaptable(model.network))
    plain = model.network.loss(*batch).total.item()
    model.network.load_state_dict(merged, strict=False)
    assert abs(plain - unmerged) > 1.0
    assert model.network.loss(*batch).total.item() == pytest.approx(unmerged, rel=1e-5)


def test_queries_keys_and_values_have_an_adapter_each() -> None:
    model = tiny()
    network = adapted_network(model, "lora", ".k")
    shake(network)
    before = weights_of(model.network)
    merged = network.state().merged(before, adaptable(model.network))
    assert all(name.endswith("in_projection.weight") for name in merged)
    for name, value in merged.items():
        same = [
            torch.equal(a, b) for a, b in zip(value.chunk(3), before[name].chunk(3), strict=True)
        ]
        assert same == [True, False, True], name


def test_embeddings_and_what_is_tied_to_them_take_no_adapter() -> None:
    tied, apart = adaptable(tiny().network), adaptable(tiny(tie_embeddings="none").network)
    assert set(apart) - set(tied) == {"head"}
    assert not any("table" in name for name in apart)
