"""A convolutional encoder and decoder: Gehring et al. 2017, https://arxiv.org/abs/1705.03122.

Context comes from neighbours, of which each layer sees more: n layers of kernel k reach
n (k − 1) / 2 places to each side, or n (k − 1) back. All places are computed at once, in training
and in the encoder; only search goes step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from transduce.models.call_context import KeptAttention
from transduce.models.encoder_output import EncoderOutput, reorder_mask
from transduce.nn.checkpointing import Checkpointed
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.gated_convolution import (
    HALVED,
    SMALL,
    ConvolutionalDecoderBlock,
    ConvolutionalEncoderBlock,
    Source,
    build_linear,
)
from transduce.nn.linear import linear
from transduce.nn.masks import Mask, real_positions
from transduce.nn.residual import dropped


class ConvolutionalEncoder(Checkpointed):
    """Blocks of gated convolutions between two linear layers."""

    def __init__(self, width: int, layers: int, kernel: int = 3, dropout: float = 0.0) -> None:
        """`kernel`: how many tokens a convolution sees; odd."""
        super().__init__()
        self.into = build_linear(width, width, dropout)
        self.blocks = nn.ModuleList(
            ConvolutionalEncoderBlock(width, kernel, dropout) for _ in range(layers)
        )
        self.out_of = build_linear(width, width)

    def forward(self, x_BSD: Tensor, lengths_B: Tensor, mask: Mask | None) -> EncoderOutput:
        """The memory's values are z + e: what each place has become, and what stood there.

        Raises ValueError for sequences in one row: a convolution would run across their borders.
        """
        if mask is not None and mask.segments is not None:
            raise ValueError("A convolutional encoder takes one sequence a row: pad them instead.")
        real_BS = None
        if mask is not None:
            real_BS = real_positions(lengths_B, x_BSD.shape[1], x_BSD.device)
        # Under autocast a product is of half precision; the stream that blocks add to is not.
        z_BSD = linear(SMALL * x_BSD, self.into.weight, self.into.bias).to(x_BSD.dtype)
        for block in self.blocks:
            z_BSD = self.run(block, z_BSD, real_BS)
        z_BSD = linear(z_BSD, self.out_of.weight, self.out_of.bias).to(x_BSD.dtype) / SMALL
        return EncoderOutput(z_BSD, lengths_B, mask, values_BSD=(z_BSD + x_BSD) * HALVED)


@dataclass
class ConvolutionalState(KeptAttention):
    """Of each block the last inputs of its convolution, and what it attends to."""

    source: Source | None
    """None where there is no source."""
    row_B: Tensor | None
    """Which row of the sources each row reads."""
    past: list[Tensor] = field(default_factory=list)
    """Empty before the first step."""
    length: int = 0

    def reorder(self, index_B: Tensor) -> None:
        self.past = [past_BPD[index_B] for past_BPD in self.past]
        if self.source is None or self.row_B is None:
            return
        before_B, self.row_B = self.row_B, self.row_B[index_B]
        # Hypotheses that change places within a source need no copy of it. Only a CPU is asked to
        # look: another device would have to be waited for.
        if index_B.device.type == "cpu" and torch.equal(before_B, self.row_B):
            return
        source = self.source
        self.source = Source(
            source.keys_BSD[index_B],
            source.values_BSD[index_B],
            reorder_mask(source.mask, index_B),
            source.scale_B11[index_B],
        )


class ConvolutionalDecoder(Checkpointed):
    """Blocks of causal gated convolutions, each of which attends to the source."""

    def __init__(
        self,
        embedding: TokenEmbedding,
        width: int,
        layers: int,
        kernel: int = 3,
        dropout: float = 0.0,
        alone: bool = False,
    ) -> None:
        """`alone`: there is no encoder, and no block attends to a source (Dauphin et al. 2017)."""
        super().__init__()
        self.embedding = embedding
        self.alone = alone
        self.dropout = dropout
        self.into = build_linear(width, width, dropout)
        self.blocks = nn.ModuleList(
            ConvolutionalDecoderBlock(width, kernel, dropout, cross=not alone)
            for _ in range(layers)
        )
        self.out_of = build_linear(width, width)

    @property
    def stack(self) -> Sequence[ConvolutionalDecoderBlock]:
        # A ModuleList does not know its type.
        return cast("Sequence[ConvolutionalDecoderBlock]", self.blocks)

    def forward(self, tokens_BT: Tensor, memory: EncoderOutput | None = None) -> Tensor:
        """Teacher forcing: tokens_BT (from BEGIN on) → features_BTD."""
        return self.read(tokens_BT, self.start(memory))[0]

    def start(self, memory: EncoderOutput | None = None) -> ConvolutionalState:
        if memory is None:
            return ConvolutionalState(None, None)
        keys_BSD = memory.states_BSD
        values_BSD = keys_BSD if memory.values_BSD is None else memory.values_BSD
        source = Source.of(SMALL * keys_BSD, SMALL * values_BSD, memory.lengths_B, memory.mask)
        return ConvolutionalState(source, torch.arange(len(keys_BSD), device=keys_BSD.device))

    def step(
        self, tokens_B: Tensor, state: ConvolutionalState
    ) -> tuple[Tensor, ConvolutionalState]:
        """The features_BD after one more token."""
        features_B1D, state = self.read(tokens_B[:, None], state)
        return features_B1D.squeeze(1), state

    def read(
        self, tokens_BT: Tensor, state: ConvolutionalState
    ) -> tuple[Tensor, ConvolutionalState]:
        """The features_BTD after each of T more tokens, in one pass."""
        embedded_BTD = SMALL * self.embedding(tokens_BT, start=state.length)
        x_BTD = linear(embedded_BTD, self.into.weight, self.into.bias).to(embedded_BTD.dtype)
        before = state.past or [block.no_past(x_BTD) for block in self.stack]
        state.past = []
        for block, past_BPD in zip(self.stack, before, strict=True):
            inputs = (x_BTD, past_BPD, embedded_BTD, state.source)
            kept = [state.keep] if state.keeps_attention and block is self.stack[-1] else []
            x_BTD, past_BPD = self.run(block, *inputs, *kept)
            state.past.append(past_BPD)
        state.length += tokens_BT.shape[1]
        features_BTD = linear(x_BTD, self.out_of.weight, self.out_of.bias) / SMALL
        return dropped(features_BTD, self.dropout, self.training), state
