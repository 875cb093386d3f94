"""What confidence is usual, and what is said of less."""

from __future__ import annotations

import math

import pytest

from transduce.decoding.speech.confidence import Calibration, geometric_mean


def test_what_is_usual() -> None:
    calibration = Calibration.of([0.8] * 9 + [0.9] * 10 + [0.75])
    assert calibration is not None
    assert calibration.usual == pytest.approx(0.85)
    assert calibration.minimum == pytest.approx(0.68)  # well below it, as none is so low
    spread = Calibration.of([0.1, 0.15, *[0.8] * 30])
    assert spread is not None
    assert spread.minimum < 0.4  # in one of twenty it is usual to be lower
    assert Calibration.of([0.9] * 9) is None


def test_what_is_said() -> None:
    calibration = Calibration(0.8, 0.4)
    assert calibration.warning(0.4) == ""
    assert "confidence (0.39, usually 0.80" in (said := calibration.warning(0.39))
    assert "this audio differs from the training data" in said


def test_weights_carry_it() -> None:
    calibration = Calibration(0.8123456, 0.4)
    assert Calibration.from_metadata(calibration.metadata()) == Calibration(0.812346, 0.4)
    for strange in ({}, {"confidence": None}, {"confidence": [1]}, {"confidence": ["x", 2]}):
        assert Calibration.from_metadata(strange) is None
    assert Calibration.from_metadata({"confidence": [0.2, 0.5]}) is None
    assert Calibration.from_metadata({"confidence": [math.nan, math.nan]}) is None


def test_the_mean_of_probabilities() -> None:
    assert geometric_mean(math.log(0.5) + math.log(0.125), 2) == pytest.approx(0.25)
    assert geometric_mean(-math.inf, 3) == 0.0
    assert geometric_mean(0.0, 0) == 1.0


def test_noise_is_doubted_by_a_model_that_is_often_unsure() -> None:
    """However low the confidence is in some of its validation outputs; loaded from a file too."""
    calibration = Calibration.of([0.02] * 3 + [0.1] * 3 + [0.9] * 40)
    assert calibration is not None
    assert calibration.minimum < 0.11
    for one in (calibration, Calibration.from_metadata(calibration.metadata())):
        assert one is not None
        assert one.warning(0.11)
        assert one.warning(0.44)
        assert not one.warning(0.46)
