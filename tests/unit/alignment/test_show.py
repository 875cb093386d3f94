"""What align takes a text for where nobody says, and what it tells."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tiny_sounds import phone_model
from transduce.alignment import show
from transduce.alignment.align import Aligned, Line, Utterance
from transduce.errors import DataError
from transduce.tasks import SpeechModel


def model(train: str) -> SpeechModel:
    return phone_model("w iː", f"data.train={train}")


def test_the_language_that_a_model_learnt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "read_version", lambda code: SimpleNamespace(tag=f"tag of {code}"))
    spoken = "{name: udhr-spoken, split: train, language: LANGUAGE}"
    assert show._learnt_language(model(spoken.replace("LANGUAGE", "eng"))) == "tag of eng"
    assert "assuming that the text is tag of eng" in capsys.readouterr().err
    assert show._learnt_language(model(spoken.replace("LANGUAGE", "all"))) is None
    assert show._learnt_language(model("{file: train.tsv, audio: path}")) is None

    def gone(code: str) -> None:
        raise DataError("not here")

    monkeypatch.setattr(show, "read_version", gone)
    assert show._learnt_language(model(spoken.replace("LANGUAGE", "eng"))) is None
    assert capsys.readouterr().err == ""


def test_a_model_that_does_not_fit_and_sound_without_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def lines(read: int, of: int) -> tuple[Utterance, ...]:
        heard = [Utterance(n, "we", n, n + 0.5, 0.9) for n in range(1, read + 1)]
        return (*heard, *(Utterance(n, "we") for n in range(read + 1, of + 1)), Utterance(99, " "))

    show._print_summary(Aligned(Path("talk.wav"), 60.0, lines(2, 5)), Path("out"))
    reported = capsys.readouterr()
    assert "warning: only 2 of 5 lines were found in talk.wav" in reported.err
    assert "without text" not in reported.out
    show._print_summary(Aligned(Path("talk.wav"), 60.0, lines(0, 5)), Path("out"))
    assert "warning: no speech was found in talk.wav" in capsys.readouterr().err
    untold = ((3.0, 4.25), (50.0, 60.0))
    show._print_summary(Aligned(Path("talk.wav"), 60.0, lines(3, 5), untold), Path("out"))
    reported = capsys.readouterr()
    assert reported.err == ""
    assert "speech or other sound without text: 3.0-4.2, 50.0-60.0 s" in reported.out


def test_lines_of_low_confidence(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the lines may be found in a recording that says something else. The median is over
    the lines: one that is read twice counts once, by its best, and empty ones not at all."""

    def reported(*confidences: float) -> str:
        heard = [Utterance(n, "we", n, n + 0.5, c) for n, c in enumerate(confidences, 1)]
        also = [Utterance(1, "we", 70, 71, 0.9), Utterance(2, "we", 72, 73, 0.1)]
        also += [Utterance(98, ""), Utterance(99, " ")]
        aligned = Aligned(Path("talk.wav"), 60.0, (*heard, *also))
        show._print_summary(aligned, Path("out"))
        found = capsys.readouterr()
        assert f"median confidence {aligned.median_confidence:.2f}; out" in found.out
        return found.err

    assert "the confidence of the lines is low, 0.39 in the median" in reported(0.2, 0.39, 0.3)
    assert reported(0.2, 0.4, 0.3) == ""


def test_a_silent_recording_is_not_aligned(tmp_path: Path) -> None:
    """It is said before the model listens; so is what is wrong with one that was cut off."""
    soundfile = pytest.importorskip("soundfile")
    both = np.random.default_rng(1).normal(0, 0.1, 16_000)
    channels = {"silent": np.zeros(16_000), "cancelled": np.stack([both, -both], axis=1)}
    for name, samples in channels.items():
        soundfile.write(tmp_path / f"{name}.wav", samples, 8_000)
    cut = tmp_path / "cut.wav"
    soundfile.write(cut, both, 8_000)
    cut.write_bytes(cut.read_bytes()[:9_000])
    words = {"silent": "is silent", "cancelled": "cancel each other", "cut": "is truncated"}
    for name, what in words.items():
        with pytest.raises(DataError, match=rf"{name}\.wav .*{what}"):
            show.align_with(phone_model("w iː"), tmp_path / f"{name}.wav", ["w iː"])


def test_words_without_an_interval_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    show._warn_about_unknown([Line("we", (4,), (("we", 0, 1),))])
    assert capsys.readouterr().err == ""
    show._warn_about_unknown(
        [Line("7 we", (4,), (), (), ("7",)), Line("8 7", (), (), (), ("8", "7"))]
    )
    assert "3 words have no character of the model" in (said := capsys.readouterr().err)
    assert "(7, 8)" in said
