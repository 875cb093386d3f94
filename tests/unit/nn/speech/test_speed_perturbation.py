"""Waveforms at another speed: tones, soxr's results, and each row as if it were alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce.nn.speech.speed_perturbation import change_speed, perturb_speed

RATE = 16_000


def tone(hertz: float, samples: int) -> Tensor:
    return torch.sin(2 * math.pi * hertz * torch.arange(samples).double() / RATE).float()


@pytest.mark.parametrize("speed", [0.8, 0.9, 1.1, 1.25])
@pytest.mark.parametrize("hertz", [100.0, 1_000.0, 5_000.0])
def test_a_tone_is_higher_by_the_speed(speed: float, hertz: float) -> None:
    made_BW, lengths_B = change_speed(tone(hertz, 8_000)[None], torch.tensor([8_000]), speed)
    length = math.ceil(round(8_000 / speed, 6))
    assert lengths_B.tolist() == [length]
    assert made_BW.shape == (1, length)
    inner = slice(200, -200)
    expected_W = tone(hertz * speed, length)
    torch.testing.assert_close(made_BW[0, inner], expected_W[inner], rtol=0, atol=1e-3)


def test_what_would_be_above_the_highest_frequency_is_gone() -> None:
    made_BW, _ = change_speed(tone(7_700, 8_000)[None], torch.tensor([8_000]), 1.1)
    assert made_BW[0, 200:-200].abs().max() < 1e-2


@pytest.mark.parametrize(("speed", "before", "after"), [(0.9, 9, 10), (1.1, 11, 10)])
def test_it_is_soxrs(speed: float, before: int, after: int) -> None:
    soxr: Any = pytest.importorskip("soxr", reason="needs soxr as the oracle")
    torch.manual_seed(0)
    time_W = torch.arange(16_000) / RATE
    loudness_W = torch.rand(16).repeat_interleave(1_000).clamp(min=0.5)
    wave_W = loudness_W * torch.sin(2 * math.pi * (300 + 2_500 * time_W) * time_W)
    made_BW, _ = change_speed(wave_W[None], torch.tensor([16_000]), speed)
    expected_W = torch.from_numpy(soxr.resample(wave_W.numpy(), before, after))
    length = min(len(expected_W), made_BW.shape[1])
    difference_W = made_BW[0, :length] - expected_W[:length]
    # Loudness jumps every thousand samples, where the two filters ring differently.
    assert difference_W[300:-300].square().mean().sqrt() < 5e-3


@pytest.mark.parametrize("speed", [0.9, 1.0, 1.1])
def test_a_batch_gives_what_each_row_alone_gives(speed: float) -> None:
    torch.manual_seed(0)
    lengths_B = torch.tensor([500, 1, 333, 0])
    batch_BW = torch.randn(4, 500)
    made_BW, made_lengths_B = change_speed(batch_BW, lengths_B, speed)
    for b, length in enumerate(lengths_B):
        alone_1W, alone_length_1 = change_speed(batch_BW[b : b + 1, :length], length[None], speed)
        assert made_lengths_B[b] == alone_length_1[0] == alone_1W.shape[1]
        torch.testing.assert_close(made_BW[b, : made_lengths_B[b]], alone_1W[0], rtol=0, atol=1e-5)
        assert not made_BW[b, made_lengths_B[b] :].any()


def test_each_waveform_has_a_speed_of_its_own_and_the_seed_says_which() -> None:
    batch_BW, lengths_B = torch.randn(60, 900), torch.full((60,), 900)
    generator = torch.Generator().manual_seed(3)
    made_BW, made_lengths_B = perturb_speed(batch_BW, lengths_B, generator)
    assert set(made_lengths_B.tolist()) == {1_000, 900, 819}
    for b, length in enumerate(made_lengths_B):
        speed = {1_000: 0.9, 900: 1.0, 819: 1.1}[int(length)]
        alone_1W, _ = change_speed(batch_BW[b : b + 1], lengths_B[b : b + 1], speed)
        torch.testing.assert_close(made_BW[b, :length], alone_1W[0], rtol=0, atol=1e-5)
        assert not made_BW[b, length:].any()
    again_BW, _ = perturb_speed(batch_BW, lengths_B, torch.Generator().manual_seed(3))
    assert torch.equal(again_BW, made_BW)
    assert not torch.equal(perturb_speed(batch_BW, lengths_B, generator)[1], made_lengths_B)


def test_a_speed_that_cannot_be_is_reported() -> None:
    with pytest.raises(ValueError, match="above zero, not 0"):
        change_speed(torch.randn(1, 10), torch.tensor([10]), 0.0)
