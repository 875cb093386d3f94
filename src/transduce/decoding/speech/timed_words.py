"""What the times of an output's tokens tell: when its words were said, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from transduce.data.audio.corpus import FULL_SCALE, Wave
from transduce.data.audio.segment import parse_place
from transduce.data.audio.silence import HOP, sounding
from transduce.data.tokens.tokenizer import Tokens
from transduce.decoding.output import TimedWord
from transduce.decoding.speech.timing import TokenTiming, words_of
from transduce.decoding.speech.warnings import skipped_spans, visited_by_tokens
from transduce.models.speech import SpeechEncoderDecoder


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
