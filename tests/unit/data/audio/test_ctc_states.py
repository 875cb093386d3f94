"""Recordings that are too short for CTC: counted as the network and the loss would."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiny_sounds import audio_network, audio_recipe
from transduce.data.audio.ctc_states import states_needed, states_of, too_short_for_ctc
from transduce.nn.ctc.loss import frames_needed


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["audio.subsampling=2"],
        ["audio.subsampling=8"],
        ["audio={features: whisper, mel_bands: 16}"],
        ["audio={features: whisper, mel_bands: 16, pad_to: 2.0}"],
    ],
)
def test_states_are_those_of_the_network(overrides: list[str]) -> None:
    audio, network = audio_recipe(*overrides).audio, audio_network(*overrides)
    assert audio is not None
    samples = np.arange(0, 9000, 7)
    expected = [network.states_of(int(count)) for count in samples]
    assert states_of(samples, audio).tolist() == expected


@given(st.lists(st.lists(st.integers(4, 6), max_size=6), min_size=1, max_size=5))
def test_what_ctc_needs_is_what_its_loss_counts(rows: list[list[int]]) -> None:
    lengths = [len(row) for row in rows]
    ids = np.array([number for row in rows for number in row], np.int32)
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    padded_BT = torch.tensor([row + [0] * (max(lengths) - len(row)) for row in rows])
    expected = frames_needed(padded_BT.view(len(rows), -1), torch.tensor(lengths))
    assert states_needed(ids, offsets).tolist() == expected.tolist()


def test_the_share_and_the_mend_are_said() -> None:
    audio = audio_recipe("audio.speed_perturbation=[0.9, 1.1]").audio
    assert audio is not None
    samples = np.array([4000, 1600, 1600])  # at 4 kHz; at speed 1.1, 34 frames: 7 and 14 states
    short = too_short_for_ctc(samples, np.array([10, 7, 9]), audio)
    assert short.rows.tolist() == [2]
    (sentence,) = short.sentences()
    assert sentence == (
        "1 of 3 recordings (33.3%) is too short for CTC at speed 1.1: fewer encoder states (of 40 "
        "ms) than tokens and blanks between equal ones; only attention learns from them; "
        "audio.subsampling=2 leaves 0 of them"
    )
    half = audio.model_copy(update={"subsampling": 2})
    assert "larger tokens" in too_short_for_ctc(samples, np.array([10, 8, 15]), half).remedy
    assert too_short_for_ctc(samples, np.array([10, 7, 7]), audio).sentences() == []
