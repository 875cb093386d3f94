"""Networks of speech: waveform → log-mel features → encoder → decoder → output head, and CTC; or
→ encoder → pooling → output head, which gives a label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from transduce.data.audio.corpus import FULL_SCALE
from transduce.data.batches.batch import Batch
from transduce.data.tokens.tokenizer import PAD
from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.decoders import Decoder
from transduce.models.encoder_decoder import EncoderDecoder, Head
from transduce.models.encoder_output import EncoderOutput, padding_mask
from transduce.models.encoders import Encoder
from transduce.models.label_network import AttentionPool, LabelNetwork, LastPool, MeanPool
from transduce.models.trainable import NO_SPEECH_LOSSES, SpeechLosses, TrainableNetwork
from transduce.nn.attention.guided import guided_attention_loss
from transduce.nn.ctc.loss import consistency_loss, ctc_loss
from transduce.nn.linear import linear
from transduce.nn.loss import Loss
from transduce.nn.masks import readable
from transduce.nn.positions import ExplicitPositions, Learned, Positioned
from transduce.nn.residual import dropped
from transduce.nn.speech.background_noise import BackgroundNoise
from transduce.nn.speech.feature_norm import GlobalNorm, Statistics, normalise_utterances
from transduce.nn.speech.mel import LogMel
from transduce.nn.speech.spec_augment import SpecAugment
from transduce.nn.speech.speed_perturbation import perturb_speed
from transduce.nn.speech.subsampling import Subsampling, reach_of
from transduce.nn.speech.whisper import WhisperConvolutions, WhisperMel


class SpeechFrontend(nn.Module):
    """Samples to vectors: log-mel features, normalised, in training augmented, subsampled by 4 or
    2; Whisper's by 2 and not normalised."""

    def __init__(
        self,
        mel: LogMel | WhisperMel,
        width: int,
        positions: Positioned | None = None,
        *,
        dropout: float = 0.0,
        normalize: str = "utterance",
        channels: int | None = None,
        subsampling: int = 4,
        speed_perturbation: Sequence[float] = (),
        background_noise: BackgroundNoise | None = None,
        spec_augment: SpecAugment | None = None,
        tags: int = 0,
        scaled: bool = True,
    ) -> None:
        """normalize: by the mean and variance of each "utterance", or "global" ones; not for
        Whisper's features.

        channels: of the subsampling's convolutions; None: the width. subsampling: frames for each
        vector, 2, 4 or 8; Whisper's convolutions have 2. speed_perturbation: speeds of which one is
        drawn for each waveform in training. tags: how many there are that a
        source may have, such as languages. scaled: vectors are multiplied by √width, as embeddings
        are.
        """
        super().__init__()
        if normalize not in ("utterance", "global"):
            raise ValueError(f'normalize must be "utterance" or "global", not "{normalize}".')
        self.rate = mel.rate
        self.mel = mel
        self.norm = GlobalNorm(mel.bands) if normalize == "global" else None
        self.speeds = speed_perturbation
        self.noise = background_noise
        self.augment = spec_augment
        self.subsampling: Subsampling | WhisperConvolutions
        if isinstance(mel, WhisperMel):
            self.subsampling = WhisperConvolutions(mel.bands, width)
        else:
            self.subsampling = Subsampling(mel.bands, width, channels, subsampling)
        self.scale = math.sqrt(width) if scaled else 1.0
        self.positions = positions
        self.dropout = dropout
        # A vector a tag, added to every frame's: as the dialect vectors of Li et al. 2018,
        # https://arxiv.org/abs/1712.01541.
        self.tags = nn.Linear(tags, width, bias=False) if tags else None
        if self.tags is not None:
            nn.init.normal_(self.tags.weight)

    def forward(
        self,
        source_BW: Tensor,
        lengths_B: Tensor,
        tags_BG: Tensor | None = None,
        positions: ExplicitPositions | None = None,
        *,
        two_views: bool = False,
        time_mask_ratio: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Samples [B, W] to vectors [B, S, D] and how many these are, where lengths_B is.

        Samples are integers of 16 bits, or floating-point numbers within ±1. lengths_B stays on
        the CPU, so that nothing waits for the device to learn it; on the device nothing reads it,
        and S is what W samples become. tags_BG: 1 where a source has a
        tag, else 0; one row for all sources, or one for each; None: they have none. positions: the
        positions of the vectors, where the samples are parts of longer sources. two_views: the
        second half of the rows is the first again (CR-CTC): both have the same speed and noise, and
        so the same frames, but other masks, of time `time_mask_ratio` times as many.
        """
        if two_views:
            rows = len(source_BW) // 2
            source_BW, lengths_B = source_BW[:rows], lengths_B[:rows]
        samples_BW = self._scaled(source_BW)
        if self.training and self.speeds:
            samples_BW, lengths_B = perturb_speed(samples_BW, lengths_B, speeds=self.speeds)
        if self.noise is not None:
            samples_BW, lengths_B = self.noise(samples_BW, lengths_B)
        mel_BTM, there_B = self.mel(samples_BW, lengths_B.to(samples_BW.device, non_blocking=True))
        if self.norm is not None:
            mel_BTM = self.norm(mel_BTM, there_B)
        elif isinstance(self.mel, LogMel):
            mel_BTM = normalise_utterances(mel_BTM, there_B)
        # Features are of float32, also in a network that was converted to half precision.
        mel_BTM = mel_BTM.to(next(self.subsampling.parameters()).dtype)
        if two_views:
            mel_BTM, there_B = mel_BTM.repeat(2, 1, 1), there_B.repeat(2)
            lengths_B = lengths_B.repeat(2)
        if self.augment is not None:
            mel_BTM = self.augment(mel_BTM, there_B, time_mask_ratio=time_mask_ratio)
        x_BSD, _ = self.subsampling(mel_BTM, there_B)
        states_B = self._states(lengths_B)
        if readable(states_B):
            x_BSD = x_BSD[:, : int(states_B.max())]
        # Of half precision under autocast; the stream that all blocks add to is not.
        x_BSD = x_BSD.to(mel_BTM.dtype) * self.scale
        if self.tags is not None:
            if tags_BG is None:
                tags_BG = x_BSD.new_zeros(1, self.tags.in_features)
            x_BSD = x_BSD + self.tags(tags_BG.to(x_BSD.dtype))[:, None]
        if self.positions is not None:
            x_BSD = self.positions(x_BSD, 0 if positions is None else positions)
        return dropped(x_BSD, self.dropout, self.training), states_B

    def tags_of(self, context: CallContext) -> Tensor | None:
        """The tags_BG of a call, one row for all of its sources; None where they have no tags."""
        if self.tags is None or not context.tags:
            return None
        tags_1G = self.tags.weight.new_zeros(1, self.tags.in_features)
        tags_1G[:, list(context.tags)] = 1
        return tags_1G

    def _scaled(self, source_BW: Tensor) -> Tensor:
        samples_BW = source_BW.to(self.mel.window_A.dtype)
        return samples_BW if source_BW.is_floating_point() else samples_BW / FULL_SCALE

    def _states(self, lengths_B: Tensor) -> Tensor:
        """An audio too short for one vector has one, of what there is and of zeros."""
        return self.subsampling.count_frames(self.mel.count_frames(lengths_B)).clamp(min=1)

    @property
    def any_length(self) -> bool:
        """Whether longer audio has positions too, or all audio is made of one length."""
        fixed = isinstance(self.mel, WhisperMel) and self.mel.samples is not None
        learned = self.positions is not None and isinstance(self.positions.positions, Learned)
        return fixed or not learned

    def states_of(self, samples: int) -> int:
        """How many vectors so many samples become."""
        if isinstance(self.mel, WhisperMel) and self.mel.samples is not None:
            return self._states_of_padded
        return int(self._states(torch.tensor([samples]))[0])

    @cached_property
    def _states_of_padded(self) -> int:
        return int(self._states(torch.ones(1, dtype=torch.int64))[0])

    def seconds_of(self, state: float) -> float:
        """Where a vector begins: each has an even share of time, amid what it sees."""
        step = self.subsampling.factor * self.mel.hop
        if self.subsampling.centred:
            return state * step / self.rate
        seen = (reach_of(self.subsampling.factor) - 1) * self.mel.hop + self.mel.frame
        return (state * step + (seen - step) / 2) / self.rate

    @torch.no_grad()
    def note(self, statistics: Statistics, source_BW: Tensor, lengths_B: Tensor) -> None:
        """Add a batch to the statistics by which features are to be normalised."""
        samples_BW = self._scaled(source_BW)
        statistics.update(*self.mel(samples_BW, lengths_B.to(samples_BW.device)))


def encode_audio(
    front: SpeechFrontend,
    encoder: Encoder,
    source_BS: Tensor,
    lengths_B: Tensor,
    context: CallContext = NO_CONTEXT,
    tags_BG: Tensor | None = None,
    losses: SpeechLosses = NO_SPEECH_LOSSES,
) -> EncoderOutput:
    """What an encoder makes of a batch of waveforms; lengths_B is on the CPU.

    tags_BG: the tags of each source, where they are not those of the context. losses: with CR-CTC,
    the batch is two views of the same waveforms.
    """
    tags_BG = front.tags_of(context) if tags_BG is None else tags_BG
    views = {"two_views": True, "time_mask_ratio": losses.time_mask_ratio} if losses.cr_ctc else {}
    x_BSD, lengths_B = front(source_BS, lengths_B, tags_BG, **views)
    mask = padding_mask(lengths_B, x_BSD.shape[1], x_BSD.device)
    memory: EncoderOutput = encoder(x_BSD, lengths_B, mask, **context.of_encoder)
    return memory


class SpeechNetwork(TrainableNetwork):
    """What networks that write what they hear share: the encoder of waveforms, and CTC, by which
    the encoder alone predicts the transcript. PAD is CTC's blank."""

    front: SpeechFrontend
    encoder: Encoder
    ctc: nn.Linear | None
    """None: without CTC."""
    ctc_weight: float

    def encode(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        context: CallContext = NO_CONTEXT,
        tags_BG: Tensor | None = None,
        losses: SpeechLosses = NO_SPEECH_LOSSES,
    ) -> EncoderOutput:
        """The memory of a batch of waveforms; see `encode_audio`."""
        parts = (self.front, self.encoder, source_BS, lengths_B)
        return encode_audio(*parts, context, tags_BG, losses)

    def states_of(self, length: int) -> int:
        return self.front.states_of(length)

    def packs(self, longest: int) -> bool:
        return False

    def ctc_logits(self, memory: EncoderOutput) -> Tensor:
        """CTC's logits_BSV of each state, over the transcript's vocabulary."""
        assert self.ctc is not None
        return linear(memory.states_BSD, self.ctc.weight, self.ctc.bias)

    def ctc_log_probs(self, memory: EncoderOutput) -> Tensor:
        return self.ctc_log_probs_of(memory.states_BSD)

    def ctc_log_probs_of(self, states_SD: Tensor) -> Tensor:
        """CTC's log-probabilities of states of any shape [..., D]."""
        assert self.ctc is not None
        logits_SV = linear(states_SD, self.ctc.weight, self.ctc.bias)
        return torch.log_softmax(logits_SV.float(), dim=-1)


class SpeechEncoderDecoder(SpeechNetwork, EncoderDecoder):
    """An encoder-decoder over waveforms; with CTC, its encoder alone predicts the transcript too.

    Joint training as in Watanabe et al. 2017, https://arxiv.org/abs/1609.06773: the loss is
    (1 − w) of attention's and w of CTC's.
    """

    front: SpeechFrontend  # type: ignore[assignment]

    def __init__(
        self,
        front: SpeechFrontend,
        encoder: Encoder,
        decoder: Decoder,
        head: Head,
        ctc: nn.Linear | None,
        ctc_weight: float,
    ) -> None:
        super().__init__(front, encoder, decoder, head)  # type: ignore[arg-type]
        self.ctc = ctc
        self.ctc_weight = ctc_weight
        self.unscored: tuple[int, int] | None = None
        """Tokens from … to (not included) that are given, as a prompt is, and so not learned."""

    def loss(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
        *,
        transcript_BT: Tensor | None = None,
        transcript_lengths_B: Tensor | None = None,
        tags_BG: Tensor | None = None,
        losses: SpeechLosses = NO_SPEECH_LOSSES,
    ) -> Loss:
        """(1 − w) of the cross-entropy of target_BT (BEGIN … END, padded) and w of CTC's loss.

        transcript_BT, for CTC, has neither BEGIN nor END; without one it is the target. Raises
        ValueError where the target cannot be it, as their vocabularies differ. With CR-CTC the
        batch holds everything twice, as with R-Drop, and CTC's loss is that of Yao et al. 2024:
        the mean of both views, and `losses.cr_ctc` of their consistency. Guided attention, of the
        decoder's last layer, is added to the cross-entropy.
        """
        memory = self.encode(source_BS, lengths_B, tags_BG=tags_BG, losses=losses)
        seen: list[Tensor] = []  # attention weights, of all steps or of one after the other
        watched = {"watch": seen.append} if losses.guided_attention else {}
        features_BTD = self.decoder(target_BT[:, :-1], memory, **watched)
        wanted_BT = target_BT[:, 1:]
        if self.unscored is not None:
            first, end = self.unscored
            wanted_BT = wanted_BT.masked_fill((wanted_BT >= first) & (wanted_BT < end), PAD)
        loss = self.head.loss(features_BTD, wanted_BT, smoothing, r_drop)
        twice = bool(r_drop or losses.cr_ctc)  # the batch is there twice
        if twice and not r_drop:  # R-Drop has taken the mean of both
            loss = Loss(*(each / 2 for each in loss))
        if losses.guided_attention:
            counted_BT = wanted_BT != PAD
            guided = guided_attention_loss(torch.cat(seen, dim=2), counted_BT, memory.lengths_B)
            guided = losses.guided_attention * (guided / 2 if twice else guided)
            loss = loss._replace(total=loss.total + guided)
        if self.ctc is None:
            return loss
        if transcript_BT is None or transcript_lengths_B is None:
            if self.ctc.out_features != len(self.head.bias):
                raise ValueError(
                    f"CTC is over a transcript's vocabulary of {self.ctc.out_features} tokens, the "
                    f"target's has {len(self.head.bias)}: give transcript_BT and "
                    f"transcript_lengths_B too."
                )
            transcript_BT = target_BT[:, 1:]
            transcript_lengths_B = (transcript_BT != PAD).sum(dim=1) - 1  # END is not said
        logits_BSV = self.ctc_logits(memory)
        # Every source has a state, also the empty ones that fill up a batch: they say nothing.
        states_B = memory.lengths_B.where(lengths_B > 0, 0)
        ctc = ctc_loss(logits_BSV, states_B, transcript_BT, transcript_lengths_B, PAD)
        share = self.ctc_weight
        total = ctc.total / 2 if twice else ctc.total
        if losses.cr_ctc:
            total = total + losses.cr_ctc * consistency_loss(logits_BSV, states_B)
        return loss._replace(total=(1 - share) * loss.total + share * total)

    def batch_loss(
        self,
        batch: Batch,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
        losses: SpeechLosses = NO_SPEECH_LOSSES,
    ) -> Loss:
        assert batch.target_BT is not None
        assert self.ctc is None or batch.transcript_BT is not None
        return self.loss(
            batch.source_BS,
            batch.source_lengths_B,
            batch.target_BT,
            smoothing,
            r_drop,
            transcript_BT=batch.transcript_BT,
            transcript_lengths_B=batch.transcript_lengths_B,
            tags_BG=batch.tags_BG,
            losses=losses,
        )


# ------------------------------------------------------------------------------------------ labels


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

    def batch_loss(
        self,
        batch: Batch,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
        losses: SpeechLosses = NO_SPEECH_LOSSES,
    ) -> Loss:
        assert batch.target_BT is not None
        features_B1D = self(batch.source_BS, batch.source_lengths_B, tags_BG=batch.tags_BG)
        return self.loss_of(features_B1D, batch.target_BT, smoothing, r_drop)

    def states_of(self, length: int) -> int:
        return self.front.states_of(length)

    def packs(self, longest: int) -> bool:
        return False
