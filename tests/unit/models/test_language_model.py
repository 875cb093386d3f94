"""A decoder alone: no parameter for a source, steps as in training, nothing of the future."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.data.batches.packing import pack
from transduce.data.tokens.tokenizer import BEGIN, PAD
from transduce.models.build import build_language_model
from transduce.models.language_model import LanguageModelNetwork

WIDTH, VOCABULARY = 16, 11

TRANSFORMERS: dict[str, dict[str, Any]] = {
    "sinusoidal": {"positions": "sinusoidal"},
    "learned": {"positions": "learned", "max_positions": 32},
    "rotary": {"positions": "rotary", "norm": "rms", "activation": "swiglu"},
    "fourier": {"positions": "fourier", "combine": "concatenate"},
    "post-norm": {"norm_position": "post", "activation": "gelu"},
}
CELLS = ("elman", "gru", "lstm", "lstm-peephole")


def network(decoder: dict[str, Any], **model: Any) -> LanguageModelNetwork:
    torch.manual_seed(3)
    settings = recipe.Model.model_validate({"width": WIDTH, "decoder": decoder, **model})
    return build_language_model(settings, VOCABULARY).double().eval()


def transformer(name: str = "sinusoidal", **more: Any) -> LanguageModelNetwork:
    shape = {"kind": "transformer", "layers": 2, "heads": 2, "feed_forward": 24}
    return network({**shape, **TRANSFORMERS[name]}, **more)


def recurrent(cell: str = "lstm", **decoder: Any) -> LanguageModelNetwork:
    shape = {"kind": "recurrent", "cell": cell, "layers": 2, "attention": "none"}
    return network({**shape, **decoder})


def convolutional(**decoder: Any) -> LanguageModelNetwork:
    return network({"kind": "convolutional", "layers": 2, **decoder})


NETWORKS = {name: (lambda name=name: transformer(name)) for name in TRANSFORMERS} | {
    cell: (lambda cell=cell: recurrent(cell, skip=cell == "lstm")) for cell in CELLS
}
NETWORKS |= {
    "convolutional": convolutional,
    "convolutional, learned": lambda: convolutional(kernel=4, positions="learned"),
    "convolutional, no positions": lambda: convolutional(layers=3, positions="none"),
}


def tokens(rows: int = 3, steps: int = 7, seed: int = 5) -> Tensor:
    drawn_BT = torch.randint(
        4, VOCABULARY, (rows, steps), generator=torch.Generator().manual_seed(seed)
    )
    return torch.cat([torch.full((rows, 1), BEGIN), drawn_BT], dim=1)


@torch.no_grad()
def parallel(net: LanguageModelNetwork, tokens_BT: Tensor) -> Tensor:
    return torch.log_softmax(net.head(net(tokens_BT)), dim=-1)


@pytest.mark.parametrize("kind", NETWORKS)
@torch.no_grad()
def test_reading_in_one_pass_and_step_by_step_is_the_same(kind: str) -> None:
    net, tokens_BT = NETWORKS[kind](), tokens()
    whole_BTV = parallel(net, tokens_BT)
    assert whole_BTV.std() > 1e-3
    for already in (0, 1, 4):
        state = net.read(tokens_BT[:, :already])
        for step in range(already, tokens_BT.shape[1]):
            log_probs_BV, state = net.step(tokens_BT[:, step], state)
            torch.testing.assert_close(
                log_probs_BV.double(), whole_BTV[:, step], rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("kind", NETWORKS)
@torch.no_grad()
def test_rows_may_be_repeated_left_out_and_moved(kind: str) -> None:
    net, tokens_BT = NETWORKS[kind](), tokens()
    whole_BTV = parallel(net, tokens_BT)
    index_B = torch.tensor([2, 2, 0, 2])
    for already in (0, 3):
        state = net.read(tokens_BT[:, :already])
        state.reorder(index_B)
        log_probs_BV, _ = net.step(tokens_BT[index_B, already], state)
        torch.testing.assert_close(
            log_probs_BV.double(), whole_BTV[index_B, already], rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("kind", NETWORKS)
def test_nothing_sees_what_is_to_come(kind: str) -> None:
    net, tokens_BT = NETWORKS[kind](), tokens()
    other_BT = tokens_BT.clone()
    other_BT[:, 4:] = 4
    before, after = parallel(net, tokens_BT), parallel(net, other_BT)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_a_decoder_alone_has_no_parameter_for_a_source() -> None:
    for net in (transformer(), recurrent(), convolutional()):
        names = [name for name, _ in net.named_parameters()]
        assert not [name for name in names if "cross" in name or "bridge" in name]
        assert not [name for name in names if "query" in name or "context" in name]
    # embedding and its tied head; qkv and output, two layers of feed-forward, norms, each with bias
    D, F, V = WIDTH, 24, VOCABULARY
    block = (3 * D * D + 3 * D) + (D * D + D) + (2 * D * F + F + D) + 2 * 2 * D
    count = sum(p.numel() for p in transformer().parameters())
    assert count == V * D + V + 2 * block + 2 * D
    # two linear layers around blocks of one product, each with bias
    block = 3 * D * 2 * D + 2 * D
    count = sum(p.numel() for p in convolutional().parameters())
    assert count == V * D + V + 2 * (D * D + D) + 2 * block


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary", "learned"])
def test_the_packed_loss_is_the_loss(kind: str) -> None:
    net = transformer(kind)
    rows = [[4, 5, 6, 7, 8], [9], [10, 4, 4]]
    batch = collate([[]] * 3, rows)
    assert batch.target_BT is not None
    padded = net.loss(batch.source_BS, batch.source_lengths_B, batch.target_BT)
    packed = net.packed_loss(pack(batch))
    torch.testing.assert_close(padded.total, packed.total)
    assert int(padded.tokens) == int(packed.tokens) == sum(len(row) + 1 for row in rows)


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_parameter_learns(kind: str) -> None:
    net, tokens_BT = NETWORKS[kind](), tokens()
    empty_BS = torch.full((3, 1), PAD)
    net.loss(empty_BS, torch.ones(3, dtype=torch.int64), tokens_BT).total.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
