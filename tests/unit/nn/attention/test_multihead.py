"""Multi-head attention against torch's, and its fast paths against its plain one."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.attention.kv_cache import KVCache
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.masks import Mask, causal, padding, window
from transduce.nn.positions import Rotary

B, T, S, WIDTH, HEADS = 2, 4, 6, 12, 3
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def build(rotary: bool = False, dtype: torch.dtype = torch.float64) -> MultiHeadAttention:
    torch.manual_seed(0)
    attention = MultiHeadAttention(WIDTH, HEADS, rotary=Rotary(WIDTH // HEADS) if rotary else None)
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.5)
    return attention.to(dtype)


def as_torchs(attention: MultiHeadAttention) -> nn.MultiheadAttention:
    bias = attention.in_projection.bias is not None
    theirs = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True)
    theirs.to(attention.in_projection.weight.dtype)
    parameters = {
        "in_proj_weight": attention.in_projection.weight,
        "out_proj.weight": attention.out_projection.weight,
    }
    if bias:
        parameters["in_proj_bias"] = attention.in_projection.bias
        parameters["out_proj.bias"] = attention.out_projection.bias
    theirs.load_state_dict(parameters)
    return theirs


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mask", [Mask(), causal(), padding(torch.tensor([6, 3]), S), window(2, 1)])
def test_self_attention_is_torchs(dtype: torch.dtype, mask: Mask) -> None:
    attention, x_BSD = build(dtype=dtype), torch.randn(B, S, WIDTH, dtype=dtype)
    visible_BTS = mask.dense(S, S)
    hidden = None if visible_BTS is None else ~visible_BTS.expand(B, S, S)
    expected_BSD, expected_weights_BHSS = as_torchs(attention)(
        x_BSD,
        x_BSD,
        x_BSD,
        attn_mask=None if hidden is None else hidden.repeat_interleave(HEADS, dim=0),
        average_attn_weights=False,
    )
    assert_close = partial(torch.testing.assert_close, rtol=0, atol=TOLERANCE[dtype])
    assert_close(attention(x_BSD, mask=mask), expected_BSD)

    seen: list[Tensor] = []
    attention.watch = seen.append
    assert_close(attention(x_BSD, mask=mask), expected_BSD)
    assert_close(seen[0], expected_weights_BHSS)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("values_apart", [True, False])
def test_cross_attention_is_torchs(dtype: torch.dtype, bias: bool, values_apart: bool) -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(WIDTH, HEADS, bias=bias).to(dtype)
    if bias:
        nn.init.normal_(attention.in_projection.bias)
    query_BTD = torch.randn(B, T, WIDTH, dtype=dtype)
    keys_BSD, other_BSD = torch.randn(2, B, S, WIDTH, dtype=dtype)
    values_BSD = other_BSD if values_apart else keys_BSD
    lengths_B = torch.tensor([6, 3])
    expected_BTD, _ = as_torchs(attention)(
        query_BTD, keys_BSD, values_BSD, key_padding_mask=torch.arange(S) >= lengths_B[:, None]
    )
    mask = padding(lengths_B, S)
    assert_close = partial(torch.testing.assert_close, rtol=0, atol=TOLERANCE[dtype])
    given = other_BSD if values_apart else None
    assert_close(attention(query_BTD, keys_BSD, given, mask), expected_BTD)

    memory = attention.project(keys_BSD, given)
    assert_close(attention.attend(query_BTD, memory, mask), expected_BTD)
    steps = [attention.attend(query_BTD[:, t : t + 1], memory, mask) for t in range(T)]
    assert_close(torch.cat(steps, dim=1), expected_BTD)


def test_it_starts_as_torchs() -> None:
    torch.manual_seed(3)
    ours = MultiHeadAttention(256, 4)
    torch.manual_seed(3)
    theirs = nn.MultiheadAttention(256, 4)
    for mine, other in (
        (ours.in_projection.weight, theirs.in_proj_weight),
        (ours.out_projection.weight, theirs.out_proj.weight),
    ):
        assert mine.std().item() == pytest.approx(other.std().item(), rel=0.02)
        assert mine.abs().max().item() == pytest.approx(other.abs().max().item(), rel=0.02)
    assert not ours.in_projection.bias.any()
    assert not ours.out_projection.bias.any()


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize(
    "mask", [None, causal(), causal() & window(2, 0), padding(torch.tensor([6, 0]), S)]
)
def test_watching_changes_nothing(rotary: bool, mask: Mask | None) -> None:
    attention = build(rotary)
    x_BTD = torch.randn(B, S, WIDTH, dtype=torch.float64, requires_grad=True)
    fused_BTD = attention(x_BTD, mask=mask)
    seen: list[Tensor] = []
    attention.watch = seen.append
    watched_BTD = attention(x_BTD, mask=mask)
    torch.testing.assert_close(watched_BTD, fused_BTD, rtol=0, atol=1e-10)
    assert seen[0].shape == (B, HEADS, S, S)
    (fused_gradient,) = torch.autograd.grad(fused_BTD.square().sum(), x_BTD)
    (watched_gradient,) = torch.autograd.grad(watched_BTD.square().sum(), x_BTD)
    torch.testing.assert_close(watched_gradient, fused_gradient, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("mask", [causal(), causal() & window(3, 0)])
@pytest.mark.parametrize("pieces", [[1] * 9, [4, 1, 1, 3], [9]])
@torch.no_grad()
def test_cached_steps_give_what_the_whole_gives(
    rotary: bool, mask: Mask, pieces: list[int]
) -> None:
    attention = build(rotary)
    x_BTD = torch.randn(B, 9, WIDTH, dtype=torch.float64)
    cache = KVCache()
    stepped = [
        attention(piece, mask=mask, cache=cache) for piece in torch.split(x_BTD, pieces, dim=1)
    ]
    assert cache.length == 9
    whole_BTD = attention(x_BTD, mask=mask)
    torch.testing.assert_close(torch.cat(stepped, dim=1), whole_BTD, rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_reordered_cache_goes_on_with_the_chosen_beams() -> None:
    attention = build(rotary=True)
    x_BTD = torch.randn(3, 5, WIDTH, dtype=torch.float64)
    index_B = torch.tensor([2, 0])
    cache = KVCache()
    attention(x_BTD[:, :4], mask=causal(), cache=cache)
    cache.reorder(index_B)
    last_BTD = attention(x_BTD[index_B, 4:], mask=causal(), cache=cache)
    torch.testing.assert_close(last_BTD, attention(x_BTD, mask=causal())[index_B, 4:])


def test_rotary_makes_order_matter() -> None:
    x_BTD = torch.randn(1, 4, WIDTH, dtype=torch.float64)
    swapped_BTD = x_BTD[:, [1, 0, 2, 3]]
    blind, sighted = build(rotary=False), build(rotary=True)
    torch.testing.assert_close(blind(swapped_BTD)[:, 3], blind(x_BTD)[:, 3])
    assert not torch.allclose(sighted(swapped_BTD)[:, 3], sighted(x_BTD)[:, 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_sees_nothing(dtype: torch.dtype, watched: bool, device: str) -> None:
    """Zeros from the heads leave the output bias; gradients are finite; padding gets none."""
    attention = build(dtype=dtype).to(device)
    attention.watch = (lambda weights: None) if watched else None
    x_BTD = torch.randn(B, S, WIDTH, dtype=dtype, device=device, requires_grad=True)
    memory_BSD = torch.randn(B, S, WIDTH, dtype=dtype, device=device, requires_grad=True)
    mask = padding(torch.tensor([4, 0], device=device), S)
    output_BTD = attention(x_BTD, memory_BSD, mask=mask)
    output_BTD.square().sum().backward()
    assert torch.equal(output_BTD[1], attention.out_projection.bias.expand(S, WIDTH))
    for tensor in (x_BTD, memory_BSD, *attention.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
    assert x_BTD.grad is not None
    assert memory_BSD.grad is not None
    assert (x_BTD.grad[0] != 0).any()
    assert not x_BTD.grad[1].any()
    assert not memory_BSD.grad[1].any()
    assert not memory_BSD.grad[0, 4:].any()


def test_fused_calls_carry_no_mask_they_do_not_need() -> None:
    attention = build()
    x_BTD = torch.randn(B, T, WIDTH, dtype=torch.float64)
    cache = KVCache()
    with (
        torch.no_grad(),
        patch.object(
            F, "scaled_dot_product_attention", wraps=F.scaled_dot_product_attention
        ) as fused,
    ):
        attention(x_BTD, mask=causal(), cache=cache)
        attention(x_BTD[:, :1], mask=causal(), cache=cache)
        attention(x_BTD[:, :2], mask=causal(), cache=cache)
    whole, step, chunk = (call.kwargs for call in fused.call_args_list)
    assert whole.get("is_causal")
    assert whole.get("attn_mask") is None
    assert not step.get("is_causal")
    assert step.get("attn_mask") is None
    assert not chunk.get("is_causal")
    assert chunk["attn_mask"].shape[-2:] == (2, T + 3)


@pytest.mark.parametrize("watched", [True, False])
def test_weights_drop_out_only_in_training(watched: bool) -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(WIDTH, HEADS, dropout=0.5)
    attention.watch = (lambda weights: None) if watched else None
    x_BTD = torch.randn(B, T, WIDTH)
    assert not torch.equal(attention(x_BTD), attention(x_BTD))
    attention.eval()
    assert torch.equal(attention(x_BTD), attention(x_BTD))


def test_mistakes_are_reported() -> None:
    with pytest.raises(ValueError, match="width of 10 cannot be divided among 4 heads"):
        MultiHeadAttention(10, 4)
    with pytest.raises(ValueError, match=r"width 8 do not fit heads of width 4.*Rotary\(4\)"):
        MultiHeadAttention(12, 3, rotary=Rotary(8))
    with pytest.raises(ValueError, match="in one sequence"):
        build(rotary=True)(torch.randn(1, 2, WIDTH).double(), torch.randn(1, 3, WIDTH).double())
