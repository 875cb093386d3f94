"""Steps by the library in C are those of the network, with levels at the same places."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tiny_models import drawn
from transduce.data.tokens.tokenizer import BEGIN, PAD
from transduce.decoding.search.beam import beam
from transduce.decoding.search.greedy import greedy
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.models import EncoderDecoder, Lens
from transduce.runtime import library, why_not
from transduce.runtime import packed_weight as products
from transduce.runtime import transformer as native
from transduce.runtime.packed_copy import packed
from transduce.runtime.packed_weight import Multiply, quantize_weight
from transduce.runtime.steps import steps_of
from transduce.runtime.structures import Kernel
from transduce.runtime.transformer import ROOM, CTransformerState, CTransformerSteps

pytestmark = pytest.mark.skipif(library() is None, reason=f"no library: {why_not()}")

V = 77
B = 6
LENGTHS = torch.tensor([6, 1, 3, 9, 4, 2])
LIMITS = torch.tensor([ROOM + 6, 4, 12, 18, ROOM + 1, 1])

SHAPES: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm_position": "post"},
    "gelu": {"activation": "gelu"},
    "swiglu": {"activation": "swiglu"},
    "rms": {"norm": "rms", "norm_position": "post"},
    "rotary": {"positions": "rotary"},
    "learned": {"positions": "learned"},
    "no positions": {"positions": "none"},
    "wide heads": {"heads": 1, "layers": 1},
}


REORDERED = {0: [0, 0, 1, 1, 3, 3, 3], 4: [1, 0, 0, 6, 5, 2], 6: [3, 1]}  # after these steps


def network(width: int = 24, tie_embeddings: str = "target", **parts: Any) -> EncoderDecoder:
    side = {"layers": 2, "heads": 2, "feed_forward": 40, **parts}
    shape = {
        "width": width,
        "dropout": 0.1,
        "tie_embeddings": tie_embeddings,
        "encoder": side,
        "decoder": side,
    }
    return drawn(shape, V)


def source(width: int = 9) -> tuple[Tensor, Tensor]:
    source_BS = torch.randint(4, V, (B, 9), generator=torch.Generator().manual_seed(1))
    source_BS[torch.arange(9) >= LENGTHS[:, None]] = PAD
    return torch.nn.functional.pad(source_BS, (0, width - 9), value=PAD), LENGTHS


def in_float64(weight_FD: Tensor, bias_F: Tensor | None) -> Multiply:
    """What a product in levels is, each row of inputs with a scale of its own."""
    levels_FD, scale_F = quantize_weight(weight_FD)

    def multiply(x: Tensor, relu: bool) -> Tensor:
        maximum = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30)
        sums = (x * 127 / maximum).round() @ levels_FD.double().T
        y = sums * (maximum / 127) * scale_F
        y = y if bias_F is None else y + bias_F
        return y.relu() if relu else y

    return multiply


def exact(made: EncoderDecoder, patch: pytest.MonkeyPatch) -> EncoderDecoder:
    """The same network in float64, its products in levels."""
    with patch.context() as inner:
        inner.setitem(products.MAKERS, "int8", in_float64)
        return packed(made, "int8").double()


def check_close(found_RX: Tensor, expected_RX: Tensor) -> float:
    """The share of rows that are the same but for float32's last bits.

    In others an input lay so near the middle between two levels that those bits decided.
    """
    apart_R = (found_RX.double() - expected_RX.double()).abs().amax(dim=-1)
    assert float(apart_R.max()) < 0.3
    return float((apart_R < 1e-4).double().mean())


@pytest.mark.parametrize("name", SHAPES)
@torch.inference_mode()
def test_steps_are_those_of_an_oracle(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "ROOM", 3)
    made = network(**SHAPES[name])
    ours, theirs = steps_of(packed(made, "int8")), exact(made, monkeypatch)
    assert isinstance(ours, CTransformerSteps)
    mine, other = ours.start(*source()), theirs.start(*source())
    assert isinstance(mine, CTransformerState)
    generator = torch.Generator().manual_seed(3)
    same = []
    for step in range(8):
        tokens_R = torch.randint(4, V, (len(mine.origins_RT),), generator=generator)
        found_RV, mine = ours.step(tokens_R, mine)
        expected_RV, other = theirs.step(tokens_R, other)
        same.append(check_close(found_RV, expected_RV))
        if step in REORDERED:
            mine.reorder(torch.tensor(REORDERED[step]))
            other.reorder(torch.tensor(REORDERED[step]))
    assert sum(same) / len(same) > 0.8


@pytest.mark.parametrize("name", SHAPES)
@torch.inference_mode()
def test_the_encoder_is_that_of_an_oracle(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = network(**SHAPES[name])
    ours, theirs = steps_of(packed(made, "int8")), exact(made, monkeypatch)
    assert isinstance(ours, CTransformerSteps)
    found, expected = ours.encode(*source()), theirs.encode(*source())
    inside_BS = torch.arange(9) < LENGTHS[:, None]
    assert check_close(found.states_BSD[inside_BS], expected.states_BSD[inside_BS]) > 0.8
    assert not found.states_BSD[~inside_BS].any()


@torch.inference_mode()
def test_what_is_concatenated_is_left_to_torch() -> None:
    few = packed(network(combine="concatenate"), "int8")
    assert steps_of(few) is few


@torch.inference_mode()
def test_other_precisions_are_left_to_torch() -> None:
    few = packed(network(), "bfloat16")
    assert steps_of(few) is few


@torch.inference_mode()
def test_every_kernel_writes_the_same() -> None:
    few = packed(network(), "int8")
    found = []
    for kernel in Kernel:
        if kernel is Kernel.BEST or library().has_kernel(kernel):  # type: ignore[union-attr]
            steps = CTransformerSteps(few, kernel)
            log_probs_BV, _ = steps.step(torch.arange(5, 5 + B), steps.start(*source()))
            found.append(log_probs_BV)
    assert len(found) >= 2
    assert all(torch.equal(one, found[0]) for one in found)


def search(
    steps: CTransformerSteps, size: int, rows: list[int], width: int
) -> list[list[Hypothesis]]:
    source_BS, lengths_B = source(width)
    given = (source_BS[rows], lengths_B[rows], LIMITS[rows])
    return beam(steps, *given, size, 3) if size > 1 else greedy(steps, *given)


@pytest.mark.parametrize("size", [1, 4])
@torch.inference_mode()
def test_nothing_depends_on_the_batch(size: int) -> None:
    """Alone, in another order, beside more padding: the same, to the bit."""
    steps = CTransformerSteps(packed(network(), "int8"))
    together = search(steps, size, list(range(B)), 9)
    assert len({tuple(of_one[0].tokens) for of_one in together}) > 2
    assert search(steps, size, list(range(B))[::-1], 14) == together[::-1]
    for row in range(B):
        assert search(steps, size, [row], int(LENGTHS[row])) == [together[row]]


@torch.inference_mode()
def test_many_rows_are_worth_what_few_are() -> None:
    """So many that their log-probabilities are not all made together."""
    steps = CTransformerSteps(packed(network(), "int8"))
    tokens_B = torch.arange(5, 5 + B)
    few_BV, _ = steps.step(tokens_B, steps.start(*source()))
    many_R = torch.arange(110) % B
    state = steps.start(*source())
    state.reorder(many_R)
    many_RV, _ = steps.step(tokens_B[many_R], state)
    assert torch.equal(many_RV, few_BV[many_R])


@torch.inference_mode()
def test_rows_of_a_source_attend_as_alone() -> None:
    """More rows than attend together, of two sources."""
    made = packed(network(), "float32")
    steps = steps_of(made)
    assert isinstance(steps, CTransformerSteps)
    source_BS, lengths_B = source(40)
    index_R = torch.tensor([0] * 11 + [1] * 3)
    tokens_R = torch.arange(14) % 5 + 5
    many = steps.start(source_BS[:2], lengths_B[:2])
    many.reorder(index_R)
    log_probs_RV = steps.step(tokens_R, many)[0].clone()
    for row, place in enumerate(index_R.tolist()):
        one = steps.start(source_BS[place : place + 1], lengths_B[place : place + 1])
        alone_1V, _ = steps.step(tokens_R[row : row + 1], one)
        assert torch.equal(log_probs_RV[row], alone_1V[0])


@torch.inference_mode()
def test_who_watches_sees_every_step() -> None:
    steps = CTransformerSteps(packed(network(), "int8"))
    with Lens(steps.network, "*") as lens:
        state = steps.start(*source())
        for _ in range(3):
            _, state = steps.step(torch.arange(5, 5 + B), state)
    assert lens.weights["decoder.blocks.0.cross_attention"].shape == (B, 2, 3, 9)
    assert lens.weights["encoder.blocks.1.self_attention"].shape == (B, 2, 9, 9)


@pytest.mark.parametrize("wrong", [V, V + 10**9, -1])
@torch.inference_mode()
def test_tokens_that_the_network_has_not_are_refused(wrong: int) -> None:
    steps = CTransformerSteps(packed(network(), "int8"))
    source_BS, lengths_B = source()
    for row in (0, 3):
        broken_BS = source_BS.clone()
        broken_BS[row, 0] = wrong
        with pytest.raises(ValueError, match=f"Source {row + 1} has a token"):
            steps.start(broken_BS, lengths_B)
    broken_BS = source_BS.clone()
    broken_BS[1, 5] = wrong  # beyond its end nothing is read
    state = steps.start(broken_BS, lengths_B)
    with pytest.raises(ValueError, match="Source 2 has"):
        steps.start(source_BS, torch.tensor([6, 10, 3, 9, 4, 2]))
    tokens_R = torch.full((B,), 5)
    tokens_R[4] = wrong
    with pytest.raises(ValueError, match=f"Token {wrong} is not among the {V}"):
        steps.step(tokens_R, state)
    right, _ = steps.step(torch.full((B,), 5), state)
    assert right.isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@torch.inference_mode()
def test_what_is_no_number_gets_no_probability(bad: float) -> None:
    """Search trusts the steps in C with that, and does not look again."""
    made = network()
    with torch.no_grad():
        made.head.bias[7] = bad
    steps = CTransformerSteps(packed(made, "float32"))
    state = steps.start(*source())
    found_RV, state = steps.step(torch.full((len(source()[0]),), BEGIN), state)
    assert state.finite_or_neg_inf  # type: ignore[attr-defined]
    assert (found_RV == -math.inf).all()
    with torch.no_grad():
        made.head.bias[7] = -math.inf  # banned by its weight: the others have all the probability
    steps = CTransformerSteps(packed(made, "float32"))
    found_RV, _ = steps.step(torch.full((len(source()[0]),), BEGIN), steps.start(*source()))
    assert (found_RV[:, 7] == -math.inf).all()
    torch.testing.assert_close(found_RV.exp().sum(dim=1), torch.ones(len(found_RV)))
