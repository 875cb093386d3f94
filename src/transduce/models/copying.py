"""An encoder-decoder that copies from its source: the pointer-generator of nn/copying.py.

Ids say what can be copied, so that corpora, batches and search carry nothing more:

- a source id from the size of the source's vocabulary on is a token that it has not; the rest of
  the number is the token's in the extended vocabulary (data/tokens/copying.py writes such ids);
- a target id from the size of the target's vocabulary on is one of the extension.

Both are embedded as the unknown token. In training a few tokens are hidden, on both sides, as if
they were unknown: a vocabulary that was learned from the same text knows all of it, and nothing
else would teach the network what to do with a token that it never saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import PAD, UNKNOWN
from transduce.models.call_context import NO_CONTEXT, CallContext, KeptAttention, attention_of
from transduce.models.check_input import check_ids, check_lengths, check_pairs
from transduce.models.decoders import DecoderState, RecurrentDecoder, TransformerDecoder
from transduce.models.encoder_decoder import EncoderDecoder, Head, hooked_step
from transduce.models.encoder_output import EncoderOutput
from transduce.models.encoders import Encoder
from transduce.nn.copying import (
    PointerGenerator,
    first_positions,
    hide,
    mixture_loss,
)
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.loss import Loss

HIDDEN = 0.05
"""The share of the different tokens of a source that are hidden in training."""


@dataclass
class CopyingState:
    """A decoder's state, with what can be copied by each of its rows."""

    decoder: DecoderState
    copies_BS: Tensor

    @property
    def attention_BS(self) -> Tensor | None:
        return attention_of(self.decoder)

    def reorder(self, index_B: Tensor) -> None:
        self.decoder.reorder(index_B)
        self.copies_BS = self.copies_BS[index_B]


class CopyingEncoderDecoder(EncoderDecoder):
    """An encoder-decoder whose outputs have tokens of its vocabulary and of the source (See et al.
    2017). Attention is that of a recurrent decoder, or of the last layer of a Transformer, the mean
    over its heads."""

    decoder: RecurrentDecoder | TransformerDecoder
    copied_as_V: Tensor

    def __init__(
        self,
        front: TokenEmbedding,
        encoder: Encoder,
        decoder: RecurrentDecoder | TransformerDecoder,
        head: Head,
        width: int,
        copied_as: Sequence[int],
    ) -> None:
        """copied_as: the number of each source token in the target's vocabulary; that vocabulary's
        size where it has no such token; −1 where it is never to be copied."""
        super().__init__(front, encoder, decoder, head)
        self.pointer = PointerGenerator(width)
        # Follows from the vocabularies, so that it is not saved.
        self.register_buffer("copied_as_V", torch.tensor(copied_as), persistent=False)

    @property
    def sizes(self) -> tuple[int, int]:
        """Of the vocabularies of source and target."""
        return len(self.copied_as_V), len(self.head.bias)

    @property
    def plain_steps(self) -> bool:
        return False

    def packs(self, longest: int) -> bool:
        return False  # attention's weights are needed, which packed sequences do not compute

    def copies(self, source_BS: Tensor) -> Tensor:
        """The number of each source token in the extended vocabulary, or −1."""
        source_size, target_size = self.sizes
        named_BS = self.copied_as_V[source_BS.clamp(max=source_size - 1).long()]
        named_BS = torch.where(
            named_BS == target_size, target_size + first_positions(source_BS), named_BS
        )
        return torch.where(source_BS < source_size, named_BS, source_BS - source_size)

    def encode(
        self, source_BS: Tensor, lengths_B: Tensor, context: CallContext = NO_CONTEXT
    ) -> EncoderOutput:
        known_BS = source_BS.masked_fill(source_BS >= self.sizes[0], UNKNOWN)
        memory = super().encode(known_BS, lengths_B, context)
        memory.copies_BS = self.copies(source_BS)
        return memory

    def known(self, target_B: Tensor) -> Tensor:
        """Target tokens as the decoder reads them."""
        return target_B.masked_fill(target_B >= self.sizes[1], UNKNOWN)

    def forward(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        context: CallContext = NO_CONTEXT,
    ) -> Tensor:
        return super().forward(source_BS, lengths_B, self.known(target_BT), context)

    def logits(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        context: CallContext = NO_CONTEXT,
    ) -> Tensor:
        """Teacher forcing: log-probabilities_BTX over the extended vocabulary."""
        S = source_BS.shape[1]
        source_size, target_size = self.sizes
        check_ids("source_BS", source_BS, source_size + target_size + S)
        check_lengths(source_BS, lengths_B)
        check_pairs(source_BS, target_BT)
        check_ids("target_BT", target_BT, target_size + S)
        memory = self.encode(source_BS, lengths_B, **context.keywords)
        return self._log_probs(*self._read(memory, target_BT), memory)

    def _read(self, memory: EncoderOutput, target_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Teacher forcing: features_BTD, and the weights_BTS of attention."""
        kept: list[Tensor] = []

        def keep(weights_BHTS: Tensor) -> None:
            kept.append(weights_BHTS.mean(dim=1))

        features_BTD = self.decoder(self.known(target_BT), memory, watch=keep)
        return features_BTD, torch.cat(kept, dim=1)

    def _log_probs(
        self,
        features_BTD: Tensor,
        weights_BTS: Tensor,
        memory: EncoderOutput,
        rows: slice = slice(None),
    ) -> Tensor:
        assert memory.copies_BS is not None
        features_BTD = features_BTD[rows]
        log_probs_BTX: Tensor = self.pointer(
            self.head(features_BTD), features_BTD, weights_BTS[rows], memory.copies_BS[rows]
        )
        return log_probs_BTX

    def loss(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
    ) -> Loss:
        """Cross-entropy of target_BT (BEGIN … END, padded) over the extended vocabulary, summed."""
        if self.training:
            source_BS, target_BT = self._with_hidden(source_BS, target_BT, twice=r_drop > 0)
        memory = self.encode(source_BS, lengths_B)
        read = self._read(memory, target_BT[:, :-1])
        return mixture_loss(
            lambda rows: self._log_probs(*read, memory, rows),
            target_BT[:, 1:],
            self.sizes[1],
            source_BS.shape[1],
            smoothing,
            r_drop,
            ignore=PAD,
        )

    def _with_hidden(
        self, source_BS: Tensor, target_BT: Tensor, *, twice: bool
    ) -> tuple[Tensor, Tensor]:
        """With tokens hidden at random; `twice`: the same ones in both halves of the batch."""
        draws = 2 if twice else 1
        rows = source_BS.shape[0] // draws
        hidden_BS = torch.rand(rows, source_BS.shape[1], device=source_BS.device) < HIDDEN
        return hide(
            source_BS, target_BT, self.copies(source_BS), hidden_BS.repeat(draws, 1), self.sizes
        )

    def begin(self, memory: EncoderOutput, context: CallContext = NO_CONTEXT) -> DecoderState:
        assert memory.copies_BS is not None
        state = self.decoder.start(memory)
        state.keeps_attention = True
        return CopyingState(state, memory.copies_BS)

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_BX of the token after tokens_B, over the extended vocabulary."""
        assert isinstance(state, CopyingState)
        features_BD, after = hooked_step(self.decoder, self.known(tokens_B), state.decoder)
        assert isinstance(after, KeptAttention)
        assert after.attention_BS is not None
        log_probs_B1X = self.pointer(
            self.head(features_BD)[:, None],
            features_BD[:, None],
            after.attention_BS[:, None],
            state.copies_BS,
        )
        return log_probs_B1X.squeeze(1), CopyingState(after, state.copies_BS)
