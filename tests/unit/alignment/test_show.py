"""What align takes a text for where nobody says, and what it tells."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tiny_sounds import phone_model
from transduce.alignment import show
from transduce.alignment.lines import Line
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


def test_words_without_an_interval_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    show._warn_about_unknown([Line("we", (4,), (("we", 0, 1),))])
    assert capsys.readouterr().err == ""
    show._warn_about_unknown(
        [Line("7 we", (4,), (), (), ("7",)), Line("8 7", (), (), (), ("8", "7"))]
    )
    assert "3 words have no character of the model" in (said := capsys.readouterr().err)
    assert "(7, 8)" in said
