"""Conformer block: self-attention for long range, convolution for short range.

Gulati et al. 2020, https://arxiv.org/abs/2005.08100.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.attention.relative import RelativeAttention
from transduce.nn.depthwise import Borders, DepthwiseConvolution
from transduce.nn.linear import linear
from transduce.nn.masks import Mask
from transduce.nn.positions import Rotary, Sinusoidal
from transduce.nn.residual import ResidualStream, normalise
from transduce.nn.transformer import BlockCache, FeedForward, Residual, Resumed, build_norm
from transduce.nn.watchable import Watchable


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
        self.depthwise = DepthwiseConvolution(width, kernel, causal)
        self.norm = MaskedBatchNorm(width) if norm == "batch" else build_norm("layer", width)
        self.contract = nn.Linear(width, width)

    @property
    def packs(self) -> bool:
        """Whether it takes packed sequences: a batch norm would count what they are filled with."""
        return not isinstance(self.norm, MaskedBatchNorm)

    def forward(
        self, x_BSD: Tensor, real_BS: Tensor | None = None, borders: Borders | None = None
    ) -> Tensor:
        """x_BSD to the same shape; padding frames (real_BS false) count as zero, and so do those
        beyond the borders of packed sequences."""
        x_BSD = F.glu(linear(x_BSD, self.expand.weight, self.expand.bias))
        if real_BS is not None:
            x_BSD = x_BSD.masked_fill(~real_BS[..., None], 0.0)  # zero padding
        return self._output(self.depthwise(x_BSD, borders), real_BS)

    def resume(self, x_BTD: Tensor, past_BPD: Tensor) -> tuple[Tensor, Tensor]:
        """The frames that follow the P last ones, of a causal convolution; also those to give with
        the next frames."""
        x_BTD = F.glu(linear(x_BTD, self.expand.weight, self.expand.bias))
        x_BSD = torch.cat((past_BPD, x_BTD), dim=1)
        kept_BPD = x_BSD[:, x_BSD.shape[1] - self.past :]
        return self._output(self.depthwise.valid(x_BSD)), kept_BPD

    def _output(self, x_BSD: Tensor, real_BS: Tensor | None = None) -> Tensor:
        if isinstance(self.norm, MaskedBatchNorm):
            x_BSD = self.norm(x_BSD, real_BS)
        else:
            x_BSD = normalise(self.norm, x_BSD, half=True)
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

    @property
    def packs(self) -> bool:
        """Whether the block takes packed sequences."""
        relative = isinstance(self.self_attention, RelativeAttention)
        return self.convolution.packs and not relative

    def forward(
        self,
        x_BSD: Tensor,
        mask: Mask | None = None,
        real_BS: Tensor | None = None,
        borders: Borders | None = None,
    ) -> Tensor:
        """x_BSD to the same shape.

        `mask` says which frames each frame may attend to, `real_BS` which frames are not padding.
        `borders` are those of the mask's packed sequences, for a caller with many blocks. Raises
        ValueError for packed sequences where the block `packs` none.
        """
        if mask is not None and mask.segments is not None:
            if not self.packs:
                raise ValueError(
                    "A Conformer block with relative positions or batch norm takes no packed "
                    "sequences: pad them, one in each row."
                )
            borders = borders or Borders.of(mask.segments, x_BSD.shape[1])
        convolve = partial(self.convolution, real_BS=real_BS, borders=borders)
        stream = ResidualStream(x_BSD)
        stream = self.first_feed_forward_residual(stream, _half(self.first_feed_forward))
        stream = self.self_attention_residual(stream, partial(self.self_attention, mask=mask))
        stream = self.convolution_residual(stream, convolve)
        stream = self.last_feed_forward_residual(stream, _half(self.last_feed_forward))
        return normalise(self.norm, stream, half=False)

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
