"""The network that hears: waveforms → features → encoder → decoder → head, and CTC beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from transduce import recipe
from transduce.data.audio.corpus import FULL_SCALE
from transduce.data.batches.batch import Batch
from transduce.data.tokens.tokenizer import PAD
from transduce.errors import ModelError
from transduce.models.decoders import Decoder
from transduce.models.encoder_decoder import (
    EncoderDecoder,
    Head,
    Vocabulary,
    build_front,
    build_positions,
    build_writer,
)
from transduce.models.encoders import Encoder, build_encoder
from transduce.models.memory import Memory, padding_mask
from transduce.nn.ctc.loss import ctc_loss
from transduce.nn.linear import linear
from transduce.nn.loss.cross_entropy import Loss
from transduce.nn.positions import Positioned
from transduce.nn.residual import dropped
from transduce.nn.speech.feature_norm import GlobalNorm, Statistics, normalise_utterances
from transduce.nn.speech.mel import LogMel
from transduce.nn.speech.spec_augment import SpecAugment
from transduce.nn.speech.speed_perturbation import perturb_speed
from transduce.nn.speech.subsampling import FACTOR, REACH, Subsampling


class SpeechFrontEnd(nn.Module):
    """Samples to vectors: log-mel features, normalised, in training augmented, four made one."""

    def __init__(
        self,
        settings: recipe.Audio,
        width: int,
        positions: Positioned | None,
        dropout: float,
        tags: int = 0,
    ) -> None:
        """tags: how many there are that a source may have, such as languages."""
        super().__init__()
        window, hop = settings.window, settings.hop
        self.rate = settings.sample_rate
        try:
            self.mel = LogMel(settings.sample_rate, settings.mel_bands, frame_ms=window, hop_ms=hop)
        except ValueError as error:
            raise ModelError(f"audio.mel_bands is {settings.mel_bands}: {error}") from None
        self.norm = GlobalNorm(settings.mel_bands) if settings.normalize == "global" else None
        self.speeds = settings.speed_perturbation
        augment = settings.spec_augment
        self.augment = None if augment is None else SpecAugment(**augment.model_dump())
        self.subsampling = Subsampling(settings.mel_bands, width, settings.channels)
        self.scale = math.sqrt(width)
        self.positions = positions
        self.dropout = dropout
        # A vector a tag, added to every frame's: as the dialect vectors of Li et al. 2018,
        # https://arxiv.org/abs/1712.01541.
        self.tags = nn.Linear(tags, width, bias=False) if tags else None
        if self.tags is not None:
            nn.init.normal_(self.tags.weight)
        self.all_have: tuple[int, ...] = ()
        """The tags of every source, where none are given with a batch: see `tagged`."""

    @contextmanager
    def tagged(self, tags: Sequence[int]) -> Iterator[None]:
        """Within, every source that comes without tags of its own has these."""
        before, self.all_have = self.all_have, tuple(tags)
        try:
            yield
        finally:
            self.all_have = before

    def forward(
        self, source_BW: Tensor, lengths_B: Tensor, tags_BG: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Samples of 16 bits [B, W] to vectors [B, S, D] and how many these are, on the CPU.

        lengths_B stays on the CPU, so that nothing waits for the device to learn it. tags_BG: 1
        where a source has a tag, else 0.
        """
        samples_BW = source_BW.to(self.mel.window_A.dtype) / FULL_SCALE
        if self.training and self.speeds:
            samples_BW, lengths_B = perturb_speed(samples_BW, lengths_B, speeds=self.speeds)
        mel_BTM, there_B = self.mel(samples_BW, lengths_B.to(samples_BW.device, non_blocking=True))
        if self.norm is None:
            mel_BTM = normalise_utterances(mel_BTM, there_B)
        else:
            mel_BTM = self.norm(mel_BTM, there_B)
        if self.augment is not None:
            mel_BTM = self.augment(mel_BTM, there_B)
        x_BSD, _ = self.subsampling(mel_BTM, there_B)
        states_B = self._states(lengths_B)
        # Of half precision under autocast; the stream that all blocks add to is not.
        x_BSD = x_BSD[:, : int(states_B.max())].to(mel_BTM.dtype) * self.scale
        if self.tags is not None:
            if tags_BG is None:
                tags_BG = x_BSD.new_zeros(1, self.tags.in_features)
                tags_BG[:, list(self.all_have)] = 1
            x_BSD = x_BSD + self.tags(tags_BG.to(x_BSD.dtype))[:, None]
        if self.positions is not None:
            x_BSD = self.positions(x_BSD)
        return dropped(x_BSD, self.dropout, self.training), states_B

    def _states(self, lengths_B: Tensor) -> Tensor:
        """An audio too short for one vector has one, of what there is and of zeros."""
        return self.subsampling.count_frames(self.mel.count_frames(lengths_B)).clamp(min=1)

    def states_of(self, samples: int) -> int:
        """How many vectors so many samples become."""
        return int(self._states(torch.tensor([samples]))[0])

    def seconds_of(self, state: float) -> float:
        """Where a vector begins: each has an even share of time, amid what it sees."""
        step = FACTOR * self.mel.hop
        seen = (REACH - 1) * self.mel.hop + self.mel.frame
        return (state * step + (seen - step) / 2) / self.rate

    @torch.no_grad()
    def note(self, statistics: Statistics, source_BW: Tensor, lengths_B: Tensor) -> None:
        """Add a batch to the statistics by which features are to be normalised."""
        samples_BW = source_BW.to(self.mel.window_A.dtype) / FULL_SCALE
        statistics.update(*self.mel(samples_BW, lengths_B.to(samples_BW.device)))


def encode_audio(
    front: SpeechFrontEnd,
    encoder: Encoder,
    source_BS: Tensor,
    lengths_B: Tensor,
    tags_BG: Tensor | None = None,
) -> Memory:
    """What an encoder makes of a batch of sounds; lengths_B is on the CPU."""
    x_BSD, lengths_B = front(source_BS, lengths_B, tags_BG)
    mask = padding_mask(lengths_B, x_BSD.shape[1], x_BSD.device)
    memory: Memory = encoder(x_BSD, lengths_B, mask)
    return memory


class SpeechEncoderDecoder(EncoderDecoder):
    """An encoder-decoder that hears; with CTC, its encoder alone says too what is said.

    Joint training as in Watanabe et al. 2017, https://arxiv.org/abs/1609.06773: the loss is
    (1 − w) of attention's and w of CTC's. PAD is CTC's blank.
    """

    front: SpeechFrontEnd  # type: ignore[assignment]

    def __init__(
        self,
        front: SpeechFrontEnd,
        encoder: Encoder,
        decoder: Decoder,
        head: Head,
        ctc: nn.Linear | None,
        ctc_weight: float,
    ) -> None:
        super().__init__(front, encoder, decoder, head)  # type: ignore[arg-type]
        self.ctc = ctc
        self.ctc_weight = ctc_weight

    def encode(self, source_BS: Tensor, lengths_B: Tensor, tags_BG: Tensor | None = None) -> Memory:
        """The memory of a batch of sounds; lengths_B is on the CPU."""
        return encode_audio(self.front, self.encoder, source_BS, lengths_B, tags_BG)

    def states_of(self, length: int) -> int:
        return self.front.states_of(length)

    def packs(self, longest: int) -> bool:
        return False

    def ctc_logits(self, memory: Memory) -> Tensor:
        """What each state may say [B, S, V], over the tokens of what is said."""
        assert self.ctc is not None
        return linear(memory.states_BSD, self.ctc.weight, self.ctc.bias)

    def ctc_log_probs(self, memory: Memory) -> Tensor:
        return torch.log_softmax(self.ctc_logits(memory).float(), dim=-1)

    def batch_loss(self, batch: Batch, smoothing: float = 0.0, r_drop: float = 0.0) -> Loss:
        assert batch.target_BT is not None
        memory = self.encode(batch.source_BS, batch.source_lengths_B, batch.tags_BG)
        features_BTD = self.decoder(batch.target_BT[:, :-1], memory)
        loss = self.head.loss(features_BTD, batch.target_BT[:, 1:], smoothing, r_drop)
        if self.ctc is None:
            return loss
        assert batch.transcript_BT is not None
        assert batch.transcript_lengths_B is not None
        logits_BSV = self.ctc_logits(memory)
        heard = ctc_loss(
            logits_BSV, memory.lengths_B, batch.transcript_BT, batch.transcript_lengths_B, PAD
        )
        share = self.ctc_weight
        total = heard.total / 2 if r_drop else heard.total  # everything is heard twice
        return loss._replace(total=(1 - share) * loss.total + share * total)


def build_audio_front(settings: recipe.Model, audio: recipe.Audio, tags: int) -> SpeechFrontEnd:
    assert settings.encoder is not None  # the recipe holds this
    width = settings.width
    positions = build_positions(settings.encoder, width)
    beside = positions is not None and positions.combine == "concatenate"
    inner = width // 2 if beside else width
    return SpeechFrontEnd(audio, inner, positions, settings.dropout, tags)


def build_audio(
    settings: recipe.Model, audio: recipe.Audio, vocabulary: Vocabulary, tags: int = 0
) -> SpeechEncoderDecoder:
    """A network of the recipe's shape; the source's vocabulary is that of what is said."""
    width, dropout = settings.width, settings.dropout
    assert settings.encoder is not None  # the recipe holds this
    assert settings.decoder is not None
    front = build_audio_front(settings, audio, tags)
    encoder = build_encoder(settings.encoder, width, dropout)
    target_front = build_front(vocabulary.target, width, settings.decoder, dropout)
    ctc = nn.Linear(width, vocabulary.source) if settings.ctc_weight else None
    writer = build_writer(settings, target_front)
    return SpeechEncoderDecoder(front, encoder, *writer, ctc, settings.ctc_weight).built()
