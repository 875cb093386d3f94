"""The Conformer for speech: Gulati et al. 2020, https://arxiv.org/abs/2005.08100."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from transduce.models.architectures.checks import (
    check_choice,
    check_heads,
    check_odd,
    check_shares,
    check_sizes,
    check_vocabularies,
    check_width,
)
from transduce.models.architectures.transformer import Shape
from transduce.models.encoder_decoder import output_head
from transduce.models.encoders import ConformerEncoder
from transduce.models.speech import SpeechEncoderDecoder, SpeechFrontEnd
from transduce.nn.positions import build_positions
from transduce.nn.speech.mel import LogMel
from transduce.nn.speech.spec_augment import SpecAugment


def Conformer(
    vocabulary: int,
    *,
    width: int = 256,
    heads: int = 4,
    layers: int = 12,
    feed_forward: int = 1024,
    kernel: int = 31,
    positions: str = "rotary",
    decoder_layers: int = 6,
    decoder_heads: int | None = None,
    decoder_feed_forward: int | None = None,
    ctc_weight: float = 0.3,
    transcript_vocabulary: int | None = None,
    tie_embeddings: bool = True,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    sample_rate: int = 16_000,
    mel_bands: int = 80,
    window_ms: float = 25.0,
    hop_ms: float = 10.0,
    normalize: str = "utterance",
    channels: int | None = None,
    speed_perturbation: Sequence[float] = (),
    spec_augment: bool | SpecAugment = True,
) -> SpeechEncoderDecoder:
    """Speech to tokens: a Conformer encoder, a Transformer decoder, and CTC, with random weights.

    A source is samples_BW of one channel, 16-bit integers or floating-point numbers within ±1;
    lengths_B, in samples, stays on the CPU. A target is BEGIN … END, padded with PAD.

        network = Conformer(32, width=144, layers=4, decoder_layers=1)
        network.loss(samples_BW, lengths_B, target_BT)             # sums over tokens, for training
        network.logits(samples_BW, lengths_B, target_BT[:, :-1])   # [B, T - 1, V]
        state = network.start(samples_BW, lengths_B)               # then token by token:
        log_probabilities_BV, state = network.step(tokens_B, state)
        network.ctc_log_probs(network.encode(samples_BW, lengths_B))           # [B, S, V]

    Args:
        vocabulary: number of target tokens, the four special ones included.
        width: width of the states.
        heads: attention heads of each encoder layer.
        layers: layers of the encoder.
        feed_forward: width of the hidden layer of the encoder's feed-forward networks.
        kernel: number of states that a convolution sees; odd. A state is four hops, 40 ms.
        positions: "rotary", the paper's "relative", "sinusoidal" or "none".
        decoder_layers: layers of the decoder.
        decoder_heads: heads of the decoder; None: as in the encoder.
        decoder_feed_forward: feed-forward width of the decoder; None: as in the encoder.
        ctc_weight: w in the loss (1 − w) decoder + w CTC (Watanabe et al. 2017,
            https://arxiv.org/abs/1609.06773); 0: no CTC.
        transcript_vocabulary: CTC's vocabulary, if the target is not the transcript, as in speech
            translation.
        tie_embeddings: whether the decoder's input and output share one table.
        dropout: of the output of each sublayer.
        attention_dropout: of the attention weights.
        activation_dropout: of the hidden layer of the feed-forward networks.
        sample_rate: samples per second.
        mel_bands: number of mel bands.
        window_ms: length of a frame in milliseconds.
        hop_ms: time from one frame to the next in milliseconds.
        normalize: features by the mean and variance of each "utterance", or by "global" ones,
            which `network.front.norm` holds.
        channels: of the convolutions that subsample by four; None: as many as the width.
        speed_perturbation: speeds drawn in training, such as (0.9, 1.0, 1.1).
        spec_augment: SpecAugment (Park et al. 2019) with its default numbers, your own, or False.

    Raises:
        ValueError: for numbers that do not fit together.
    """
    transcript = vocabulary if transcript_vocabulary is None else transcript_vocabulary
    check_vocabularies(vocabulary=vocabulary, transcript_vocabulary=transcript)
    check_width(width)
    decoder_hidden = feed_forward if decoder_feed_forward is None else decoder_feed_forward
    check_sizes(
        layers=layers,
        feed_forward=feed_forward,
        decoder_layers=decoder_layers,
        decoder_feed_forward=decoder_hidden,
        sample_rate=sample_rate,
    )
    check_odd("kernel", kernel)
    check_choice("positions", positions, ("rotary", "relative", "sinusoidal", "none"))
    check_heads(width, heads, positions)
    check_shares(ctc_weight=ctc_weight)
    _check_frames(sample_rate, window_ms, hop_ms)
    if any(speed <= 0 for speed in speed_perturbation):
        raise ValueError(f"speed_perturbation must be speeds above 0, not {speed_perturbation}.")
    decoder_heads = heads if decoder_heads is None else decoder_heads
    check_heads(width, decoder_heads, "sinusoidal", "decoder_heads")
    shape = Shape(
        width=width,
        heads=decoder_heads,
        layers=decoder_layers,
        feed_forward=decoder_hidden,
        dropout=dropout,
        attention_dropout=attention_dropout,
        activation_dropout=activation_dropout,
    )
    augment = SpecAugment() if spec_augment is True else spec_augment or None
    front = SpeechFrontEnd(
        LogMel(sample_rate, mel_bands, frame_ms=window_ms, hop_ms=hop_ms),
        width,
        build_positions(positions, width),
        dropout=dropout,
        normalize=normalize,
        channels=channels,
        speed_perturbation=speed_perturbation,
        spec_augment=augment,
    )
    encoder = ConformerEncoder(
        width,
        heads,
        feed_forward,
        layers,
        kernel=kernel,
        positions=positions,
        dropout=dropout,
        attention_dropout=attention_dropout,
        activation_dropout=activation_dropout,
    )
    embedding = shape.embedding(vocabulary)
    ctc = nn.Linear(width, transcript) if ctc_weight else None
    decoder = shape.decoder(embedding, decoder_layers)
    head = output_head(embedding, width, "target" if tie_embeddings else "none")
    return SpeechEncoderDecoder(front, encoder, decoder, head, ctc, ctc_weight).built()


def _check_frames(sample_rate: int, window_ms: float, hop_ms: float) -> None:
    if not 0 < hop_ms <= window_ms:
        raise ValueError(
            f"hop_ms is {hop_ms}; it must be above 0 and at most window_ms, {window_ms}, or frames "
            f"would leave gaps."
        )
    if sample_rate * hop_ms < 1000:
        raise ValueError(f"hop_ms is {hop_ms}, which is less than a sample; raise it.")
