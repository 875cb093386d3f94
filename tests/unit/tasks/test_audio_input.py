"""Audio as a source: samples of all sorts, tags, and what is said of what cannot be heard."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from tiny_sounds import audio_model, tagged_model
from tones import RATE, tones
from transduce import load
from transduce.alignment.align import ctc_emissions
from transduce.decoding.speech.confidence import Calibration
from transduce.errors import ModelError
from transduce.tasks import SpeechModel
from transduce.tasks.audio_input import AudioSegment


def test_samples_are_those_of_the_file(tmp_path: Path) -> None:
    model, samples = audio_model(), tones("ab c")
    soundfile.write(tmp_path / "one.wav", samples, RATE)
    (expected,) = model.run([str(tmp_path / "one.wav")])
    double: Any = samples.astype(np.float64)
    whole = np.rint(samples * 32768).astype(np.int16)
    stereo = np.stack([samples, samples])
    kinds = [double, whole, whole.astype(np.int32) * 65536, torch.from_numpy(samples), stereo]
    for source in [*kinds, stereo.T, tmp_path / "one.wav"]:
        (output,) = model.run([source], rate=RATE)
        assert output.text == expected.text
        assert output.score == pytest.approx(expected.score, abs=1e-3)
    (score,) = model.score([samples], ["ab"], rate=RATE)
    (same,) = model.score([str(tmp_path / "one.wav")], ["ab"])
    assert score.log_probability == pytest.approx(same.log_probability, abs=1e-3)


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        (np.full(RATE, np.nan, np.float32), "NaN or infinite"),
        (np.zeros(10, np.float32), "less than one frame"),
        (np.zeros(0, np.float32), "less than one frame"),
        (np.ones(RATE, np.uint8), "samples of type uint8"),
        (np.ones((100, 100), np.float32), r"shape \[100, 100\]"),
        (np.ones((2, 3, 4), np.float32), r"shape \[2, 3, 4\]"),
    ],
)
def test_samples_that_cannot_be_used(samples: Any, why: str) -> None:
    """They do not stop the others."""
    bad, good = audio_model().run([samples, tones("ab")], rate=RATE)
    assert bad.failed
    assert re.search(why, bad.warning)
    assert not good.failed


def test_silent_samples_are_reported() -> None:
    (output,) = audio_model().run([np.zeros(RATE, np.float32)], rate=RATE)
    assert (output.text, output.failed) == ("", False)
    assert "is silent" in output.warning


def test_what_is_no_list_of_audio() -> None:
    model, samples = audio_model(), tones("ab")
    for source in ("a.wav", samples, torch.from_numpy(samples)):
        with pytest.raises(ModelError, match="run takes a list of sources"):
            model.run(source)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="samples need their sample rate"):
        model.run([samples])
    with pytest.raises(ModelError, match="rate is -1; it must be above 0"):
        model.run([samples], rate=-1)
    with pytest.raises(ModelError, match="not int: 7"):
        model.run([7])  # type: ignore[list-item]


def test_long_samples_are_cut_as_files_are(tmp_path: Path) -> None:
    quiet = 0.0005 * np.random.default_rng(1).standard_normal(RATE)
    talk = np.concatenate([quiet, tones("abc de"), quiet, tones("ed cba"), quiet])
    soundfile.write(tmp_path / "talk.wav", talk.astype(np.float32), RATE, subtype="FLOAT")
    model = audio_model()
    (read,) = model.run([str(tmp_path / "talk.wav")], times=True)
    (given,) = model.run([talk.astype(np.float32)], rate=RATE, times=True)
    assert len(given.segments) == 2
    assert (given.text, given.segments, given.words) == (read.text, read.segments, read.words)


def test_tags_change_what_is_heard_and_leave_nothing_behind() -> None:
    model, samples = tagged_model(), tones("ab c")
    plain, x, y = (model.run([samples], rate=RATE, tags=tags)[0] for tags in ([], ["x"], ["y"]))
    assert len({plain.score, x.score, y.score}) == 3
    assert model.run([samples], rate=RATE)[0].score == plain.score
    wave = np.rint(samples * 32768).astype(np.int16)
    pieces = [AudioSegment.of(f"{tag}one.wav", wave) for tag in ("<y> ", "", "<x> ", "<y> ")]
    scores = [output.score for output in model.run(pieces)]
    assert scores == [pytest.approx(one.score, abs=1e-5) for one in (y, plain, x, y)]
    with pytest.raises(ModelError, match="has no tag z; its tags are x, y"):
        model.run([samples], rate=RATE, tags=["z"])
    with pytest.raises(ModelError, match="trained without tags, so z is unknown; leave it out"):
        audio_model().run([samples], rate=RATE, tags=["z"])


def test_several_tags_in_one_are_split_as_those_of_text(tmp_path: Path) -> None:
    """`V;PST` is two tags; what is in brackets belongs to one."""
    features = "ABL(PL;PSS(2,PL))"
    model, samples = tagged_model("N", features), tones("ab c")
    soundfile.write(tmp_path / "one.wav", samples, RATE)
    asked: dict[str, Any] = {"rate": RATE}
    (apart,) = model.run([samples], tags=["N", features], **asked)
    for tags in ([f"N;{features}"], [f"N {features}"], [f"N|{features}"]):
        assert model.run([samples], tags=tags, **asked)[0].score == apart.score
        given, wanted = (
            model.score([samples], ["ab c"], tags=each, **asked)[0].log_probability
            for each in (tags, ["N", features])
        )
        assert given == wanted
        found, expected = (
            ctc_emissions(model, tmp_path / "one.wav", each) for each in (tags, ["N", features])
        )
        assert torch.equal(found, expected)
    with pytest.raises(ModelError, match=r"has no tag DAT\(PL\); its tags are ABL.*, N"):
        model.run([samples], tags=["N;DAT(PL)"], **asked)


def test_a_reranker_hears_the_tags_of_its_own_vocabulary() -> None:
    """Names travel between models, as the same tag has another number in each."""
    model, samples = tagged_model(), tones("ab c")
    asked: dict[str, Any] = {"rate": RATE, "tags": ["y"], "beam": 3, "length_penalty": 0.0}
    for other in (tagged_model("z", "y", "x"), tagged_model("y"), audio_model()):
        with torch.no_grad():
            for parameter in other.network.parameters():
                parameter.mul_(1.1)
        (output,) = model.run([samples], rerank=other, **asked)
        known = {"tags": ["y"]} if other.source_tokens.tags else {}
        (rescored,) = other.score([samples], [output.text], rate=RATE, **known)
        total = output.log_probability + rescored.log_probability
        assert output.score == pytest.approx(total, abs=1e-4)
    with pytest.raises(ModelError, match="has no tag y; its tags are x"):
        model.run([samples], rerank=tagged_model("x"), **asked)


def test_int8_and_the_forced_pass_hear_the_tags() -> None:
    """The copy that search uses has them too, also once it has been made."""
    model, samples = tagged_model().compute_in("int8"), tones("ab c")
    first = [model.run([samples], rate=RATE, tags=[tag])[0].score for tag in "xyx"]
    assert first[0] == first[2] != first[1]
    model.compute_in("float32")
    (timed,) = model.run([samples], rate=RATE, tags=["y"], times=True)
    assert timed.score == pytest.approx(model.run([samples], rate=RATE, tags=["y"])[0].score)
    attention = timed.parts["attention"] / timed.parts["length_penalty"]
    assert timed.score == pytest.approx(attention, abs=1e-3)


def test_a_warning_where_the_model_is_unsure(tmp_path: Path) -> None:
    model, samples = audio_model(), tones("ab c")
    (output,) = model.run([samples], rate=RATE)
    assert output.confidence is not None
    assert output.warning == ""  # nobody has told what is usual
    model.calibration = Calibration(output.confidence * 1.02, output.confidence * 1.01)
    assert "low confidence" in model.run([samples], rate=RATE)[0].warning
    model.save(tmp_path)
    again = load(tmp_path)
    assert isinstance(again, SpeechModel)
    assert again.calibration is not None
    assert "low confidence" in again.run([samples], rate=RATE)[0].warning
    model.calibration = Calibration(output.confidence, output.confidence * 0.99)
    assert model.run([samples], rate=RATE)[0].warning == ""


def test_some_stretches_of_which_it_is_unsure() -> None:
    quiet = 0.0005 * np.random.default_rng(1).standard_normal(RATE)
    talk = np.concatenate([quiet, tones("abc de"), quiet, tones("ee"), quiet])
    model = audio_model()
    (output,) = model.run([talk], rate=RATE, min_length=2)
    low, high = sorted(one.confidence for one in output.segments)
    assert low < output.confidence < high
    model.calibration = Calibration(output.confidence, (low + output.confidence) / 2)
    (reported,) = model.run([talk], rate=RATE, min_length=2)
    assert "low confidence in 1 of 2 segments (" in reported.warning
