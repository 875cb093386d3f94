"""Noise around and under speech: how long, how loud, of which colour, and only in training."""

from __future__ import annotations

import pytest
import torch

from transduce.nn.speech.background_noise import BackgroundNoise, coloured_noise

RATE = 8_000


def made(noise: BackgroundNoise, B: int = 200, samples: int = 1_000) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    samples_BW = torch.randn(B, samples)
    lengths_B = torch.randint(samples // 2, samples + 1, (B,))
    lengths_B[0] = samples
    generator = torch.Generator().manual_seed(2)
    return samples_BW, lengths_B, *noise(samples_BW, lengths_B, generator)


def test_without_training_nothing_changes() -> None:
    samples_BW, lengths_B, made_BW, made_B = made(BackgroundNoise(RATE).eval())
    assert made_BW is samples_BW
    assert made_B is lengths_B


def test_half_are_as_they_were_and_the_others_have_noise_before_and_after() -> None:
    noise = BackgroundNoise(RATE, before=0.05, after=0.1, snr=(200.0, 200.0)).train()
    samples_BW, lengths_B, made_BW, made_B = made(noise)
    found_before, found_after, same = [], [], 0
    for row in range(len(samples_BW)):
        speech_W = samples_BW[row, : lengths_B[row]]
        extra = int(made_B[row] - lengths_B[row])
        places = made_BW[row].unfold(0, len(speech_W), 1)[: extra + 1]
        best = int((places - speech_W).square().sum(dim=1).argmin())
        torch.testing.assert_close(places[best], speech_W, rtol=0, atol=1e-5)  # 200 dB
        same += extra == 0
        if extra:
            found_before.append(best)
            found_after.append(extra - best)
    assert 70 < same < 130
    assert max(found_before) <= 400
    assert max(found_before) > 350
    assert max(found_after) <= 800
    assert max(found_after) > 700
    assert made_BW.shape[1] == int(made_B.max())


def test_the_noise_is_as_loud_as_the_ratio_says() -> None:
    noise = BackgroundNoise(RATE, share=1.0, before=1.0, after=0.0, snr=(20.0, 20.0)).train()
    samples_BW, lengths_B, made_BW, made_B = made(noise, samples=2_000)
    ratios, silent = [], 0
    for row in range(len(samples_BW)):
        before = int(made_B[row] - lengths_B[row])
        if before < 1_000:
            continue
        alone_W, speech_W = made_BW[row, :before], samples_BW[row, : lengths_B[row]]
        if not alone_W.any():  # digital silence
            silent += 1
            assert torch.equal(made_BW[row, before : made_B[row]], speech_W)
            continue
        ratios.append(10 * torch.log10(speech_W.square().mean() / alone_W.square().mean()))
        under_W = made_BW[row, before : made_B[row]] - speech_W
        assert under_W.any()  # the speech has noise, too
        assert not made_BW[row, made_B[row] :].any()
    assert 0.02 < silent / len(ratios) < 0.25
    assert abs(float(torch.stack(ratios).median()) - 20) < 1


def test_a_row_does_not_depend_on_what_lies_beyond_its_end() -> None:
    noise = BackgroundNoise(RATE).train()
    found = []
    for beyond in (0.0, 9.0):
        samples_BW = torch.ones(2, 50)
        samples_BW[1, 30:] = beyond
        torch.manual_seed(0)
        found.append(noise(samples_BW, torch.tensor([50, 30]))[0])
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_its_power_falls_as_the_exponent_says(exponent: float) -> None:
    torch.manual_seed(0)
    noise_BW = coloured_noise(torch.full((400,), exponent), 4_000, RATE)
    assert noise_BW.shape == (400, 4_000)
    assert float(noise_BW.square().mean()) == pytest.approx(1, rel=0.05)
    power_F = torch.fft.rfft(noise_BW * torch.hann_window(4_000)).abs().square().mean(dim=0)
    hertz = torch.fft.rfftfreq(4_000, 1 / RATE)
    low, high = (power_F[(hertz > f * 0.9) & (hertz < f * 1.1)].mean() for f in (200.0, 2_000.0))
    assert float(torch.log10(low / high)) == pytest.approx(exponent, abs=0.1)


def test_numbers_that_cannot_be_are_reported() -> None:
    for wrong in ({"share": 1.5}, {"before": -1.0}, {"snr": (9.0, 3.0)}):
        with pytest.raises(ValueError, match="share must be from 0 to 1"):
            BackgroundNoise(RATE, **wrong)  # type: ignore[arg-type]
