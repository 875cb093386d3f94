"""The network: source front end → encoder → decoder → head."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from transduce import recipe
from transduce.data.batches.packing import Packed
from transduce.data.tokens.tokenizer import PAD
from transduce.errors import ModelError
from transduce.models.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.models.decoders import Decoder, DecoderState, RecurrentDecoder, build_decoder
from transduce.models.encoders import (
    ConformerEncoder,
    Encoder,
    RecurrentEncoder,
    build_encoder,
)
from transduce.models.hooks import call_hooked, is_watched
from transduce.models.memory import Memory, padding_mask
from transduce.models.trainable import TrainableNetwork
from transduce.nn.attention.multihead import MultiHeadAttention, packs
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.linear import linear
from transduce.nn.loss.cross_entropy import Loss, cross_entropy
from transduce.nn.loss.r_drop import r_drop_cross_entropy
from transduce.nn.masks import Mask, Segments
from transduce.nn.positions import Fourier, Learned, Positioned, Sinusoidal


class Head(nn.Module):
    """Predicted embedding to logits: E ŷ_t + b; E is the target's look-up table where tied."""

    def __init__(self, width: int, vocabulary: int, table: nn.Embedding | None) -> None:
        super().__init__()
        self.weight = (
            nn.Parameter(torch.empty(vocabulary, width)) if table is None else table.weight
        )
        if table is None:
            nn.init.normal_(self.weight, std=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        # Where positions are concatenated, embeddings are narrower than the hidden states.
        narrower = self.weight.shape[1] != width
        self.narrow = nn.Linear(width, self.weight.shape[1]) if narrower else nn.Identity()

    def forward(self, features_BTD: Tensor) -> Tensor:
        return linear(self.narrow(features_BTD), self.weight, self.bias)

    def products(self, features_RD: Tensor) -> Tensor:
        """E ŷ, the bias not added; in float32 also of bfloat16 weights, so near ties stay apart."""
        narrow_RE: Tensor = self.narrow(features_RD)
        if narrow_RE.is_cuda and narrow_RE.dtype == torch.bfloat16:
            return torch.mm(narrow_RE, self.weight.t(), out_dtype=torch.float32)
        exact = torch.promote_types(narrow_RE.dtype, torch.float32)
        return (narrow_RE @ self.weight.t()).to(exact)

    def loss(
        self,
        features_BTD: Tensor,
        targets_BT: Tensor,
        smoothing: float,
        r_drop: float = 0.0,
        ignore: int = PAD,
    ) -> Loss:
        """With `r_drop`, the second half of the rows is a second pass over the first."""
        narrow_BTE = self.narrow(features_BTD)
        if r_drop:
            return r_drop_cross_entropy(
                narrow_BTE, self.weight, self.bias, targets_BT, r_drop, smoothing, ignore
            )
        return cross_entropy(narrow_BTE, self.weight, self.bias, targets_BT, smoothing, ignore)


class EncoderDecoder(TrainableNetwork):
    """An encoder-decoder, trained by `loss` and decoded by `start` and `step`."""

    def __init__(
        self,
        front: TokenEmbedding,
        encoder: Encoder,
        decoder: Decoder,
        head: Head,
    ) -> None:
        super().__init__()
        self.front = front
        self.encoder = encoder
        self.decoder = decoder
        self.head = head

    def packs(self, longest: int) -> bool:
        return packs_all(self, longest)

    def encode(self, source_BS: Tensor, lengths_B: Tensor) -> Memory:
        """The memory of a batch of sources; lengths_B is on the CPU, the mask follows from it."""
        mask = padding_mask(lengths_B, source_BS.shape[1], source_BS.device)
        memory: Memory = self.encoder(self.front(source_BS), lengths_B, mask)
        return memory

    def forward(self, source_BS: Tensor, lengths_B: Tensor, target_BT: Tensor) -> Tensor:
        """Teacher forcing: features_BTD that predict, at each step, the token after target_BT's."""
        features_BTD: Tensor = self.decoder(target_BT, self.encode(source_BS, lengths_B))
        return features_BTD

    def loss(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
    ) -> Loss:
        """Cross-entropy of target_BT (BEGIN … END, padded), summed over its tokens."""
        features_BTD = self(source_BS, lengths_B, target_BT[:, :-1])
        return self.head.loss(features_BTD, target_BT[:, 1:], smoothing, r_drop)

    def packed_loss(self, packed: Packed, smoothing: float = 0.0, r_drop: float = 0.0) -> Loss:
        """The same of sequences laid one after the other, nothing padded; Transformers only."""
        source, target, longest = packed.source_offsets, packed.target_offsets, packed.shape.longest
        mask = Segments(source, source, longest)
        x_1SD = self.front(packed.source_1S, mask.places(packed.shape.source))
        memory: Memory = self.encoder(x_1SD, source, Mask(segments=mask))
        memory.mask = Mask(segments=Segments(target, source, longest))
        features_1TD = self.decoder(packed.target_1T, memory, Segments(target, target, longest))
        return self.head.loss(features_1TD, packed.labels_1T, smoothing, r_drop)

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> DecoderState:
        return self.begin(self.encode(source_BS, lengths_B))

    def begin(self, memory: Memory) -> DecoderState:
        """What a decoder starts from that has this memory."""
        state: DecoderState = self.decoder.start(memory)
        return state

    def states_of(self, length: int) -> int:
        """How many states the memory has of a source of so many tokens, END not counted."""
        return length + 1

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_BV of the token after tokens_B, in float32 whatever the weights."""
        features_BD, state = hooked_step(self.decoder, tokens_B, state)
        return torch.log_softmax(self.head(features_BD).float(), dim=-1), state


def hooked_step(
    decoder: Decoder, tokens_B: Tensor, state: DecoderState
) -> tuple[Tensor, DecoderState]:
    """decoder.step; a forward hook on the decoder sees tokens_B and features_BD."""
    after = state

    def step(tokens_B: Tensor) -> Tensor:
        nonlocal after
        features_BD, after = decoder.step(tokens_B, state)  # type: ignore[arg-type]
        return features_BD

    features_BD: Tensor = call_hooked(decoder, step, tokens_B)
    return features_BD, after


class Vocabulary(NamedTuple):
    source: int
    target: int


def build(settings: recipe.Model, vocabulary: Vocabulary) -> EncoderDecoder:
    """A network of the recipe's shape, its weights drawn from torch's generator.

    Raises ModelError where tie_embeddings: all cannot be.
    """
    width, dropout = settings.width, settings.dropout
    assert settings.encoder is not None  # the recipe holds this
    assert settings.decoder is not None
    front = build_front(vocabulary.source, width, settings.encoder, dropout)
    target_front = build_front(vocabulary.target, width, settings.decoder, dropout)
    if settings.tie_embeddings == "all":
        if front.table.weight.shape != target_front.table.weight.shape:
            raise ModelError(
                f"tie_embeddings: all shares one table of source and target embeddings, but these "
                f"are {_shape(front)} and {_shape(target_front)} (tokens x width): use one "
                f"vocabulary and the same combine on both sides, or tie_embeddings: target"
            )
        target_front.table = front.table
    encoder = build_encoder(settings.encoder, width, dropout)
    return EncoderDecoder(front, encoder, *build_writer(settings, target_front)).built()


def build_writer(settings: recipe.Model, front: TokenEmbedding) -> tuple[Decoder, Head]:
    """A decoder and its head upon the embeddings of the target's tokens."""
    width, dropout = settings.width, settings.dropout
    final = None
    if isinstance(settings.encoder, recipe.RecurrentEncoder):
        final = (settings.encoder.cell, settings.encoder.layers)
    assert settings.decoder is not None  # the recipe holds this
    decoder = build_decoder(settings.decoder, width, dropout, front, final)
    tied = None if settings.tie_embeddings == "none" else front.table
    return decoder, Head(width, front.table.num_embeddings, tied)


def _shape(front: TokenEmbedding) -> str:
    return " x ".join(map(str, front.table.weight.shape))


def build_front(
    vocabulary: int, width: int, part: recipe.Encoder | recipe.Decoder, dropout: float
) -> TokenEmbedding:
    """The look-up table below a part, with the positions that it asks for."""
    positions = build_positions(part, width)
    inner = width // 2 if positions is not None and positions.combine == "concatenate" else width
    return TokenEmbedding(vocabulary, inner, positions, dropout)


def build_positions(part: recipe.Encoder | recipe.Decoder, width: int) -> Positioned | None:
    if isinstance(part, recipe.ConformerEncoder):
        return Positioned(Sinusoidal(width)) if part.positions == "sinusoidal" else None
    if isinstance(part, recipe.ConvolutionalEncoder | recipe.ConvolutionalDecoder):
        if part.positions == "none":
            return None
        if part.positions == "sinusoidal":
            return Positioned(Sinusoidal(width))
        # As large as the embeddings, as in the paper.
        return Positioned(Learned(width, part.max_positions, std=1.0))
    if not isinstance(part, recipe.TransformerEncoder | recipe.TransformerDecoder):
        return None
    inner = width // 2 if part.combine == "concatenate" else width
    table: nn.Module
    if part.positions == "sinusoidal":
        table = Sinusoidal(inner)
    elif part.positions == "fourier":
        table = Fourier(inner, part.max_positions)
    elif part.positions == "learned":
        table = Learned(inner, part.max_positions)
    else:  # rotary turns queries and keys inside the attention; none knows no order
        return None
    return Positioned(table, part.combine)


def packs_all(network: TrainableNetwork, longest: int) -> bool:
    """Whether all parts take sequences laid one after the other.

    Recurrent networks go along each sequence, convolutions across borders, and not every attention
    has a kernel for this. A changed network is asked nothing of the kind, and hooks would not be
    called when a recorded pass is replayed.
    """
    convolutions = (ConformerEncoder, ConvolutionalEncoder, ConvolutionalDecoder)
    along = (RecurrentEncoder, RecurrentDecoder, *convolutions)
    if (
        not network.as_built
        or is_watched(network.modules())
        or any(isinstance(part, along) for part in network.children())
    ):
        return False
    attentions = [m for m in network.modules() if isinstance(m, MultiHeadAttention)]
    return all(packs(attention.head_width, longest, attention.dropout) for attention in attentions)
