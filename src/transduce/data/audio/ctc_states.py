"""Encoder states: how many a recording has, and how many CTC needs for its transcript.

CTC has an encoder state for each token, and a blank between two equal ones; a recording with fewer
states has no CTC loss.

    N recordings
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transduce.nn.speech.subsampling import count_states
from transduce.recipe import Audio

SMALLEST = 2  # frames per encoder state


def states_of(
    samples_N: NDArray[np.int64], audio: Audio, subsampling: int | None = None
) -> NDArray[np.int64]:
    """Encoder states of recordings of so many samples, at least one.

    subsampling: frames per state, where it is not that of the recipe.
    """
    if audio.features == "whisper":
        padded_N = np.maximum(samples_N, round((audio.pad_to or 0.0) * audio.sample_rate))
        whole_N: NDArray[np.int64] = -(-padded_N // (audio.hop_samples * audio.frames_per_state))
        return np.maximum(whole_N, 1)
    frames_N = np.maximum((samples_N - audio.window_samples) // audio.hop_samples + 1, 0)
    return np.maximum(count_states(frames_N, subsampling or audio.frames_per_state), 1)


def states_needed(ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """What CTC needs for each row of ids: a state for each, and one between two equal ones."""
    again = np.zeros(len(ids) + 1, np.int64)
    again[2:] = np.cumsum(ids[1:] == ids[:-1]) if len(ids) > 1 else []
    # The first of a row is compared with none.
    repeats_N: NDArray[np.int64] = (
        again[offsets[1:]] - again[np.minimum(offsets[:-1] + 1, offsets[1:])]
    )
    return np.diff(offsets) + repeats_N


@dataclass(frozen=True)
class TooShort:
    """Recordings that are too short for CTC."""

    rows: NDArray[np.int64]
    total: int
    """Of all recordings."""
    left: int
    """How many would be too short with the smallest subsampling."""
    speed: float
    """At which they are that short: the highest of the recipe."""
    audio: Audio

    @property
    def share(self) -> float:
        return len(self.rows) / max(self.total, 1)

    @property
    def what(self) -> str:
        at = "" if self.speed == 1 else f" at speed {self.speed:g}"
        return (
            f"too short for CTC{at}: fewer encoder states (of {self.audio.state_ms:g} ms) than "
            f"tokens and blanks between equal ones"
        )

    @property
    def remedy(self) -> str:
        if self.audio.frames_per_state > SMALLEST:
            return f"audio.subsampling={SMALLEST} leaves {self.left:,} of them"
        return "larger tokens (data.tokens.both.level=subword) or a smaller audio.hop would mend it"

    def sentences(self) -> list[str]:
        """A warning, if there are any."""
        if not len(self.rows):
            return []
        verb = "is" if len(self.rows) == 1 else "are"
        return [
            f"{len(self.rows):,} of {self.total:,} recordings ({self.share:.1%}) {verb} "
            f"{self.what}; only attention learns from them; {self.remedy}"
        ]


def too_short_for_ctc(
    samples_N: NDArray[np.int64], needed_N: NDArray[np.int64], audio: Audio
) -> TooShort:
    """Which recordings have fewer states than CTC needs, at the highest speed of training."""
    speed = max([1.0, *audio.speed_perturbation])
    shortest_N = np.ceil(samples_N / speed).astype(np.int64)
    rows = np.flatnonzero(needed_N > states_of(shortest_N, audio))
    left = needed_N > states_of(shortest_N, audio, SMALLEST)
    return TooShort(rows, len(samples_N), int(left.sum()), speed, audio)
