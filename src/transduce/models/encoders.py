"""Encoders: source vectors in, memory out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack, cast

import torch
from torch import Tensor, nn

from transduce.models.convolutional import ConvolutionalEncoder
from transduce.models.encoder_output import EncoderOutput
from transduce.models.registered import RegisteredEncoder
from transduce.nn.attention.bucketed import BucketedBias
from transduce.nn.checkpointing import Checkpointed
from transduce.nn.chunks import Chunked, ChunkSizes
from transduce.nn.conformer import ConformerBlock
from transduce.nn.depthwise import Borders
from transduce.nn.masks import Mask, real_positions
from transduce.nn.positions import Rotary, Sinusoidal
from transduce.nn.recurrent.cells import State
from transduce.nn.recurrent.stack import Recurrent, reverse_sequences, rotate_sequences
from transduce.nn.residual import ResidualStream, normalise
from transduce.nn.transformer import EncoderBlock, LayerSettings


class TransformerEncoder(Checkpointed, Chunked):
    """Blocks of self-attention and feed-forward (Vaswani et al. 2017, figure 1, left)."""

    def __init__(
        self,
        width: int,
        heads: int,
        feed_forward: int,
        layers: int,
        *,
        rotary: bool = False,
        rotary_base: float = 10000.0,
        head_width: int | None = None,
        relative: tuple[int, int] | None = None,
        layer_heads: Sequence[int] | None = None,
        chunk_sizes: ChunkSizes | None = None,
        **settings: Unpack[LayerSettings],
    ) -> None:
        """`rotary`: rotary positions in every block; `relative`: a bias by distance, of so many
        buckets up to such a distance; other positions are the embeddings'.

        `layer_heads`: the heads of each layer if some were pruned; each is `head_width` wide, by
        default width / heads. `chunk_sizes`: trained to read audio in chunks, as it arrives.
        """
        super().__init__()
        self.chunk_sizes = chunk_sizes
        wide = width // heads if head_width is None else head_width
        rotary_angles = Rotary(wide, rotary_base) if rotary else None
        bias = None if relative is None else BucketedBias(heads, *relative, both_directions=True)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                width,
                kept,
                feed_forward,
                head_width=wide,
                rotary=rotary_angles,
                relative=bias,
                **settings,
            )
            for kept in layer_heads or [heads] * layers
        )
        self.norm = self.stack[-1].last_norm()

    @property
    def stack(self) -> Sequence[EncoderBlock]:
        return cast("Sequence[EncoderBlock]", self.blocks)  # a ModuleList does not know its type

    def forward(
        self, x_BSD: Tensor, lengths_B: Tensor, mask: Mask | None, chunk: int | None = None
    ) -> EncoderOutput:
        """chunk: of so many states; None: whole sequences."""
        stream = ResidualStream(x_BSD)
        visible = self.chunk_mask(x_BSD.shape[1], mask, x_BSD.device, chunk)
        for block in self.stack:
            stream = self.run(block, stream, visible)
        return EncoderOutput(normalise(self.norm, stream, half=True), lengths_B, mask)

    def finished(self, x_BTD: Tensor) -> Tensor:
        """The states, of what the last block gives."""
        return normalise(self.norm, x_BTD, half=True)


class ConformerEncoder(Checkpointed, Chunked):
    """Blocks of attention and convolution (Gulati et al. 2020, https://arxiv.org/abs/2005.08100)."""

    def __init__(
        self,
        width: int,
        heads: int,
        feed_forward: int,
        layers: int,
        *,
        kernel: int = 31,
        positions: str = "rotary",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        layer_heads: Sequence[int] | None = None,
        chunk_sizes: ChunkSizes | None = None,
    ) -> None:
        """positions: "relative" or "rotary"; any others are the embeddings', and unknown here.

        `layer_heads`: the heads of each layer if some were pruned; each is width / heads wide.
        `chunk_sizes`: trained to read audio in chunks, as it arrives; convolutions are then causal.
        """
        super().__init__()
        self.chunk_sizes = chunk_sizes
        inside: Sinusoidal | Rotary | None = None
        if positions == "relative":
            inside = Sinusoidal(width)
        elif positions == "rotary":
            inside = Rotary(width // heads)
        self.blocks = nn.ModuleList(
            ConformerBlock(
                width,
                kept,
                feed_forward,
                head_width=width // heads,
                kernel=kernel,
                positions=inside,
                dropout=dropout,
                attention_dropout=attention_dropout,
                activation_dropout=activation_dropout,
                causal=chunk_sizes is not None,
            )
            for kept in layer_heads or [heads] * layers
        )

    @property
    def stack(self) -> Sequence[ConformerBlock]:
        return cast("Sequence[ConformerBlock]", self.blocks)

    @property
    def packs(self) -> bool:
        """Whether it takes packed sequences."""
        return self.chunk_sizes is None and all(block.packs for block in self.stack)

    def forward(
        self, x_BSD: Tensor, lengths_B: Tensor, mask: Mask | None, chunk: int | None = None
    ) -> EncoderOutput:
        """chunk: of so many states; None: whole sequences."""
        real_BS = borders = None
        if mask is not None and mask.segments is not None:
            borders = Borders.of(mask.segments, x_BSD.shape[1])
        elif mask is not None:
            real_BS = real_positions(lengths_B, x_BSD.shape[1], x_BSD.device)
        visible = self.chunk_mask(x_BSD.shape[1], mask, x_BSD.device, chunk)
        for block in self.blocks:
            x_BSD = self.run(block, x_BSD, visible, real_BS, borders)
        return EncoderOutput(x_BSD, lengths_B, mask)

    def finished(self, x_BTD: Tensor) -> Tensor:
        """The states, of what the last block gives."""
        return x_BTD


class RecurrentEncoder(nn.Module):
    """A recurrent network over the source, in one direction or both."""

    def __init__(
        self,
        width: int,
        cell: str = "lstm",
        layers: int = 1,
        *,
        bidirectional: bool = True,
        reverse: bool = False,
        skip: bool = False,
        dropout: float = 0.0,
    ) -> None:
        """`width` is that of the states; in both directions, each has half of it.

        `reverse`: the source is read from its end (Sutskever et al. 2014). `skip`: see Recurrent.
        """
        super().__init__()
        directions = 2 if bidirectional else 1
        self.recurrent = Recurrent(
            cell,
            width,
            width // directions,
            layers,
            bidirectional=bidirectional,
            dropout=dropout,
            skip=skip,
        )
        self.directions = directions
        self.reverse = reverse
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BSD: Tensor, lengths_B: Tensor, mask: Mask | None) -> EncoderOutput:
        if self.reverse:
            x_BSD = reverse_sequences(x_BSD, lengths_B)
        states_BSD, final = self.recurrent(x_BSD, None, lengths_B)
        if self.reverse:
            # Back in the order of the source, so that attention maps read from left to right.
            states_BSD = reverse_sequences(states_BSD, lengths_B)
        return EncoderOutput(self.dropout(states_BSD), lengths_B, mask, self._join(final))

    def read_letters(
        self, x_BSD: Tensor, lengths_B: Tensor, mask: Mask | None, tags_BS: Tensor
    ) -> EncoderOutput:
        """The source without the tags that it begins with: the states of these are zeros, and
        nothing attends to them."""
        tags_B = tags_BS.sum(dim=1)
        letters_B = (lengths_B - tags_B.to(lengths_B.device)).clamp(min=1)
        memory = self(rotate_sequences(x_BSD, tags_B), letters_B, None)
        # Back in the order of the source, so that attention maps show its places.
        states_BSD = rotate_sequences(memory.states_BSD, -tags_B)
        letters = Mask(visible_BTS=~tags_BS[:, None])
        visible = letters if mask is None else mask & letters
        return EncoderOutput(states_BSD, lengths_B, visible, memory.final)

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

    def forward(self, x_BSD: Tensor, lengths_B: Tensor, mask: Mask | None) -> EncoderOutput:
        return EncoderOutput(x_BSD, lengths_B, mask)


Encoder = (
    TransformerEncoder
    | ConformerEncoder
    | RecurrentEncoder
    | ConvolutionalEncoder
    | PooledEncoder
    | RegisteredEncoder
)
