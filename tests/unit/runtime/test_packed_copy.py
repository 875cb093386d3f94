"""Networks in fewer bits say nearly the same as the whole ones."""

from __future__ import annotations

import random

import pytest
import torch

from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.decoding.search.beam import beam
from transduce.decoding.search.greedy import greedy
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from transduce.runtime import packed_copy, packed_weight
from transduce.runtime.packed_copy import packed
from transduce.runtime.packed_weight import PackedWeight

SOURCE, LENGTHS = torch.tensor([[5, 6, 7, 3], [8, 9, 3, 0]]), torch.tensor([4, 3])
TARGET = torch.tensor([[2, 5, 6, 7, 3], [2, 9, 8, 3, 0]])


def network(**parts: object) -> EncoderDecoder:
    side = {"layers": 2, "heads": 2, "feed_forward": 64, **parts}
    shape = {"width": 32, "dropout": 0.0, "tie_embeddings": "all", "encoder": side, "decoder": side}
    torch.manual_seed(1)
    return build(recipe.Model.model_validate(shape), Vocabulary(40, 40)).eval()


@pytest.mark.parametrize(("kind", "loose"), [("bfloat16", 0.02), ("int8", 0.05)])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
@torch.inference_mode()
def test_the_features_are_nearly_the_same(kind: str, loose: float, activation: str) -> None:
    whole = network(activation=activation)
    few = packed(whole, kind)
    expected = whole.head(whole(SOURCE, LENGTHS, TARGET[:, :-1]))
    found = few.head(few(SOURCE, LENGTHS, TARGET[:, :-1])).float()
    apart = float((found - expected).norm() / expected.norm())
    assert 1e-5 < apart < loose  # not the same: it is really in fewer bits
    assert torch.equal(expected, whole.head(whole(SOURCE, LENGTHS, TARGET[:, :-1])))


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@torch.inference_mode()
def test_it_can_be_searched(kind: str) -> None:
    few = packed(network(), kind)
    found = greedy(few, SOURCE, LENGTHS, torch.tensor([6, 6]))
    assert all(len(of_one) == 1 for of_one in found)


@pytest.mark.parametrize(
    ("kind", "small", "expected"),
    [
        ("recurrent", 40 * 32, "float32"),
        ("recurrent", 40 * 32 - 1, "int8"),
        ("transformer", 10**6, "int8"),
    ],
)
def test_a_small_output_layer_above_recurrent_networks_is_in_float32_as_they_are(
    monkeypatch: pytest.MonkeyPatch, kind: str, small: int, expected: str
) -> None:
    side = {"kind": kind, "layers": 1}
    shape = {"width": 32, "encoder": side, "decoder": side}
    whole = build(recipe.Model.model_validate(shape), Vocabulary(40, 40)).eval()
    monkeypatch.setattr(packed_copy, "SMALL", small)
    head: PackedWeight = packed(whole, "int8").head.weight  # type: ignore[assignment]
    assert head.kind == expected


@torch.inference_mode()
def test_packed_in_float32_it_reads_the_networks_own_numbers() -> None:
    whole = network()
    same = packed(whole, "float32")
    assert same.front.table.weight is whole.front.table.weight
    expected = whole.head(whole(SOURCE, LENGTHS, TARGET[:, :-1]))
    found = same.head(same(SOURCE, LENGTHS, TARGET[:, :-1]))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_in_8_bits_without_the_library_outputs_do_not_depend_on_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (packed_weight, packed_copy):
        monkeypatch.setattr(module, "library", lambda: None)
    made = packed(network(), "int8")
    draw = random.Random(3)
    sources = [[draw.randrange(4, 12) for _ in range(draw.randrange(1, 40))] for _ in range(15)]
    found = []
    for some in ([sources], [[one] for one in sources], [sources[:7], sources[7:]]):
        hypotheses = []
        for group in some:
            batch = collate(group, None)
            limits_B = torch.full((len(group),), 12)
            hypotheses += beam(made, batch.source_BS, batch.source_lengths_B, limits_B, 3, 2)
        found.append([[(h.tokens, h.score) for h in of_one] for of_one in hypotheses])
    assert found[0] == found[1] == found[2]
