"""Blocks against torch's Transformer layers with the same weights."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.attention.kv_cache import KVCache
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.masks import Mask, causal, padding
from transduce.nn.positions import Rotary
from transduce.nn.residual import dropped
from transduce.nn.transformer import DecoderBlock, EncoderBlock, FeedForward, Residual, build_norm

B, T, S, WIDTH, HEADS, HIDDEN = 2, 5, 6, 12, 3, 20
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
SOURCE_LENGTHS, TARGET_LENGTHS = torch.tensor([6, 3]), torch.tensor([5, 2])
VARIANTS = list(itertools.product(["pre", "post"], ["relu", "gelu"], TOLERANCE))


def shaken(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Every parameter random, norms and biases too, so that none can be mixed up unseen."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module.to(dtype).eval()


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    assert theirs.in_proj_weight is not None
    ours.in_projection.weight.copy_(theirs.in_proj_weight)
    ours.in_projection.bias.copy_(theirs.in_proj_bias)
    ours.out_projection.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def copy_layer(
    ours: EncoderBlock | DecoderBlock,
    theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer,
) -> None:
    copy_attention(ours.self_attention, theirs.self_attn)
    ours.feed_forward.expand.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.contract.load_state_dict(theirs.linear2.state_dict())
    ours.self_attention_residual.norm.load_state_dict(theirs.norm1.state_dict())
    last_norm = theirs.norm2
    if isinstance(ours, DecoderBlock):
        assert isinstance(theirs, nn.TransformerDecoderLayer)
        assert ours.cross_attention is not None
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        ours.cross_attention_residual.norm.load_state_dict(theirs.norm2.state_dict())
        last_norm = theirs.norm3
    ours.feed_forward_residual.norm.load_state_dict(last_norm.state_dict())


def hidden_keys(lengths_B: Tensor, length: int) -> Tensor:
    return torch.arange(length) >= lengths_B[:, None]


@pytest.mark.parametrize(("norm_position", "activation", "dtype"), VARIANTS)
@pytest.mark.parametrize("is_causal", [True, False])
def test_encoder_block_is_torchs(
    norm_position: str, activation: str, dtype: torch.dtype, is_causal: bool
) -> None:
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, 0.0, activation, batch_first=True, norm_first=norm_position == "pre"
    )
    shaken(theirs, dtype)
    ours = EncoderBlock(WIDTH, HEADS, HIDDEN, activation=activation, norm_position=norm_position)
    ours.to(dtype)
    copy_layer(ours, theirs)

    x_BSD = torch.randn(B, S, WIDTH, dtype=dtype, requires_grad=True)
    future_SS = torch.ones(S, S, dtype=torch.bool).triu(1) if is_causal else None
    expected_BSD = theirs(
        x_BSD, src_mask=future_SS, src_key_padding_mask=hidden_keys(SOURCE_LENGTHS, S)
    )
    mask = padding(SOURCE_LENGTHS, S) & Mask(causal=is_causal)
    output_BSD = ours(x_BSD, mask)
    assert_close = partial(torch.testing.assert_close, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert_close(output_BSD, expected_BSD)
    (gradient,) = torch.autograd.grad(output_BSD.square().sum(), x_BSD)
    (expected_gradient,) = torch.autograd.grad(expected_BSD.square().sum(), x_BSD)
    scale = expected_gradient.abs().max()
    assert_close(gradient / scale, expected_gradient / scale)


@pytest.mark.parametrize(("norm_position", "activation", "dtype"), VARIANTS)
def test_decoder_block_is_torchs(norm_position: str, activation: str, dtype: torch.dtype) -> None:
    theirs = nn.TransformerDecoderLayer(
        WIDTH, HEADS, HIDDEN, 0.0, activation, batch_first=True, norm_first=norm_position == "pre"
    )
    shaken(theirs, dtype)
    ours = DecoderBlock(WIDTH, HEADS, HIDDEN, activation=activation, norm_position=norm_position)
    ours.to(dtype)
    copy_layer(ours, theirs)

    x_BTD = torch.randn(B, T, WIDTH, dtype=dtype)
    memory_BSD = torch.randn(B, S, WIDTH, dtype=dtype)
    expected_BTD = theirs(
        x_BTD,
        memory_BSD,
        tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1),
        tgt_key_padding_mask=hidden_keys(TARGET_LENGTHS, T),
        memory_key_padding_mask=hidden_keys(SOURCE_LENGTHS, S),
    )
    output_BTD = ours(
        x_BTD,
        ours.project_memory(memory_BSD),
        padding(SOURCE_LENGTHS, S),
        causal() & padding(TARGET_LENGTHS, T),
    )
    assert_close = partial(torch.testing.assert_close, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert_close(output_BTD, expected_BTD)


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("rotary", [True, False])
@torch.no_grad()
def test_decoding_step_by_step_gives_what_training_saw(cross: bool, rotary: bool) -> None:
    block = DecoderBlock(
        WIDTH,
        HEADS,
        HIDDEN,
        activation="swiglu",
        norm="rms",
        rotary=Rotary(WIDTH // HEADS) if rotary else None,
        cross=cross,
    )
    shaken(block, torch.float64)
    x_BTD = torch.randn(B, T, WIDTH, dtype=torch.float64)
    memory = None
    if cross:
        memory = block.project_memory(torch.randn(B, S, WIDTH, dtype=torch.float64))
    memory_mask = padding(SOURCE_LENGTHS, S) if cross else None
    whole_BTD = block(x_BTD, memory, memory_mask, causal())
    cache = KVCache()
    steps = [block(x_BTD[:, t : t + 1], memory, memory_mask, causal(), cache) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole_BTD, rtol=0, atol=1e-9)


def test_a_causal_block_cannot_peek() -> None:
    block = DecoderBlock(WIDTH, HEADS, HIDDEN, cross=False)
    x_BTD = torch.randn(1, T, WIDTH, requires_grad=True)
    block(x_BTD, mask=causal())[0, 2].sum().backward()
    assert x_BTD.grad is not None
    assert not x_BTD.grad[0, 3:].any()
    assert (x_BTD.grad[0, :3] != 0).any(dim=-1).all()


def test_watching_a_block_shows_both_attentions_and_changes_nothing() -> None:
    block = DecoderBlock(WIDTH, HEADS, HIDDEN)
    shaken(block, torch.float64)
    assert block.cross_attention is not None
    x_BTD = torch.randn(B, T, WIDTH, dtype=torch.float64)
    memory = block.project_memory(torch.randn(B, S, WIDTH, dtype=torch.float64))
    plain_BTD = block(x_BTD, memory, mask=causal())
    seen: list[Tensor] = []
    block.self_attention.watch = block.cross_attention.watch = seen.append
    torch.testing.assert_close(block(x_BTD, memory, mask=causal()), plain_BTD)
    assert [weights.shape for weights in seen] == [(B, HEADS, T, T), (B, HEADS, T, S)]


def test_swiglu_is_shazeers() -> None:
    feed_forward = FeedForward(WIDTH, HIDDEN, "swiglu")
    x_BTD = torch.randn(B, T, WIDTH)
    gate_DF, value_DF = feed_forward.expand.weight.T.chunk(2, dim=1)
    gate_bias_F, value_bias_F = feed_forward.expand.bias.chunk(2)
    swish_BTF = F.silu(x_BTD @ gate_DF + gate_bias_F)
    hidden_BTF = swish_BTF * (x_BTD @ value_DF + value_bias_F)
    expected_BTD = hidden_BTF @ feed_forward.contract.weight.T + feed_forward.contract.bias
    torch.testing.assert_close(feed_forward(x_BTD), expected_BTD)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_residual_reads_as_the_formula(norm: str) -> None:
    x_BTD = 3 * torch.randn(B, T, WIDTH) + 1

    def norm_by_hand(x_BTD: Tensor) -> Tensor:
        if norm == "layer":
            x_BTD = x_BTD - x_BTD.mean(-1, keepdim=True)
        return x_BTD / x_BTD.square().mean(-1, keepdim=True).sqrt()

    before = Residual(WIDTH, norm, "pre")(x_BTD, torch.sin)
    torch.testing.assert_close(before, x_BTD + norm_by_hand(x_BTD).sin(), rtol=0, atol=1e-4)
    after = Residual(WIDTH, norm, "post")(x_BTD, torch.sin)
    torch.testing.assert_close(after, norm_by_hand(x_BTD + x_BTD.sin()), rtol=0, atol=1e-4)


def test_each_dropout_acts_in_training_alone() -> None:
    x_BSD = torch.randn(1, S, WIDTH)
    for kind in ("dropout", "attention_dropout", "activation_dropout"):
        block = EncoderBlock(WIDTH, HEADS, HIDDEN, **{kind: 0.5})  # type: ignore[arg-type]
        assert not torch.equal(block(x_BSD), block(x_BSD))
        block.eval()
        assert torch.equal(block(x_BSD), block(x_BSD))


def test_mistakes_are_reported() -> None:
    with pytest.raises(ValueError, match=r"relu, gelu, .*, swiglu, .*, not tanh"):
        FeedForward(4, 8, "tanh")
    with pytest.raises(ValueError, match='"layer" or "rms", not "batch"'):
        build_norm("batch", 4)
    with pytest.raises(ValueError, match='"pre" or "post", not "middle"'):
        Residual(4, "layer", "middle")
    with pytest.raises(ValueError, match="needs memory"):
        DecoderBlock(4, 2, 8)(torch.randn(1, 2, 4))
    with pytest.raises(ValueError, match="reads no memory"):
        DecoderBlock(4, 2, 8, cross=False).project_memory(torch.randn(1, 2, 4))


def test_all_but_everything_may_be_dropped() -> None:
    x = torch.ones(1000, requires_grad=True)
    y = dropped(x, 0.9999999, training=True)
    assert y.isfinite().all()
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
