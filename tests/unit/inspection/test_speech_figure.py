"""The picture of listening: drawn of a file, refused where there is nothing to draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from tiny_sounds import audio_model
from tones import RATE, tones
from transduce.errors import DataError, ModelError
from transduce.inspection import speech_figure as heard
from transduce.inspection.speech_figure import (
    draw_speech_attention,
    place_of_hertz,
    speech_attention_map,
)
from transduce.nn.speech.mel import LogMel


def test_a_file_is_drawn_and_its_text_given_back(tmp_path: Path) -> None:
    model, source = audio_model(), str(tmp_path / "one.wav")
    soundfile.write(source, tones("ab c"), RATE)
    text = draw_speech_attention(model, source, tmp_path / "one.png", "$one", beam=1)
    assert text == model.run([source], beam=1)[0].text
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(DataError, match="there is no audio file"):
        draw_speech_attention(model, str(tmp_path / "none.wav"), tmp_path / "none.png")


def test_what_is_too_long_or_cannot_attend(tmp_path: Path) -> None:
    source = str(tmp_path / "one.wav")
    soundfile.write(source, np.concatenate([tones("ab c")] * 6), RATE)
    with pytest.raises(ModelError, match="no attention to draw"):
        draw_speech_attention(
            audio_model("data.max_length=100"), source, tmp_path / "one.png", beam=1
        )


def test_weights_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="does not fit 2 tokens"):
        speech_attention_map(
            np.ones((3, 4)), range(5), ["a", "b"], np.ones((9, 8)), 1.0, [], Path("x.png")
        )


def test_frequencies_lie_where_tones_do() -> None:
    """A tone is loudest in the band whose middle is labelled with its frequency."""
    rate, bands = 16_000, 40
    layer = LogMel(rate, bands)
    time = torch.arange(rate) / rate
    for hertz in (250, 500, 1000, 2000, 4000):
        features_TM = layer(torch.sin(2 * torch.pi * hertz * time)[None])[0][0]
        loudest = int(features_TM.mean(dim=0).argmax())
        assert place_of_hertz(hertz, bands, rate) * bands - 0.5 == pytest.approx(loudest, abs=0.8)


def test_the_path_of_ctc_is_drawn_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes of the picture lie at the states at which CTC says each token; spaces are seen."""
    drawn: list[Any] = []
    monkeypatch.setattr(heard, "save", lambda figure, path: drawn.append(figure))
    heard_SV = torch.full((8, 6), 0.01)
    for state, token in enumerate([0, 4, 4, 0, 5, 0, 4, 0]):
        heard_SV[state, token] = 0.9
    ctc = heard._ctc_path(heard_SV.log(), [4, 5, 4])
    assert ctc is not None
    assert (ctc.first, ctc.last) == ([1, 4, 6], [2, 4, 6])
    assert ctc.probabilities_TS.shape == (3, 8)
    assert heard._ctc_path(heard_SV.log(), [4] * 9) is None
    tokens, edges = ["a", "▁", "a", "</s>"], [0.04 * state for state in range(9)]
    weights_TS = np.full((4, 8), 0.125)
    speech_attention_map(
        weights_TS, edges, tokens, np.ones((32, 40)), 0.32, [], tmp_path / "x.png", ctc=ctc
    )
    above, below, middle = drawn[0].axes
    assert [label.get_text() for label in above.get_yticklabels()] == ["a", "␣", "a", "</s>"]
    boxes = [(p.get_x(), p.get_y(), p.get_width()) for p in middle.patches]
    expected = [(0.04, 0, 0.08), (0.16, 1, 0.04), (0.24, 2, 0.04)]
    assert boxes == [pytest.approx(box) for box in expected]
    assert below.get_xlabel() == "seconds"
    assert "Hz" in below.get_ylabel()
    assert [label.get_text() for label in below.get_yticklabels()][-2:] == ["2,000", "4,000"]


def test_samples_are_drawn_too(tmp_path: Path) -> None:
    model = audio_model()
    text = draw_speech_attention(model, tones("ab c"), tmp_path / "one.png", rate=RATE, beam=1)
    assert text == model(tones("ab c"), rate=RATE, beam=1)
