"""The network that gives a recording one label: waveform → features → encoder → pool → head."""

from __future__ import annotations

from torch import Tensor

from transduce import recipe
from transduce.data.batches import Batch
from transduce.models.encoders import Encoder, build_encoder
from transduce.models.labeller import Labeller
from transduce.models.network import Head
from transduce.models.pools import AttentionPool, AveragePool, LastPool, build_pool
from transduce.models.sound import SoundFront, build_sound_front, encode_sound
from transduce.nn.losses import Loss


class SoundLabeller(Labeller):
    """A `Labeller` whose sources are samples of 16 bits; it always has a pool."""

    front: SoundFront  # type: ignore[assignment]
    pool: AveragePool | AttentionPool | LastPool

    def __init__(
        self,
        front: SoundFront,
        encoder: Encoder,
        pool: AveragePool | AttentionPool | LastPool,
        head: Head,
    ) -> None:
        super().__init__(front, encoder, pool, head)  # type: ignore[arg-type]

    def forward(
        self, source_BS: Tensor, lengths_B: Tensor, tags_BG: Tensor | None = None
    ) -> Tensor:
        """Features [B, 1, D] that tell the label; lengths_B is on the CPU."""
        memory = encode_sound(self.front, self.encoder, source_BS, lengths_B, tags_BG)
        pooled_BD: Tensor = self.pool(memory)
        return pooled_BD[:, None]

    def batch_loss(self, batch: Batch, smoothing: float = 0.0, agreement: float = 0.0) -> Loss:
        assert batch.target_BT is not None
        features_B1D = self(batch.source_BS, batch.source_lengths_B, batch.tags_BG)
        return self.loss_of(features_B1D, batch.target_BT, smoothing, agreement)

    def states_of(self, length: int) -> int:
        return self.front.states_of(length)

    def packs(self, longest: int) -> bool:
        return False


def build_sound_labeller(
    settings: recipe.Model, sound: recipe.Sound, labels: int, tags: int = 0
) -> SoundLabeller:
    """A network of the recipe's shape."""
    assert settings.encoder is not None  # the recipe holds this
    width = settings.width
    front = build_sound_front(settings, sound, tags)
    encoder = build_encoder(settings.encoder, width, settings.dropout)
    pool = build_pool(settings.pool, width)
    return SoundLabeller(front, encoder, pool, Head(pool.wider * width, labels, None))
