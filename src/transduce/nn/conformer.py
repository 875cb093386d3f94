"""Conformer block: self-attention for long range, convolution for short range.

Gulati et al. 2020, https://arxiv.org/abs/2005.08100.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.attention.relative import RelativeAttention
from transduce.nn.linear import linear
from transduce.nn.masks import Mask
from transduce.nn.positions import Rotary, Sinusoidal
from transduce.nn.residual import normalise
from transduce.nn.transformer import BlockCache, FeedForward, Residual, Resumed, build_norm
from transduce.nn.watchable import Watchable

ARM = platform.machine() in ("aarch64", "arm64")
_TURN = [threading.Lock()]
if hasattr(os, "register_at_fork"):  # while a thread of the parent has its turn, perhaps
    os.register_at_fork(after_in_child=lambda: _TURN.__setitem__(0, threading.Lock()))


class MaskedBatchNorm(nn.Module):
    """Batch normalisation (Ioffe and Szegedy 2015) that leaves out padding."""

    running_mean_D: Tensor
    running_variance_D: Tensor

    def __init__(self, width: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean_D", torch.zeros(width))
        self.register_buffer("running_variance_D", torch.ones(width))

    def forward(self, x_BSD: Tensor, real_BS: Tensor | None = None) -> Tensor:
        """x_BSD normalised by the statistics of the batch in training, else by running
        statistics; so it is while its weight is frozen, and these stay as they are.
        """
        mean_D, variance_D = self.running_mean_D, self.running_variance_D
        if self.training and self.weight.requires_grad:
            mean_D, variance_D = self._statistics(x_BSD, real_BS)
        scale_D = self.weight * (variance_D + self.eps).rsqrt()
        return ((x_BSD - mean_D) * scale_D + self.bias).to(x_BSD.dtype)

    def _statistics(self, x_BSD: Tensor, real_BS: Tensor | None) -> tuple[Tensor, Tensor]:
        if real_BS is None:
            real_BS = torch.ones(x_BSD.shape[:2], dtype=torch.bool, device=x_BSD.device)
        exact_BSD = x_BSD.to(self.running_mean_D.dtype)
        count = real_BS.sum().clamp(min=1)
        hidden_BS1 = ~real_BS[..., None]
        mean_D = exact_BSD.masked_fill(hidden_BS1, 0.0).sum(dim=(0, 1)) / count
        squares_BSD = (exact_BSD - mean_D).masked_fill(hidden_BS1, 0.0).square()
        variance_D = squares_BSD.sum(dim=(0, 1)) / count
        with torch.no_grad():
            unbiased_D = variance_D * count / (count - 1).clamp(min=1)
            self.running_mean_D.lerp_(mean_D, self.momentum)
            self.running_variance_D.lerp_(unbiased_D, self.momentum)
        return mean_D, variance_D


class DepthwiseConvolution(nn.Conv1d):
    """A depthwise convolution that several threads may call at once.

    On ARM CPUs the kernel that torch 2.13 takes for it (oneDNN's, by the Arm Compute Library) gives
    wrong numbers while two threads are in it: there, one waits for the other.
    """

    def forward(self, x_BDS: Tensor) -> Tensor:
        if not ARM or x_BDS.device.type != "cpu":
            return super().forward(x_BDS)
        with _TURN[0]:
            return super().forward(x_BDS)


class Convolution(Watchable):
    """Conformer convolution module W_2 silu(norm(depthwise(glu(W_1 x)))): Gulati et al. 2020,
    section 2.2.

    norm: "layer" or the paper's "batch". With batch norm, the result for a frame in training
    depends on the rest of the batch: several processes, or gradient accumulation, then differ from
    one large batch, and small batches are noisy. Hence "layer" is the default. causal: a frame sees
    itself and the kernel - 1 frames before it, rather than as many on both sides.
    """

    def __init__(
        self, width: int, kernel: int = 31, norm: str = "layer", causal: bool = False
    ) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(
                f"A kernel must be odd, not {kernel}: make it {kernel - 1} or {kernel + 1}."
            )
        if norm not in ("layer", "batch"):
            raise ValueError(f'The norm of a convolution must be "layer" or "batch", not "{norm}".')
        self.expand = nn.Linear(width, 2 * width)
        self.past = kernel - 1 if causal else 0
        padding = 0 if causal else kernel // 2
        self.depthwise = DepthwiseConvolution(width, width, kernel, padding=padding, groups=width)
        self.norm = MaskedBatchNorm(width) if norm == "batch" else build_norm("layer", width)
        self.contract = nn.Linear(width, width)

    def forward(self, x_BSD: Tensor, real_BS: Tensor | None = None) -> Tensor:
        """x_BSD to the same shape; padding frames (real_BS false) count as zero."""
        x_BSD = F.glu(linear(x_BSD, self.expand.weight, self.expand.bias))
        if real_BS is not None:
            x_BSD = x_BSD.masked_fill(~real_BS[..., None], 0.0)  # zero padding
        if self.past:
            x_BSD = F.pad(x_BSD, (0, 0, self.past, 0))
        x_BSD = self.depthwise(x_BSD.mT).mT
        return self._output(x_BSD, real_BS)

    def resume(self, x_BTD: Tensor, past_BPD: Tensor) -> tuple[Tensor, Tensor]:
        """The frames that follow the P last ones, of a causal convolution; also those to give with
        the next frames."""
        x_BTD = F.glu(linear(x_BTD, self.expand.weight, self.expand.bias))
        x_BSD = torch.cat((past_BPD, x_BTD), dim=1)
        kept_BPD = x_BSD[:, x_BSD.shape[1] - self.past :]
        return self._output(self.depthwise(x_BSD.mT).mT), kept_BPD

    def _output(self, x_BSD: Tensor, real_BS: Tensor | None = None) -> Tensor:
        if isinstance(self.norm, MaskedBatchNorm):
            x_BSD = self.norm(x_BSD, real_BS)
        else:
            x_BSD = self.norm(x_BSD)
        return self.gated(linear(F.silu(x_BSD), self.contract.weight, self.contract.bias))


class ConformerBlock(nn.Module):
    """Conformer layer (Gulati et al. 2020, https://arxiv.org/abs/2005.08100).

        x ← x + ½ FF(x)
        x ← x + MHA(x)
        x ← x + Conv(x)
        y = norm(x + ½ FF(x))

    Args:
        width: width of inputs and outputs.
        heads: number of attention heads.
        hidden: width of the hidden layer of both feed-forward networks.
        kernel: number of frames that the convolution sees; odd.
        positions: `Sinusoidal` gives the paper's relative attention. `Rotary` also depends on
            distances only, and runs in a fused kernel; on 100 to 50,000 hours of speech it has the
            same error rates or better, and trains up to a fifth faster (Zhang et al. 2025,
            https://arxiv.org/abs/2501.06051). None: attention knows no positions.
        convolution_norm: "layer", or the paper's "batch".
        activation: of the feed-forward networks; "silu" in the paper.
        norm: "layer" (LayerNorm) or "rms" (RMSNorm).
        dropout: of the output of each sublayer.
        attention_dropout: of the attention weights.
        activation_dropout: of the hidden layers of the feed-forward networks.
        head_width: width of one head, if it is not width / heads.
        causal: the convolution sees only the past, for streaming.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        kernel: int = 31,
        positions: Sinusoidal | Rotary | None = None,
        convolution_norm: str = "layer",
        activation: str = "silu",
        norm: str = "layer",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        head_width: int | None = None,
        causal: bool = False,
    ) -> None:
        """causal: the convolution sees no later frames."""
        super().__init__()
        build_feed_forward = partial(FeedForward, width, hidden, activation, activation_dropout)
        build_residual = partial(Residual, width, norm, "pre", dropout)
        self.first_feed_forward = build_feed_forward()
        self.first_feed_forward_residual = build_residual()
        self.self_attention: MultiHeadAttention
        if isinstance(positions, Sinusoidal):
            self.self_attention = RelativeAttention(
                width, heads, positions, attention_dropout, head_width=head_width
            )
        else:
            self.self_attention = MultiHeadAttention(
                width, heads, attention_dropout, rotary=positions, head_width=head_width
            )
        self.self_attention_residual = build_residual()
        self.convolution = Convolution(width, kernel, convolution_norm, causal)
        self.convolution_residual = build_residual()
        self.last_feed_forward = build_feed_forward()
        self.last_feed_forward_residual = build_residual()
        self.norm = build_norm(norm, width)

    def forward(
        self, x_BSD: Tensor, mask: Mask | None = None, real_BS: Tensor | None = None
    ) -> Tensor:
        """x_BSD to the same shape.

        `mask` says which frames each frame may attend to, `real_BS` which frames are not padding.
        Raises ValueError for packed sequences: the convolution would run across their borders.
        """
        if mask is not None and mask.segments is not None:
            raise ValueError(
                "A Conformer block takes no packed sequences: pad them, one in each row."
            )
        x_BSD = self.first_feed_forward_residual(x_BSD, _half(self.first_feed_forward))
        x_BSD = self.self_attention_residual(x_BSD, partial(self.self_attention, mask=mask))
        x_BSD = self.convolution_residual(x_BSD, partial(self.convolution, real_BS=real_BS))
        x_BSD = self.last_feed_forward_residual(x_BSD, _half(self.last_feed_forward))
        return normalise(self.norm, x_BSD, half=False)

    def resume(
        self, x_BTD: Tensor, block_cache: BlockCache, visible_BTS: Tensor
    ) -> tuple[Tensor, BlockCache]:
        """The frames that follow what was seen before: outputs, and what the next frames need.

        `visible_BTS` is over the keys of the past and of these frames.
        """
        assert block_cache.frames_BPD is not None
        attention, convolution = Resumed(), Resumed()
        attend = partial(
            self.self_attention.resume, past_BP2D=block_cache.keys_BP2D, visible_BTS=visible_BTS
        )
        convolve = partial(self.convolution.resume, past_BPD=block_cache.frames_BPD)
        x_BTD = self.first_feed_forward_residual(x_BTD, _half(self.first_feed_forward))
        x_BTD = self.self_attention_residual(x_BTD, attention.of(attend))
        x_BTD = self.convolution_residual(x_BTD, convolution.of(convolve))
        x_BTD = self.last_feed_forward_residual(x_BTD, _half(self.last_feed_forward))
        kept = BlockCache(attention.kept, convolution.kept)
        return normalise(self.norm, x_BTD, half=False), kept


def _half(feed_forward: FeedForward) -> Callable[[Tensor], Tensor]:
    return lambda x_BSD: 0.5 * feed_forward(x_BSD)
