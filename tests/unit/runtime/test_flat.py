"""Flat steps give what the network gives, whatever it is made of and however it is searched."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, product
from typing import Any

import pytest
import torch
from torch import Tensor

from slow_params import some_slow
from tiny_models import drawn
from transduce import recipe
from transduce.data.tokens.tokenizer import PAD
from transduce.decoding.constraints.constraint import Constraint, Exclude, NoRepeat, Prefix
from transduce.decoding.search.beam import beam
from transduce.decoding.search.greedy import Hypothesis, Stepper, greedy, sample
from transduce.models import EncoderDecoder, Lens
from transduce.models.build import Vocabulary, build
from transduce.runtime import packed_weight as products
from transduce.runtime.flat import ROOM, FlatState, FlatSteps, has_flat_steps, take_rows
from transduce.runtime.packed_copy import packed

V = 300
B = 6
LENGTHS = torch.tensor([6, 1, 3, 9, 4, 2])
LIMITS = torch.tensor([2 * ROOM + 6, 4, 12, 18, ROOM + 1, 1])

SHAPES: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm_position": "post"},
    "gelu": {"activation": "gelu"},
    "swiglu": {"activation": "swiglu"},
    "rms": {"norm": "rms", "norm_position": "post"},
    "rotary": {"positions": "rotary"},
    "learned": {"positions": "learned"},
    "fourier": {"positions": "fourier"},
    "no positions": {"positions": "none"},
    "concatenated": {"combine": "concatenate"},
    "one head": {"heads": 1, "layers": 1},
}


def network(tie_embeddings: str = "target", **parts: Any) -> EncoderDecoder:
    side = {"layers": 2, "heads": 2, "feed_forward": 24, **parts}
    shape = {
        "width": 16,
        "dropout": 0.1,
        "tie_embeddings": tie_embeddings,
        "encoder": side,
        "decoder": side,
    }
    return drawn(shape, V)


def source() -> tuple[Tensor, Tensor, Tensor]:
    source_BS = torch.randint(4, V, (B, 9), generator=torch.Generator().manual_seed(1))
    source_BS[torch.arange(9) >= LENGTHS[:, None]] = PAD
    return source_BS, LENGTHS, LIMITS


def bans() -> list[Constraint]:
    device = torch.device("cpu")
    phrases = [[[number]] for number in range(4, 4 + B)]
    prefixes = [[9, 8], [], [7], [5, 5, 5], [11], []]
    return [NoRepeat(2), Exclude(phrases, device), Prefix(prefixes, device)]


SEARCHES: dict[str, Callable[[Stepper], list[list[Hypothesis]]]] = {
    "greedy": lambda model: greedy(model, *source()),
    "beam": lambda model: beam(model, *source(), 4, 3),
    "groups": lambda model: beam(model, *source(), 4, 4, groups=2, diversity=0.5),
    "sample": lambda model: sample(model, *source(), list(range(B)), copies=3, top_k=40),
    "greedy with constraints": lambda model: greedy(model, *source(), constraints=bans()),
    "beam with constraints": lambda model: beam(model, *source(), 3, 2, constraints=bans()),
}


# Steps are the same in every search: all searches for one shape, one for the others.
TRIED = some_slow(
    product(SHAPES, SEARCHES),
    [("pre", way) for way in SEARCHES] + [(name, "beam") for name in SHAPES],
)


def check_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[h.tokens for h in one] for one in found] == [[h.tokens for h in e] for e in expected]
    for ours, theirs in zip(chain(*found), chain(*expected), strict=True):
        assert ours.log_probability == pytest.approx(theirs.log_probability, abs=1e-5, rel=1e-5)
        assert ours.score == pytest.approx(theirs.score, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize(("name", "way"), TRIED)
@torch.inference_mode()
def test_the_same_hypotheses(name: str, way: str) -> None:
    made = network(**SHAPES[name])
    expected = SEARCHES[way](made)
    assert len({tuple(h.tokens) for of_one in expected for h in of_one}) > 1
    check_same(SEARCHES[way](FlatSteps(packed(made, "float32"))), expected)


@pytest.mark.parametrize("way", SEARCHES)
@pytest.mark.parametrize("tie_embeddings", ["none", "target", "all"])
@torch.inference_mode()
def test_in_float64_to_the_last_but_a_few_bits(tie_embeddings: str, way: str) -> None:
    made = network(tie_embeddings).double()
    check_same(SEARCHES[way](FlatSteps(made)), SEARCHES[way](made))


@torch.inference_mode()
def test_each_step_says_what_the_network_says_of_the_whole() -> None:
    made = network().double()
    steps = FlatSteps(made)
    source_BS, lengths_B, _ = source()
    target_BT = torch.randint(4, V, (B, ROOM + 5), generator=torch.Generator().manual_seed(2))
    features_BTD = made(source_BS, lengths_B, target_BT)
    expected_BTV = made.head(features_BTD).log_softmax(dim=-1)
    state = steps.start(source_BS, lengths_B)
    assert isinstance(state, FlatState)
    for t, tokens_B in enumerate(target_BT.unbind(dim=1)):
        log_probs_BV, state = steps.step(tokens_B, state)
        torch.testing.assert_close(log_probs_BV.double(), expected_BTV[:, t], atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_who_watches_sees_every_step() -> None:
    steps = FlatSteps(packed(network(), "float32"))
    with Lens(steps.network, "decoder.*.cross_attention") as lens:
        state = steps.start(*source()[:2])
        for _ in range(3):
            _, state = steps.step(torch.arange(5, 5 + B), state)
    assert lens.weights["decoder.blocks.0.cross_attention"].shape == (B, 2, 3, 9)


@pytest.mark.parametrize("kind", ["bfloat16", "int8", "int8 by torch"])
@torch.inference_mode()
def test_in_fewer_bits_steps_are_those_of_the_network(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(products.MAKERS, "int8 by torch", products.int8_by_torch)
    monkeypatch.setattr(products, "KINDS", [*products.MAKERS])
    few = packed(network(), kind)
    source_BS, lengths_B, _ = source()
    tokens_B = torch.arange(5, 5 + B)
    ours, theirs = FlatSteps(few), few
    mine, other = ours.start(source_BS, lengths_B), theirs.start(source_BS, lengths_B)
    for _ in range(3):
        found_BV, mine = ours.step(tokens_B, mine)
        expected_BV, other = theirs.step(tokens_B, other)
        apart = float((found_BV - expected_BV).norm() / expected_BV.norm())
        assert apart < 0.02


def test_a_recurrent_decoder_has_none() -> None:
    side = {"kind": "recurrent"}
    shape = {"width": 16, "encoder": side, "decoder": side}
    made = build(recipe.Model.model_validate(shape), Vocabulary(V, V))
    assert not has_flat_steps(made)
    assert has_flat_steps(network())


@pytest.mark.parametrize(
    "index",
    [[0, 1, 2, 3, 4, 5, 6, 7], [0, 7, 2, 3, 4, 5], [7, 6, 5], [1, 0, 3, 3, 7, 2, 1, 0], [0] * 12],
)
def test_rows_are_taken_in_place_or_not(index: list[int]) -> None:
    store = torch.randn(2, 8, 3)
    index_R = torch.tensor(index)
    expected = store[:, index_R].clone()
    assert torch.equal(take_rows(store, 1, index_R), expected)
