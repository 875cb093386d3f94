"""The network of a language model: a decoder alone and its head."""

from __future__ import annotations

import torch
from torch import Tensor

from transduce import recipe
from transduce.data.batches.packing import Packed
from transduce.models.decoders import (
    Decoder,
    DecoderState,
    TransformerDecoder,
    build_decoder,
)
from transduce.models.encoder_decoder import Head, build_front, hooked_step
from transduce.models.hooks import is_watched
from transduce.models.trainable import TrainableNetwork
from transduce.nn.attention.multihead import MultiHeadAttention, packs
from transduce.nn.loss.cross_entropy import Loss
from transduce.nn.masks import Segments


class LanguageModelNetwork(TrainableNetwork):
    """Says which token comes next, trained by `loss`; reads by `read`, writes by `step`."""

    def __init__(self, decoder: Decoder, head: Head) -> None:
        super().__init__()
        self.decoder = decoder
        self.head = head

    def forward(self, target_BT: Tensor) -> Tensor:
        """Teacher forcing: features_BTD that predict, at each step, the token after target_BT's."""
        features_BTD: Tensor = self.decoder(target_BT)
        return features_BTD

    def loss(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
    ) -> Loss:
        """Cross-entropy of target_BT (BEGIN …, padded), summed; the sources are empty."""
        return self.head.loss(self(target_BT[:, :-1]), target_BT[:, 1:], smoothing, r_drop)

    def packs(self, longest: int) -> bool:
        watched = is_watched(self.modules())
        if not isinstance(self.decoder, TransformerDecoder) or not self.as_built or watched:
            return False
        attentions = [m for m in self.modules() if isinstance(m, MultiHeadAttention)]
        return all(packs(a.head_width, longest, a.dropout) for a in attentions)

    def packed_loss(self, packed: Packed, smoothing: float = 0.0, r_drop: float = 0.0) -> Loss:
        """The same of sequences laid one after the other, nothing padded; Transformers only."""
        offsets, longest = packed.target_offsets, packed.shape.longest
        features_1TD = self.decoder(packed.target_1T, None, Segments(offsets, offsets, longest))
        return self.head.loss(features_1TD, packed.labels_1T, smoothing, r_drop)

    def read(self, tokens_BT: Tensor) -> DecoderState:
        """What is remembered of tokens (from BEGIN on), read in one pass."""
        state: DecoderState = self.decoder.start()
        if tokens_BT.shape[1]:
            _, state = self.decoder.read(tokens_BT, state)  # type: ignore[arg-type]
        return state

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_BV of the token after tokens_B, in float32 whatever the weights."""
        features_BD, state = hooked_step(self.decoder, tokens_B, state)
        return torch.log_softmax(self.head(features_BD).float(), dim=-1), state


def build_language(settings: recipe.Model, vocabulary: int) -> LanguageModelNetwork:
    """A network of the recipe's shape, its weights drawn from torch's generator."""
    width, dropout = settings.width, settings.dropout
    assert settings.decoder is not None  # the recipe holds this
    front = build_front(vocabulary, width, settings.decoder, dropout)
    decoder = build_decoder(settings.decoder, width, dropout, front, alone=True)
    tied = None if settings.tie_embeddings == "none" else front.table
    return LanguageModelNetwork(decoder, Head(width, vocabulary, tied)).built()
