"""Encoders: source vectors in, memory out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from transduce import recipe
from transduce.models.convolutional import ConvolutionalEncoder
from transduce.models.memory import Memory
from transduce.models.stack import build_last_norm, build_stack
from transduce.nn.conformer import ConformerBlock
from transduce.nn.masks import Mask
from transduce.nn.positions import Rotary, Sinusoidal
from transduce.nn.recurrent.cells import State
from transduce.nn.recurrent.stack import Recurrent, reverse_sequences
from transduce.nn.residual import Stream, normalise
from transduce.nn.transformer import EncoderBlock


class TransformerEncoder(nn.Module):
    """Blocks of self-attention and feed-forward (Vaswani et al. 2017, figure 1, left)."""

    def __init__(self, settings: recipe.TransformerEncoder, width: int, dropout: float) -> None:
        super().__init__()
        self.blocks = build_stack(EncoderBlock, settings, width, dropout)
        self.norm = build_last_norm(settings, width)

    @property
    def stack(self) -> Sequence[EncoderBlock]:
        return cast("Sequence[EncoderBlock]", self.blocks)  # a ModuleList does not know its type

    def forward(self, x_BSD: Tensor, lengths_B: Tensor, mask: Mask | None) -> Memory:
        stream = Stream(x_BSD)
        for block in self.stack:
            stream = block(stream, mask)
        return Memory(normalise(self.norm, stream, half=True), lengths_B, mask)


class ConformerEncoder(nn.Module):
    """Blocks of attention and convolution (Gulati et al. 2020, https://arxiv.org/abs/2005.08100)."""

    def __init__(self, settings: recipe.ConformerEncoder, width: int, dropout: float) -> None:
        super().__init__()
        positions: Sinusoidal | Rotary | None = None
        if settings.positions == "relative":
            positions = Sinusoidal(width)
        elif settings.positions == "rotary":
            positions = Rotary(width // settings.heads)
        self.blocks = nn.ModuleList(
            ConformerBlock(
                width,
                heads,
                settings.feed_forward,
                head_width=width // settings.heads,
                kernel=settings.kernel,
                positions=positions,
                dropout=dropout,
                attention_dropout=settings.attention_dropout,
                activation_dropout=settings.activation_dropout,
            )
            for heads in settings.kept_heads
        )

    def forward(self, x_BSD: Tensor, lengths_B: Tensor, mask: Mask | None) -> Memory:
        real_BS = None
        if mask is not None:
            place_S = torch.arange(x_BSD.shape[1], device=x_BSD.device)
            real_BS = place_S < lengths_B.to(x_BSD.device, non_blocking=True)[:, None]
        for block in self.blocks:
            x_BSD = block(x_BSD, mask, real_BS)
        return Memory(x_BSD, lengths_B, mask)


class RecurrentEncoder(nn.Module):
    """A recurrent network over the source, in one direction or both."""

    def __init__(self, settings: recipe.RecurrentEncoder, width: int, dropout: float) -> None:
        super().__init__()
        directions = 2 if settings.bidirectional else 1
        self.recurrent = Recurrent(
            settings.cell,
            width,
            width // directions,
            settings.layers,
            bidirectional=settings.bidirectional,
            dropout=dropout,
            skip=settings.skip,
        )
        self.directions = directions
        self.reverse = settings.reverse
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BSD: Tensor, lengths_B: Tensor, mask: Mask | None) -> Memory:
        if self.reverse:
            x_BSD = reverse_sequences(x_BSD, lengths_B)
        states_BSD, final = self.recurrent(x_BSD, None, lengths_B)
        if self.reverse:
            # Back in the order of the source, so that attention maps read from left to right.
            states_BSD = reverse_sequences(states_BSD, lengths_B)
        return Memory(self.dropout(states_BSD), lengths_B, mask, self._join(final))

    def _join(self, final: list[State]) -> list[State]:
        """Forward and backward states of each layer, side by side."""
        if self.directions == 1:
            return final
        pairs = zip(final[0::2], final[1::2], strict=True)
        return [
            tuple(torch.cat(parts, dim=-1) for parts in zip(*pair, strict=True)) for pair in pairs
        ]


class PooledEncoder(nn.Module):
    """The vectors of the source as they are."""

    def forward(self, x_BSD: Tensor, lengths_B: Tensor, mask: Mask | None) -> Memory:
        return Memory(x_BSD, lengths_B, mask)


Encoder = (
    TransformerEncoder | ConformerEncoder | RecurrentEncoder | ConvolutionalEncoder | PooledEncoder
)


def build_encoder(settings: recipe.Encoder, width: int, dropout: float) -> Encoder:
    if isinstance(settings, recipe.RecurrentEncoder):
        return RecurrentEncoder(settings, width, dropout)
    if isinstance(settings, recipe.ConformerEncoder):
        return ConformerEncoder(settings, width, dropout)
    if isinstance(settings, recipe.ConvolutionalEncoder):
        return ConvolutionalEncoder(settings, width, dropout)
    if isinstance(settings, recipe.PooledEncoder):
        return PooledEncoder()
    return TransformerEncoder(settings, width, dropout)
