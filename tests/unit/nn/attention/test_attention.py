"""Scores against brute-force sums, the masked softmax, and pooling as lecture B does it by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from transduce.nn.attention.attention import (
    SCORES,
    Additive,
    Attention,
    General,
    Location,
    Score,
    attend,
    attention_pool,
    masked_softmax,
)
from transduce.nn.masks import Mask, causal, padding, window

B, T, S, WIDTH = 2, 3, 5, 4
UNEQUAL = {"additive", "general", "location"}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def build(name: str, query_width: int = WIDTH, key_width: int = WIDTH) -> Score:
    torch.manual_seed(7)
    if name == "location":
        return Location(query_width, key_width, max_length=S + 2).double()
    return SCORES[name](query_width, key_width).double()


def by_hand(name: str, score: Score, query: list[float], key: list[float], position: int) -> float:
    """One number of the scores, by the formula of its paper in plain Python."""
    pairs = list(zip(query, key, strict=False))
    if name == "dot":
        return sum(q * k for q, k in pairs)
    if name == "scaled-dot":
        return sum(q * k for q, k in pairs) / math.sqrt(len(key))
    if name == "cosine":
        return sum(q * k for q, k in pairs) / (math.hypot(*query) * math.hypot(*key))
    if name == "additive-free":
        return sum(math.tanh(q + k) for q, k in pairs)
    if isinstance(score, Location):
        row: list[float] = score.position_projection.weight[position].tolist()
        return sum(w * q for w, q in zip(row, query, strict=True))
    if isinstance(score, General):
        matrix: list[list[float]] = score.key_projection.weight.tolist()
        return sum(
            query[i] * matrix[i][j] * key[j] for i in range(len(query)) for j in range(len(key))
        )
    assert isinstance(score, Additive)
    # W_a [s; h] with one matrix, as Bahdanau writes it.
    joined = query + key
    both = torch.cat((score.query_projection.weight, score.key_projection.weight), dim=1).tolist()
    hidden = [math.tanh(sum(w * x for w, x in zip(row, joined, strict=True))) for row in both]
    v: list[float] = score.energy.weight[0].tolist()
    return sum(a * b for a, b in zip(v, hidden, strict=True))


@pytest.mark.parametrize("name", SCORES)
def test_score_is_its_formula(name: str) -> None:
    key_width = 6 if name in UNEQUAL else WIDTH
    score = build(name, WIDTH, key_width)
    query_BTD, keys_BSD = random(B, T, WIDTH), random(B, S, key_width, seed=1)
    scores_BTS = score(query_BTD, score.prepare(keys_BSD))
    assert scores_BTS.shape == (B, T, S)
    for b in range(B):
        for t in range(T):
            for s in range(S):
                expected = by_hand(
                    name, score, query_BTD[b, t].tolist(), keys_BSD[b, s].tolist(), s
                )
                assert scores_BTS[b, t, s].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", SCORES)
def test_gradient_is_right(name: str) -> None:
    score = build(name)
    query_BTD = random(B, T, WIDTH).requires_grad_()
    keys_BSD = random(B, S, WIDTH, seed=1).requires_grad_()
    parameters = list(score.parameters())

    def whole(query_BTD: Tensor, keys_BSD: Tensor, *_: Tensor) -> Tensor:
        context_BTD, weights_BTS = attend(
            query_BTD, keys_BSD, keys_BSD, window(2, 1), score, weights=True
        )
        return torch.cat((context_BTD, weights_BTS), dim=-1)

    assert torch.autograd.gradcheck(whole, (query_BTD, keys_BSD, *parameters))


def test_additive_attention_is_bahdanaus_loop() -> None:
    """α_ti = exp(e_ti) / Σ_k exp(e_tk) and c_t = Σ_i α_ti h_i, one number at a time."""
    score = build("additive")
    query_BTD, keys_BSD = random(B, T, WIDTH), random(B, S, WIDTH, seed=1)
    lengths = [5, 3]
    mask = padding(torch.tensor(lengths), S)
    context_BTD, weights_BTS = attend(query_BTD, keys_BSD, keys_BSD, mask, score, weights=True)
    for b in range(B):
        for t in range(T):
            energy = [
                by_hand("additive", score, query_BTD[b, t].tolist(), keys_BSD[b, i].tolist(), i)
                for i in range(lengths[b])
            ]
            total = sum(math.exp(e) for e in energy)
            weights = [math.exp(e) / total for e in energy]
            assert weights_BTS[b, t, : lengths[b]].tolist() == pytest.approx(weights, abs=1e-12)
            for d in range(WIDTH):
                expected = sum(w * keys_BSD[b, i, d].item() for i, w in enumerate(weights))
                assert context_BTD[b, t, d].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["dot", "scaled-dot", "cosine", "additive-free"])
def test_unequal_widths_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="queries are 4 wide and keys 6"):
        SCORES[name](4, 6)


def test_location_says_when_a_source_is_too_long() -> None:
    score = Location(WIDTH, WIDTH, max_length=5)
    assert score(torch.randn(1, 1, WIDTH), torch.randn(1, 5, WIDTH)).shape == (1, 1, 5)
    with pytest.raises(ValueError, match=r"knows 5 source positions.* has 6"):
        score(torch.randn(1, 1, WIDTH), torch.randn(1, 6, WIDTH))


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_masked_softmax_gives_hidden_positions_nothing(dtype: torch.dtype) -> None:
    scores_BTS = random(1, 3, 4).to(dtype).requires_grad_()
    visible_BTS = torch.tensor([[[1, 0, 1, 1], [0, 0, 0, 0], [0, 0, 1, 0]]]).bool()
    # Anomaly mode stops at any NaN on the way, also at one that a later step would hide.
    with torch.autograd.detect_anomaly(check_nan=True):
        weights_BTS = masked_softmax(scores_BTS, visible_BTS)
        (weights_BTS * random(1, 3, 4, seed=2).to(dtype)).sum().backward()
    assert scores_BTS.grad is not None
    assert (weights_BTS[~visible_BTS] == 0).all()
    assert (scores_BTS.grad[~visible_BTS] == 0).all()
    assert scores_BTS.grad.isfinite().all()
    assert weights_BTS.sum(-1)[0].tolist() == pytest.approx([1, 0, 1], abs=0.01)
    kept = scores_BTS[0, 0, [0, 2, 3]].softmax(0)
    torch.testing.assert_close(weights_BTS[0, 0, [0, 2, 3]], kept)


@pytest.mark.parametrize("name", [*SCORES, None])
@pytest.mark.parametrize("weights", [True, False])
def test_what_is_masked_does_not_matter_and_learns_nothing(name: str | None, weights: bool) -> None:
    score = build(name) if name else None
    mask = padding(torch.tensor([3, 0]), S)
    query_BTD = random(B, T, WIDTH).requires_grad_()
    keys_BSD = random(B, S, WIDTH, seed=1).requires_grad_()
    values_BSD = random(B, S, WIDTH, seed=2).requires_grad_()
    if weights:
        context_BTD, weights_BTS = attend(
            query_BTD, keys_BSD, values_BSD, mask, score, weights=True
        )
        assert (weights_BTS[0, :, 3:] == 0).all()
        assert (weights_BTS[1] == 0).all()
    else:
        context_BTD = attend(query_BTD, keys_BSD, values_BSD, mask, score)
    context_BTD.square().sum().backward()
    assert (context_BTD[1] == 0).all()
    read = (values_BSD,) if name == "location" else (keys_BSD, values_BSD)
    for tensor in read:
        assert tensor.grad is not None
        assert (tensor.grad[0, 3:] == 0).all()
        assert (tensor.grad[0, :3] != 0).all()
        assert (tensor.grad[1] == 0).all()
    assert query_BTD.grad is not None
    assert (query_BTD.grad[0] != 0).all()
    assert (query_BTD.grad[1] == 0).all()
    only_seen_BTD = attend(query_BTD[:1], keys_BSD[:1, :3], values_BSD[:1, :3], None, score)
    torch.testing.assert_close(context_BTD[:1], only_seen_BTD)


@pytest.mark.parametrize("mask", [None, causal(), window(1, 1), padding(torch.tensor([4, 2]), 4)])
def test_fused_equals_explicit(mask: Mask | None) -> None:
    x_BTD = random(B, 4, WIDTH)
    context_BTD, weights_BTS = attend(x_BTD, x_BTD, x_BTD, mask, weights=True)
    torch.testing.assert_close(attend(x_BTD, x_BTD, x_BTD, mask), context_BTD)
    torch.testing.assert_close(weights_BTS.sum(-1), torch.ones(B, 4).double())


@pytest.mark.parametrize("name", SCORES)
def test_attention_module_prepares_once_and_shows_its_weights(name: str) -> None:
    attention = Attention(build(name))
    query_BTD, keys_BSD = random(B, T, WIDTH), random(B, S, WIDTH, seed=1)
    values_BSD = random(B, S, 7, seed=2)
    mask = padding(torch.tensor([5, 2]), S)
    prepared_BSD = attention.prepare(keys_BSD)
    seen: list[Tensor] = []
    attention.watch = seen.append
    whole_BTD = attention(query_BTD, prepared_BSD, values_BSD, mask)
    attention.watch = None
    steps = [attention(query_BTD[:, t : t + 1], prepared_BSD, values_BSD, mask) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole_BTD)
    assert len(seen) == 1
    assert seen[0].shape == (B, 1, T, S)
    torch.testing.assert_close(seen[0][:, 0] @ values_BSD, whole_BTD)


def test_attention_pool_is_lecture_b_step_by_step() -> None:
    """ "Juon kahvia joka" against "I drink coffee every day .": 3 × 6 scores, 1 × 64 out."""
    query, values = random(3, 32).tolist(), random(6, 32, seed=1).tolist()
    scores = [[sum(a * b for a, b in zip(q, v, strict=True)) for v in values] for q in query]
    weighted = []
    for row in scores:
        total = sum(math.exp(score) for score in row)
        weights = [math.exp(score) / total for score in row]
        weighted.append(
            [sum(w * v[d] for w, v in zip(weights, values, strict=True)) for d in range(32)]
        )
    average = [sum(row[d] for row in weighted) / 3 for d in range(32)]
    query_average = [sum(q[d] for q in query) / 3 for d in range(32)]

    pooled_B2D = attention_pool(
        torch.tensor([query], dtype=torch.float64), torch.tensor([values], dtype=torch.float64)
    )
    assert pooled_B2D.shape == (1, 64)
    assert pooled_B2D[0].tolist() == pytest.approx(average + query_average, abs=1e-12)


def test_attention_pool_does_not_see_padding() -> None:
    query_BTD, values_BSD = random(1, 3, 32), random(1, 6, 32, seed=1)
    longer_query_BTD = torch.cat((query_BTD, 9 * random(1, 2, 32, seed=3)), dim=1)
    longer_values_BSD = torch.cat((values_BSD, 9 * random(1, 4, 32, seed=4)), dim=1)
    pooled_B2D = attention_pool(
        longer_query_BTD,
        longer_values_BSD,
        padding(torch.tensor([6]), 10),
        padding(torch.tensor([3]), 5),
    )
    torch.testing.assert_close(pooled_B2D, attention_pool(query_BTD, values_BSD))
