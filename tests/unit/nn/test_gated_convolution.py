"""Gated convolutions against plain loops in float64: each place by the paper's formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.gated_convolution import (
    ConvolutionalDecoderBlock,
    ConvolutionalEncoderBlock,
    GatedConvolution,
    Source,
    build_linear,
    windows,
)
from transduce.nn.masks import padding

B, S, T, D = 3, 7, 5, 6
LENGTHS = torch.tensor([7, 1, 4])
REAL = torch.arange(S) < LENGTHS[:, None]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def shaken(module: Any) -> Any:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module.double()


def gated_by_loops(part: GatedConvolution, x_SD: Tensor, first: int, kernel: int) -> Tensor:
    """Place t sees places t + first … t + first + kernel − 1; those that are not there are zero."""
    weight_EKD = part.product.weight.view(2 * D, kernel, D)
    h_SD = torch.zeros_like(x_SD)
    for t in range(len(x_SD)):
        both_E = part.product.bias.clone()
        for k in range(kernel):
            place = t + first + k
            if 0 <= place < len(x_SD):
                both_E = both_E + weight_EKD[:, k] @ x_SD[place]
        h_SD[t] = both_E[:D] / (1 + torch.exp(-both_E[D:]))
    return h_SD


@pytest.mark.parametrize("kernel", [1, 3, 5, 9])
def test_an_encoder_block_is_its_formula_and_nobody_sees_padding(kernel: int) -> None:
    block, x_BSD = shaken(ConvolutionalEncoderBlock(D, kernel)), random(B, S, D)
    found_BSD = block(x_BSD, REAL)
    for row, length in enumerate(LENGTHS.tolist()):
        x_SD = x_BSD[row, :length]
        h_SD = gated_by_loops(block.convolution, x_SD, -(kernel // 2), kernel)
        torch.testing.assert_close(found_BSD[row, :length], (x_SD + h_SD) * math.sqrt(0.5))
    # Without a mask all is real.
    h_SD = gated_by_loops(block.convolution, x_BSD[1], -(kernel // 2), kernel)
    torch.testing.assert_close(block(x_BSD)[1], (x_BSD[1] + h_SD) * math.sqrt(0.5))


def block_by_loops(
    block: ConvolutionalDecoderBlock, x_TD: Tensor, g_TD: Tensor, z_SD: Tensor, values_SD: Tensor
) -> Tensor:
    kernel, half = block.convolution.kernel, math.sqrt(0.5)
    h_TD = gated_by_loops(block.convolution, x_TD, 1 - kernel, kernel)
    y_TD = torch.zeros_like(x_TD)
    for i in range(len(x_TD)):
        d_D = block.query_projection.weight @ h_TD[i] + block.query_projection.bias + g_TD[i]
        scores = torch.stack([(d_D * half) @ z_D for z_D in z_SD])
        a_S = scores.exp() / scores.exp().sum()
        c_D = sum(a * value_D for a, value_D in zip(a_S, values_SD, strict=True))
        c_D = c_D * len(z_SD) * math.sqrt(1 / len(z_SD))
        c_D = block.context_projection.weight @ c_D + block.context_projection.bias
        y_TD[i] = (x_TD[i] + (h_TD[i] + c_D) * half) * half
    return y_TD


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
def test_a_decoder_block_is_its_formula(kernel: int) -> None:
    block = shaken(ConvolutionalDecoderBlock(D, kernel))
    x_BTD, g_BTD = random(B, T, D, seed=1), random(B, T, D, seed=2)
    z_BSD, values_BSD = random(B, S, D, seed=3), random(B, S, D, seed=4)
    source = Source.of(z_BSD, values_BSD, LENGTHS, padding(LENGTHS, S))
    found_BTD, past_BPD = block(x_BTD, block.no_past(x_BTD), g_BTD, source)
    assert past_BPD.shape == (B, kernel - 1, D)
    for row, length in enumerate(LENGTHS.tolist()):
        expected_TD = block_by_loops(
            block, x_BTD[row], g_BTD[row], z_BSD[row, :length], values_BSD[row, :length]
        )
        torch.testing.assert_close(found_BTD[row], expected_TD)


@pytest.mark.parametrize("kernel", [1, 2, 4])
@pytest.mark.parametrize("cut", [1, 3])
def test_what_is_past_is_all_that_a_later_part_needs(kernel: int, cut: int) -> None:
    block = shaken(ConvolutionalDecoderBlock(D, kernel, cross=False))
    x_BTD = random(B, T, D)
    whole_BTD, last_BPD = block(x_BTD, block.no_past(x_BTD), x_BTD)
    first, past_BPD = block(x_BTD[:, :cut], block.no_past(x_BTD), x_BTD)
    second, end_BPD = block(x_BTD[:, cut:], past_BPD, x_BTD)
    torch.testing.assert_close(torch.cat((first, second), dim=1), whole_BTD)
    assert torch.equal(end_BPD, last_BPD)


def test_the_gradient_to_the_future_is_exactly_zero() -> None:
    block = shaken(ConvolutionalDecoderBlock(D, 3))
    source = Source.of(random(B, S, D), random(B, S, D), LENGTHS, padding(LENGTHS, S))
    x_BTD = random(B, T, D).requires_grad_()
    y_BTD, _ = block(x_BTD, block.no_past(x_BTD), random(B, T, D), source)
    for t in range(T):
        (grad_BTD,) = torch.autograd.grad(y_BTD[:, t].sum(), x_BTD, retain_graph=True)
        assert (grad_BTD[:, t + 1 :] == 0).all()
        assert (grad_BTD[:, max(t - 2, 0) : t + 1] != 0).any(dim=2).all()
        assert (grad_BTD[:, : max(t - 2, 0)] == 0).all()  # the kernel sees no further


def test_it_is_torchs_convolution() -> None:
    part, x_BSD = shaken(GatedConvolution(D, 3)), random(B, S, D)
    weight_EDK = part.product.weight.view(2 * D, 3, D).transpose(1, 2)
    expected_BSE = F.conv1d(x_BSD.mT, weight_EDK, part.product.bias).mT
    torch.testing.assert_close(part(x_BSD), F.glu(expected_BSE))
    assert windows(x_BSD, 3).shape == (B, S - 2, 3 * D)


def test_the_gradients_are_those_of_small_differences() -> None:
    encoder, decoder = ConvolutionalEncoderBlock(D, 3), ConvolutionalDecoderBlock(D, 2)
    for block in (encoder, decoder):
        shaken(block)
    weights = [*encoder.parameters(), *decoder.parameters()]

    def run(x_BSD: Tensor, g_BTD: Tensor, *_: Tensor) -> Tensor:
        z_BSD = encoder(x_BSD, REAL)
        source = Source.of(z_BSD, z_BSD + x_BSD, LENGTHS, padding(LENGTHS, S))
        y_BTD: Tensor = decoder(g_BTD, decoder.no_past(g_BTD), g_BTD, source)[0]
        return y_BTD

    inputs = random(B, S, D, seed=5).requires_grad_(), random(B, 2, D, seed=6).requires_grad_()
    assert torch.autograd.gradcheck(run, (*inputs, *weights), fast_mode=True)


@torch.no_grad()
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_variance_stays_the_same_through_many_layers(dropout: float) -> None:
    """What the paper chooses its first weights for; small inputs, as of its embeddings."""
    torch.manual_seed(1)
    width, x_BSD = 64, 0.1 * torch.randn(4, 60, 64)
    blocks = [ConvolutionalEncoderBlock(width, 3, dropout).train() for _ in range(12)]
    y_BSD = x_BSD
    for block in blocks:
        y_BSD = block(y_BSD)
    assert 0.7 < float(y_BSD[:, 12:-12].std() / x_BSD.std()) < 1.4
    straight = build_linear(width, width, dropout)
    spread = float(straight(F.dropout(x_BSD, dropout)).std() / x_BSD.std())
    assert 0.85 < spread < 1.15


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="must be odd"):
        ConvolutionalEncoderBlock(D, 4)
    with pytest.raises(ValueError, match="at least 1"):
        GatedConvolution(D, 0)
    block, x_BTD = ConvolutionalDecoderBlock(D, 3), torch.zeros(B, T, D)
    with pytest.raises(ValueError, match="needs a source"):
        block(x_BTD, block.no_past(x_BTD), x_BTD)
