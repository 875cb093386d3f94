"""The picture of listening: drawn of a file, refused where there is nothing to draw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from tiny_sounds import sound_model
from tones import RATE, tones
from transduce.errors import DataError, ModelError
from transduce.inspection.heard import draw_hearing, heard_map


def test_a_file_is_drawn_and_its_text_given_back(tmp_path: Path) -> None:
    model, source = sound_model(), str(tmp_path / "one.wav")
    soundfile.write(source, tones("ab c"), RATE)
    text = draw_hearing(model, source, tmp_path / "one.png", "$one", beam=1)
    assert text == model.run([source], beam=1)[0].text
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(DataError, match="there is no sound file"):
        draw_hearing(model, str(tmp_path / "none.wav"), tmp_path / "none.png")


def test_what_is_too_long_or_cannot_attend(tmp_path: Path) -> None:
    source = str(tmp_path / "one.wav")
    soundfile.write(source, np.concatenate([tones("ab c")] * 6), RATE)
    with pytest.raises(ModelError, match="no attention to draw"):
        draw_hearing(sound_model("data.max_length=100"), source, tmp_path / "one.png", beam=1)


def test_weights_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="does not fit 2 tokens"):
        heard_map(np.ones((3, 4)), range(5), ["a", "b"], np.ones((9, 8)), 1.0, [], Path("x.png"))
