"""Gated convolutions (ConvS2S): each layer widens the receptive field.

Gehring et al. 2017, https://arxiv.org/abs/1705.03122. A convolution is one matrix product with the
windows of its input, [B, T, kernel · D]. Training and single steps thus share one matrix, which can
be quantized as any other; on a CPU its gradient is several times as fast as torch's conv1d.

Weights are initialised as in the paper, so that the variance of activations is the same in all
layers. The paper's weight normalisation (Salimans and Kingma 2016), meant for SGD with momentum, is
left out: Adam's steps do not grow with the gradients, and a weight stays one matrix. For the same
reason the encoder's gradient is not divided by the number of attention layers.

P is kernel − 1, the past positions that a causal convolution sees.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.attention.attention import Attention, Dot
from transduce.nn.linear import linear
from transduce.nn.masks import Mask
from transduce.nn.residual import dropped
from transduce.nn.watchable import Watch, Watchable

HALVED = math.sqrt(0.5)
"""Scales a sum of two back to the variance of each."""
SMALL = 0.1
"""The standard deviation of the paper's embeddings. Sigmoids of small numbers are near ½, as the
initialisation assumes, and dot-product attention starts almost uniform. Vectors are scaled by this
factor from other parts of a model, which have a deviation of about 1, and back."""


class Source(NamedTuple):
    """Encoder outputs that a decoder block attends to."""

    keys_BSD: Tensor
    values_BSD: Tensor
    mask: Mask | None
    scale_B11: Tensor
    """m √(1/m) for a source of length m: an average over all of it has 1/m of the variance."""

    @classmethod
    def of(
        cls, keys_BSD: Tensor, values_BSD: Tensor, lengths_B: Tensor, mask: Mask | None
    ) -> Source:
        lengths_B = lengths_B.to(keys_BSD.device, keys_BSD.dtype, non_blocking=True)
        return cls(keys_BSD, values_BSD, mask, lengths_B.clamp(min=1).sqrt()[:, None, None])


class GatedConvolution(Watchable):
    """Convolution with a gated linear unit: a ⊗ σ(b), where [a; b] = W [x_t; …; x_{t + kernel − 1}]
    + bias.

    Dauphin et al. 2017, https://arxiv.org/abs/1612.08083.
    """

    def __init__(self, width: int, kernel: int, dropout: float = 0.0) -> None:
        super().__init__()
        if kernel < 1:
            raise ValueError(f"A kernel must be at least 1, not {kernel}.")
        self.kernel = kernel
        self.dropout = dropout
        self.product = nn.Linear(kernel * width, 2 * width)
        # The gate removes three quarters of the variance.
        _initialise(self.product, 4 * (1 - dropout))

    def forward(self, x_BSD: Tensor) -> Tensor:
        """[B, S, D] to [B, S − kernel + 1, D]: no padding."""
        x_BSD = dropped(x_BSD, self.dropout, self.training)
        windows_BTE = windows(x_BSD, self.kernel)
        return self.gated(F.glu(linear(windows_BTE, self.product.weight, self.product.bias)))


class ConvolutionalEncoderBlock(nn.Module):
    """y = √½ (x + glu(conv(x))), with as many neighbours on both sides."""

    def __init__(self, width: int, kernel: int, dropout: float = 0.0) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(
                f"A kernel must be odd, not {kernel}: make it {kernel - 1} or {kernel + 1}."
            )
        self.convolution = GatedConvolution(width, kernel, dropout)

    def forward(self, x_BSD: Tensor, real_BS: Tensor | None = None) -> Tensor:
        """x_BSD to the same shape; padding (real_BS false) counts as zero."""
        side = self.convolution.kernel // 2
        inside_BSD = x_BSD if real_BS is None else x_BSD.masked_fill(~real_BS[..., None], 0.0)
        h_BSD: Tensor = self.convolution(F.pad(inside_BSD, (0, 0, side, side)))
        return (x_BSD + h_BSD) * HALVED


class ConvolutionalDecoderBlock(nn.Module):
    """y = √½ (x + √½ (h + c)): h = glu(conv(x)) is causal, c the attention context.

    Equations 1 and 2 of the paper: d_i = W_d h_i + b_d + g_i, where g_i is the embedding of the
    previous token, a_ij = softmax_j(d_i · z_j), c_i = Σ_j a_ij (z_j + e_j). Every block has
    attention and sees the context of the blocks below (multi-step attention).

    With cross=False there is no source: a block of a language model.
    """

    def __init__(
        self, width: int, kernel: int, dropout: float = 0.0, *, cross: bool = True
    ) -> None:
        super().__init__()
        self.convolution = GatedConvolution(width, kernel, dropout)
        self.cross_attention: Attention | None = None
        if cross:
            self.cross_attention = Attention(Dot(width, width))
            self.query_projection = build_linear(width, width)
            self.context_projection = build_linear(width, width)

    def no_past(self, x_BTD: Tensor) -> Tensor:
        """The past_BPD before the first position: zeros."""
        return x_BTD.new_zeros(x_BTD.shape[0], self.convolution.kernel - 1, x_BTD.shape[2])

    def forward(
        self,
        x_BTD: Tensor,
        past_BPD: Tensor,
        embedded_BTD: Tensor,
        source: Source | None = None,
        watch: Watch = None,
    ) -> tuple[Tensor, Tensor]:
        """x_BTD to the same shape, and the past for the position after its last.

        watch: is called with the weights of cross-attention [B, 1, T, S]. Raises ValueError when
        there is a source without cross-attention or cross-attention without a source.
        """
        if (source is None) != (self.cross_attention is None):
            raise ValueError(
                "A decoder block with cross=True needs a source, and one with cross=False none."
            )
        seen_BSD = torch.cat((past_BPD, x_BTD), dim=1)
        h_BTD = self.convolution(seen_BSD)
        if source is not None:
            h_BTD = (h_BTD + self._attend(h_BTD, embedded_BTD, source, watch)) * HALVED
        return (x_BTD + h_BTD) * HALVED, seen_BSD[:, x_BTD.shape[1] :]

    def _attend(
        self, h_BTD: Tensor, embedded_BTD: Tensor, source: Source, watch: Watch = None
    ) -> Tensor:
        assert self.cross_attention is not None
        into, out_of = self.query_projection, self.context_projection
        query_BTD = (linear(h_BTD, into.weight, into.bias) + embedded_BTD) * HALVED
        context_BTD = self.cross_attention(
            query_BTD,
            source.keys_BSD,
            source.values_BSD,
            source.mask,
            *([] if watch is None else [watch]),
        )
        return linear(context_BTD * source.scale_B11, out_of.weight, out_of.bias)


def windows(x_BSD: Tensor, kernel: int) -> Tensor:
    """Sliding windows: each position and the kernel − 1 after it, side by side [B, S − kernel + 1,
    kernel · D].
    """
    T = x_BSD.shape[1] - kernel + 1
    return torch.cat([x_BSD[:, place : place + T] for place in range(kernel)], dim=-1)


def build_linear(width: int, outputs: int, dropout: float = 0.0) -> nn.Linear:
    """A linear layer whose initialisation keeps the variance; `dropout` is that of its input."""
    layer = nn.Linear(width, outputs)
    _initialise(layer, 1 - dropout)
    return layer


def _initialise(layer: nn.Linear, gain: float) -> None:
    nn.init.normal_(layer.weight, std=math.sqrt(gain / layer.in_features))
    nn.init.zeros_(layer.bias)
