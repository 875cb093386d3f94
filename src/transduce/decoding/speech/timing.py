"""Word timestamps and confidence: forced alignment of outputs by CTC or attention, and what it
tells of them: speech without a transcript, attention that did not move along."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.data.audio.corpus import FULL_SCALE, Wave
from transduce.data.audio.read import parse_place
from transduce.data.audio.silence import HOP, sounding
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import PAD, SPACE, Tokens
from transduce.decoding.batch.decode import PLACES
from transduce.decoding.batch.token_budget import pack
from transduce.decoding.output import TimedWord
from transduce.decoding.score.forced import Rows
from transduce.decoding.speech.warnings import diagonality, skipped_spans, visited_by_tokens
from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.encoder_output import EncoderOutput
from transduce.models.lens import Lens
from transduce.models.speech import SpeechEncoderDecoder
from transduce.nn.ctc.alignment import align

ATTENTION_TO_AUDIO = ("decoder.*.cross_attention", "decoder.attention")  # names of modules
MIN_DIAGONALITY = 0.2  # of attention that moves along the audio
MIN_TOKENS = 10  # for a warning
MIN_CTC_PROBABILITY = 0.5  # mean over the tokens of a text that CTC supports
WHOLE_TOKENS = ("symbol", "word", "label")  # levels at which each token is a word or a phone


@dataclass(frozen=True)
class TokenTiming:
    """The probability and timing of each token of one output, by attention and CTC."""

    attention: list[float]
    """log p of each token by the decoder, END the last."""
    ctc: float | None
    """log p of the text by CTC; None without CTC."""
    first: list[int]
    """The encoder state at which each token begins, by CTC, else by attention where it is
    monotonic; empty where neither can tell."""
    last: list[int]
    ctc_probabilities: list[float]
    """The probability of each token by CTC, at those states."""
    diagonal: float | None = None
    """Diagonality of the most monotonic attention head; None without attention."""

    @property
    def is_lost(self) -> bool:
        """Whether attention did not move along the audio, and CTC does not support the text."""
        tokens = len(self.attention) - 1
        total = sum(self.ctc_probabilities)
        supported = bool(self.ctc_probabilities) and total >= MIN_CTC_PROBABILITY * tokens
        strayed = self.diagonal is not None and self.diagonal < MIN_DIAGONALITY
        return strayed and not supported and tokens >= MIN_TOKENS

    def confidence(self, start: int, end: int, share: float) -> float:
        """Confidence of tokens start … end − 1: the geometric mean of their probabilities, with
        weight `share` for CTC's."""
        by_attention = self.attention[start:end]
        if not by_attention:
            return 0.0
        logs = sum(by_attention) / len(by_attention)
        by_ctc = [math.log(max(one, 1e-9)) for one in self.ctc_probabilities[start:end]]
        if by_ctc:  # END has attention alone
            logs = (1 - share) * logs + share * sum(by_ctc) / len(by_ctc)
        return math.exp(logs)


def time_tokens(
    network: SpeechEncoderDecoder,
    sources: Rows,
    targets: Rows,
    *,
    ctc: bool,
    follows: bool = True,
    context: CallContext = NO_CONTEXT,
) -> list[TokenTiming]:
    """The token timing of each output.

    ctc: whether CTC has the tokens of the output. follows: whether the output follows the audio, so
    that attention gives times; a translation need not.
    """
    found: dict[int, TokenTiming] = {}
    for batch in _passes(network, sources, targets, context):
        log_probs_BTV = torch.log_softmax(network.head(batch.features_BTD).float(), dim=-1)
        log_probs = log_probs_BTV.gather(2, batch.wanted_BT[..., None].long())[..., 0].tolist()
        ctc_BSV = network.ctc_log_probs(batch.memory) if ctc else None
        for row, index in enumerate(batch.indices):
            heads = batch.heads(row)
            timing = TokenTiming(log_probs[row][: len(targets[index]) + 1], None, [], [], [])
            if heads is not None:
                weights_HTS, moved_H = heads
                timing = replace(timing, diagonal=float(moved_H.max()))
                if ctc_BSV is None and follows:
                    timing = _timed_by_attention(timing, weights_HTS[int(moved_H.argmax()), :-1])
            if ctc_BSV is not None:
                ctc_SV = ctc_BSV[row, : int(batch.memory.lengths_B[row])]
                timing = _timed_by_ctc(timing, ctc_SV, targets[index])
            found[index] = timing
    return [found[index] for index in range(len(sources))]


def attention_diagonality(
    network: SpeechEncoderDecoder, sources: Rows, targets: Rows, context: CallContext = NO_CONTEXT
) -> float | None:
    """Diagonality of attention: how monotonically it moves along the audio, at most 1.

    The mean over recordings, for the head with the highest; None without attention.
    """
    moved = []
    for batch in _passes(network, sources, targets, context):
        for row in range(len(batch.indices)):
            if (heads := batch.heads(row)) is not None:
                moved.append(heads[1])
    return float(torch.stack(moved).mean(dim=0).max()) if moved else None


@dataclass(frozen=True)
class _Pass:
    """A batch of recordings and texts after a teacher-forced pass."""

    indices: list[int]
    memory: EncoderOutput
    features_BTD: Tensor
    wanted_BT: Tensor
    """The tokens of the texts, END the last, padded."""
    lengths_B: Tensor
    layers: list[Tensor]
    """The weights_BHTS of attention to the audio, layer by layer."""

    def heads(self, row: int) -> tuple[Tensor, Tensor] | None:
        """The weights_HTS of a recording in all layers, and the diagonality of each head."""
        if not self.layers:
            return None
        T, S = int(self.lengths_B[row]), int(self.memory.lengths_B[row])
        weights_HTS = torch.cat([w_BHTS[row, :, :T, :S].float() for w_BHTS in self.layers])
        lengths = (torch.tensor([size], device=weights_HTS.device) for size in (T, S))
        return weights_HTS, diagonality(weights_HTS[None], *lengths)[0]


def _passes(
    network: SpeechEncoderDecoder, sources: Rows, targets: Rows, context: CallContext
) -> Iterator[_Pass]:
    device = network.head.bias.device
    sizes = [network.states_of(len(s)) + len(t) for s, t in zip(sources, targets, strict=True)]
    for indices in pack(range(len(sources)), sizes, PLACES // 8):
        batch = collate([sources[i] for i in indices], [targets[i] for i in indices]).to(device)
        assert batch.target_BT is not None
        assert batch.target_lengths_B is not None
        memory = network.encode(batch.source_BS, batch.source_lengths_B, **context.keywords)
        with Lens(network, *ATTENTION_TO_AUDIO) as lens:
            features_BTD = network.decoder(batch.target_BT[:, :-1], memory)
        wanted_BT, lengths_B = batch.target_BT[:, 1:], batch.target_lengths_B
        layers = list(lens.weights.values())
        yield _Pass(indices, memory, features_BTD, wanted_BT, lengths_B, layers)


def _timed_by_attention(timing: TokenTiming, weights_TS: Tensor) -> TokenTiming:
    """Token times by attention, if it is monotonic.

    A forced alignment as with CTC, where the probability of a token at a state is its attention
    weight, and that of the blank is uniform attention: so tokens follow each other in time.
    """
    if timing.diagonal is None or timing.diagonal < MIN_DIAGONALITY:
        return timing
    T, S = weights_TS.shape
    everywhere_1S = weights_TS.new_full((1, S), 1.0 / S)
    seen_SV = torch.cat([everywhere_1S, weights_TS]).clamp(min=1e-9).log().T.cpu()
    try:
        alignment = align(seen_SV, torch.arange(1, T + 1), 0)
    except ValueError:  # more tokens than states
        return timing
    return replace(timing, first=alignment.first_U.tolist(), last=alignment.last_U.tolist())


def _timed_by_ctc(timing: TokenTiming, ctc_SV: Tensor, target: Sequence[int]) -> TokenTiming:
    """Token times and probabilities by CTC forced alignment."""
    ctc_SV = ctc_SV.cpu()  # one small step per state: too small for a GPU
    tokens_U = torch.tensor(list(target), dtype=torch.int64)
    lengths = torch.tensor([len(ctc_SV)]), torch.tensor([len(target)])
    loss = F.ctc_loss(ctc_SV[:, None], tokens_U[None], *lengths, PAD, "sum")
    timing = replace(timing, ctc=-float(loss))
    try:
        alignment = align(ctc_SV, tokens_U, PAD)
    except ValueError:  # more tokens than states
        return timing
    return replace(
        timing,
        first=alignment.first_U.tolist(),
        last=alignment.last_U.tolist(),
        ctc_probabilities=alignment.confidence_U.tolist(),
    )


def words_of(tokens: Tokens, ids: Sequence[int]) -> list[tuple[int, int]]:
    """The start and end of each word among tokens; each phone is one word."""
    if tokens.level in WHOLE_TOKENS:
        return [(place, place + 1) for place in range(len(ids))]
    found: list[list[int]] = []
    apart = True
    for place, piece in enumerate(tokens.pieces(ids)):
        apart = apart or piece.startswith(SPACE)
        if piece.strip(SPACE):
            if apart:
                found.append([place, place])
            found[-1][1] = place + 1
            apart = piece.endswith(SPACE)
    return [(start, end) for start, end in found]


# ----------------------------------------------------------------------------- what the times tell


def timed_words(
    network: SpeechEncoderDecoder,
    tokens: Tokens,
    ids: Sequence[int],
    timing: TokenTiming,
    ctc_weight: float,
) -> list[TimedWord]:
    """The words of an output; none where the times of its tokens are not known."""
    if not timing.first:
        return []
    place = network.front.seconds_of
    return [
        TimedWord(
            tokens.decode(ids[start:end]).strip(),
            place(timing.first[start]),
            place(timing.last[end - 1] + 1),
            timing.confidence(start, end, ctc_weight),
        )
        for start, end in words_of(tokens, ids)
    ]


def skipped_warning(
    network: SpeechEncoderDecoder, source: str, wave: Wave, timing: TokenTiming
) -> str:
    """A warning for skipped speech, from the positions of the tokens in the audio."""
    if len(timing.first) < len(timing.attention) - 1:
        return ""
    file, start, _ = parse_place(source)
    loud = sounding(wave.astype(np.float32) / np.float32(FULL_SCALE), network.front.rate)
    states = network.states_of(len(wave))
    seconds = [network.front.seconds_of(state) for state in range(states + 1)]
    at = [min(int(second / HOP), len(loud) - 1) for second in seconds[:-1]]
    first_U, last_U = torch.tensor(timing.first), torch.tensor(timing.last)
    visited_S = visited_by_tokens(first_U, last_U, states)
    found = skipped_spans(visited_S, torch.from_numpy(loud[at]))
    spans = [f"{start + seconds[a]:.1f} to {start + seconds[b]:.1f} s" for a, b in found]
    return f"{file}: speech without a transcript at {', '.join(spans)}" if spans else ""


def attention_warning(source: str, timing: TokenTiming) -> str:
    """A warning for attention that is not monotonic: it did not move along the audio."""
    if timing.diagonal is None or not timing.is_lost:
        return ""
    return (
        f"{parse_place(source)[0]}: attention did not move along the audio (diagonality "
        f"{100 * timing.diagonal:.0f} of 100); the transcript may be wrong"
    )
