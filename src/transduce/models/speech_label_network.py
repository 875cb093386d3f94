"""Classifiers of audio: waveform → log-mel features → encoder → pooling → output head."""

from __future__ import annotations

from torch import Tensor

from transduce.data.batches.batch import Batch
from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.encoder_decoder import Head
from transduce.models.encoders import Encoder
from transduce.models.label_network import LabelNetwork
from transduce.models.pooling import AttentionPool, LastPool, MeanPool
from transduce.models.speech import SpeechFrontend, encode_audio
from transduce.nn.loss import Loss


class SpeechLabelNetwork(LabelNetwork):
    """A `LabelNetwork` whose sources are waveforms; it always has a pool."""

    front: SpeechFrontend  # type: ignore[assignment]
    pool: MeanPool | AttentionPool | LastPool

    def __init__(
        self,
        front: SpeechFrontend,
        encoder: Encoder,
        pool: MeanPool | AttentionPool | LastPool,
        head: Head,
    ) -> None:
        super().__init__(front, encoder, pool, head)  # type: ignore[arg-type]

    def forward(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        context: CallContext = NO_CONTEXT,
        tags_BG: Tensor | None = None,
    ) -> Tensor:
        """Features [B, 1, D] that tell the label; lengths_B is on the CPU. tags_BG: the tags of
        each source, where they are not those of the context."""
        memory = encode_audio(self.front, self.encoder, source_BS, lengths_B, context, tags_BG)
        pooled_BD: Tensor = self.pool(memory)
        return pooled_BD[:, None]

    def batch_loss(self, batch: Batch, smoothing: float = 0.0, r_drop: float = 0.0) -> Loss:
        assert batch.target_BT is not None
        features_B1D = self(batch.source_BS, batch.source_lengths_B, tags_BG=batch.tags_BG)
        return self.loss_of(features_B1D, batch.target_BT, smoothing, r_drop)

    def states_of(self, length: int) -> int:
        return self.front.states_of(length)

    def packs(self, longest: int) -> bool:
        return False
