"""Language models: a decoder without an encoder, and its output head."""

from __future__ import annotations

import torch
from torch import Tensor

from transduce.data.batches.packing import Packed
from transduce.models.check_input import check_ids
from transduce.models.decoders import Decoder, DecoderState
from transduce.models.encoder_decoder import Head, hooked_step, output_head, packs_all
from transduce.models.trainable import TrainableNetwork
from transduce.nn.loss import Loss
from transduce.nn.masks import Segments


class LanguageModelNetwork(TrainableNetwork):
    """Says which token comes next, trained by `loss`; reads by `read`, writes by `step`."""

    def __init__(self, decoder: Decoder, head: Head) -> None:
        super().__init__()
        self.decoder = decoder
        self.head = head

    def forward(self, target_BT: Tensor) -> Tensor:
        """Teacher forcing: features_BTD that predict, at each step, the token after target_BT's.

        These are the decoder's last states, before the output head; for logits call `logits`.
        """
        features_BTD: Tensor = self.decoder(target_BT)
        return features_BTD

    def logits(self, target_BT: Tensor) -> Tensor:
        """Teacher forcing: logits_BTV of the token after each of target_BT's (from BEGIN on).

        Raises ModelError for ids that the vocabulary does not have.
        """
        check_ids("target_BT", target_BT, self.decoder.embedding.table.num_embeddings)
        logits_BTV: Tensor = self.head(self(target_BT))
        return logits_BTV

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
        return packs_all(self, longest)

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


def assemble_language_model(
    decoder: Decoder, width: int, tie_embeddings: str = "target", output_bias: bool = True
) -> LanguageModelNetwork:
    """A language model of a decoder that is alone; "none" gives the output embeddings of its own.

    Raises ValueError where the decoder expects a source.
    """
    if not decoder.alone:
        raise ValueError("The decoder of a language model attends to no source: use alone=True.")
    head = output_head(decoder.embedding, width, tie_embeddings, output_bias)
    return LanguageModelNetwork(decoder, head).built()
