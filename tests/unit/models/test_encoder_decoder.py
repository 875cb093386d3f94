"""The network: what is tied, what is counted, what learns, what is saved and put back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.errors import ModelError
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from transduce.models.weights import set_weights, weights_of

WIDTH = 16
TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 24}
RECURRENT = {"kind": "recurrent", "cell": "gru"}


def network(sizes: tuple[int, int] = (11, 13), seed: int = 3, **model: Any) -> EncoderDecoder:
    torch.manual_seed(seed)
    parts = {"encoder": TRANSFORMER, "decoder": TRANSFORMER, **model}
    return build(recipe.Model.model_validate({"width": WIDTH, **parts}), Vocabulary(*sizes))


def count(net: EncoderDecoder) -> int:
    return sum(p.numel() for p in net.parameters())


def batch() -> tuple[Tensor, Tensor, Tensor]:
    source_BS = torch.tensor([[5, 6, 7, END], [8, END, PAD, PAD]])
    target_BT = torch.tensor([[BEGIN, 5, 6, END], [BEGIN, 9, END, PAD]])
    return source_BS, torch.tensor([4, 2]), target_BT


# -------------------------------------------------------------------------------------- tying


@pytest.mark.parametrize(
    ("tie_embeddings", "one"),
    [
        ("all", {"front", "decoder", "head"}),
        ("target", {"decoder", "head"}),
        ("none", set()),
    ],
)
@pytest.mark.parametrize("part", [TRANSFORMER, RECURRENT], ids=["transformer", "recurrent"])
def test_tie_makes_one_tensor_of_exactly_these(
    tie_embeddings: str, one: set[str], part: Any
) -> None:
    net = network((12, 12), tie_embeddings=tie_embeddings, encoder=part, decoder=part)
    tables = {
        "front": net.front.table.weight,
        "decoder": net.decoder.embedding.table.weight,
        "head": net.head.weight,
    }
    for name, table in tables.items():
        shared = {other for other, tensor in tables.items() if tensor is table}
        assert shared == (one if name in one else {name})


def test_tying_saves_exactly_one_table_each() -> None:
    table = 12 * WIDTH
    everything, target, nothing = (
        count(network((12, 12), tie_embeddings=t)) for t in ("all", "target", "none")
    )
    assert nothing - target == table
    assert target - everything == table


def test_the_number_of_parameters_is_that_of_the_equations() -> None:
    attention = 4 * WIDTH * WIDTH + 4 * WIDTH
    feed_forward = 2 * 24 * WIDTH + 24 + WIDTH
    norm = 2 * WIDTH
    encoder = attention + feed_forward + 2 * norm + norm
    decoder = 2 * attention + feed_forward + 3 * norm + norm
    assert (
        count(network(tie_embeddings="none"))
        == encoder + decoder + 11 * WIDTH + 13 * WIDTH + 13 * WIDTH + 13
    )


def test_concatenated_positions_take_half_the_width_and_are_narrowed_for_a_tied_head() -> None:
    beside = {**TRANSFORMER, "combine": "concatenate"}
    tied = network(encoder=beside, decoder=beside, tie_embeddings="target")
    assert tied.front.table.weight.shape == (11, WIDTH // 2)
    assert tied.head.weight.shape == (13, WIDTH // 2)
    assert network(encoder=beside, decoder=beside, tie_embeddings="none").head.weight.shape == (
        13,
        WIDTH,
    )
    features_BTD = tied(*batch()[:2], batch()[2][:, :-1])
    assert features_BTD.shape == (2, 3, WIDTH)
    assert tied.head(features_BTD).shape == (2, 3, 13)


@pytest.mark.parametrize(
    "parts",
    [
        {"encoder": {**TRANSFORMER, "combine": "concatenate"}},
        {"decoder": {**TRANSFORMER, "combine": "concatenate"}},
        {"encoder": {**TRANSFORMER, "combine": "concatenate"}, "decoder": RECURRENT},
    ],
)
def test_tables_of_different_widths_cannot_be_one(parts: dict[str, Any]) -> None:
    with pytest.raises(
        ValidationError, match="tie_embeddings is all, which needs the same combine"
    ):
        network((12, 12), tie_embeddings="all", **parts)


def test_tables_of_different_sizes_cannot_be_one() -> None:
    with pytest.raises(ModelError, match="tie_embeddings: all"):
        network((11, 13), tie_embeddings="all")


# ------------------------------------------------------------------------------------ learning


@pytest.mark.parametrize("tie_embeddings", ["all", "target", "none"])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"encoder": {**TRANSFORMER, "positions": "learned", "max_positions": 9}},
        {"encoder": RECURRENT, "decoder": RECURRENT},
        {
            "encoder": {"kind": "recurrent", "cell": "lstm-peephole", "layers": 2, "skip": True},
            "decoder": {
                "kind": "recurrent",
                "cell": "lstm-peephole",
                "layers": 2,
                "skip": True,
                "attention": "additive",
                "context": "both",
            },
        },
        {"decoder": {**RECURRENT, "layers": 2, "attention": "none"}},
        {"decoder": {**RECURRENT, "attention": "location"}},
    ],
    ids=["transformer", "learned", "gru", "peephole", "bridge", "location"],
)
def test_every_parameter_learns(parts: dict[str, Any], tie_embeddings: str) -> None:
    net = network((13, 13), tie_embeddings=tie_embeddings, **parts)
    net.loss(*batch()).total.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_a_tied_table_hears_from_every_side() -> None:
    """Tokens that stand only in the source, only in the target or nowhere all get gradients."""
    net = network((13, 13), tie_embeddings="all")
    net.loss(*batch()).total.backward()
    rows = net.front.table.weight.grad.abs().sum(dim=1)
    assert (rows > 0).all()  # as rows of the head
    net = network((13, 13), tie_embeddings="none")
    net.loss(*batch()).total.backward()
    read = (net.front.table.weight.grad.abs().sum(dim=1) > 0).nonzero().squeeze(1).tolist()
    assert read == [END, 5, 6, 7, 8]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_torchs_cross_entropy_of_the_logits(smoothing: float) -> None:
    net = network().eval()
    source_BS, lengths_B, target_BT = batch()
    logits_BTV = net.head(net(source_BS, lengths_B, target_BT[:, :-1]))
    expected = torch.nn.functional.cross_entropy(
        logits_BTV.flatten(0, 1),
        target_BT[:, 1:].flatten(),
        ignore_index=PAD,
        reduction="sum",
        label_smoothing=smoothing,
    )
    loss = net.loss(source_BS, lengths_B, target_BT, smoothing)
    torch.testing.assert_close(loss.total, expected)
    assert int(loss.tokens) == 5


@pytest.mark.parametrize("part", [TRANSFORMER, RECURRENT], ids=["transformer", "recurrent"])
def test_steps_give_the_log_probabilities_that_training_scores(part: Any) -> None:
    net = network(encoder=part, decoder=part).eval()
    source_BS, lengths_B, target_BT = batch()
    total = torch.zeros(())
    with torch.no_grad():
        state = net.start(source_BS, lengths_B)
        for tokens_B, next_B in zip(target_BT[:, :-1].T, target_BT[:, 1:].T, strict=True):
            log_probs_BV, state = net.step(tokens_B, state)
            torch.testing.assert_close(log_probs_BV.exp().sum(dim=1), torch.ones(2))
            chosen_B = log_probs_BV.gather(1, next_B[:, None]).squeeze(1)
            total = total - chosen_B[next_B != PAD].sum()
    torch.testing.assert_close(total, net.loss(source_BS, lengths_B, target_BT).nll)


def test_log_probabilities_are_float32_whatever_the_weights() -> None:
    for dtype in (torch.bfloat16, torch.float64):
        net = network().to(dtype).eval()
        with torch.no_grad():
            log_probs_BV, _ = net.step(torch.tensor([BEGIN, BEGIN]), net.start(*batch()[:2]))
        assert log_probs_BV.dtype == torch.float32


def test_dropout_acts_in_training_alone() -> None:
    net = network(dropout=0.5)
    source_BS, lengths_B, target_BT = batch()
    one, other = (net(source_BS, lengths_B, target_BT) for _ in range(2))
    assert not torch.allclose(one, other)
    net.eval()
    one, other = (net(source_BS, lengths_B, target_BT) for _ in range(2))
    assert torch.equal(one, other)


def test_a_seed_fixes_the_first_weights() -> None:
    one, same, other = network(seed=1), network(seed=1), network(seed=2)
    for (name, a), (_, b), (_, c) in zip(
        *(weights_of(net).items() for net in (one, same, other)), strict=True
    ):
        assert torch.equal(a, b), name
        if name.endswith("projection.weight"):
            assert not torch.equal(a, c), name


# ------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("tie_embeddings", ["all", "target", "none"])
def test_weights_are_named_once_and_put_back_whole(tie_embeddings: str) -> None:
    net = network((12, 12), tie_embeddings=tie_embeddings, decoder=RECURRENT)
    weights = {name: w.clone() for name, w in weights_of(net).items()}
    assert sum(w.numel() for w in weights.values()) == count(net)
    assert len({w.data_ptr() for w in weights_of(net).values()}) == len(weights)
    other = network((12, 12), seed=4, tie_embeddings=tie_embeddings, decoder=RECURRENT)
    set_weights(other, weights, Path("x"))
    for name, tensor in other.state_dict().items():  # which has a tied tensor under each name
        assert torch.equal(tensor, net.state_dict()[name]), name
    assert (other.head.weight is other.decoder.embedding.table.weight) == (tie_embeddings != "none")


def test_weights_that_do_not_fit_are_named() -> None:
    net = network()
    weights = weights_of(net)
    name = "encoder.blocks.0.self_attention.in_projection.weight"
    path = Path("there/model.safetensors")

    def refused(values: dict[str, Tensor]) -> str:
        with pytest.raises(ModelError) as error:
            set_weights(net, values, path)
        assert str(path) in str(error.value)
        return str(error.value)

    assert name in refused({n: w for n, w in weights.items() if n != name})
    assert "encoder.stranger" in refused({**weights, "encoder.stranger": torch.zeros(2)})
    message = refused({**weights, name: torch.zeros(48, 8)})
    assert name in message
    assert "(48, 8)" in message
    assert "(48, 16)" in message
    # What would fit by broadcasting does not fit.
    assert "head.bias" in refused({**weights, "head.bias": torch.zeros(1)})


def test_weights_that_do_not_fit_change_nothing() -> None:
    net = network()
    before = {name: w.clone() for name, w in weights_of(net).items()}
    changed = {name: w + 1 for name, w in before.items()} | {"head.bias": torch.zeros(2)}
    with pytest.raises(ModelError):
        set_weights(net, changed, Path("x"))
    for name, weight in weights_of(net).items():
        assert torch.equal(weight, before[name]), name
