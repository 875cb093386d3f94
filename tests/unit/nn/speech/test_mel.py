"""Log-mel features against Kaldi's own code, and each row as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from recordings import corpus
from transduce.data.audio.read import read_audio
from transduce.nn.speech import mel
from transduce.nn.speech.mel import LogMel, mel_filters


def speech_like(samples: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Noise, a chirp, a constant offset and a stretch of digital silence."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(samples) / 16_000
    wave = 0.1 * torch.randn(samples, generator=generator) + 0.2
    wave = wave + 0.3 * torch.sin(2 * torch.pi * (200 + 800 * time) * time)
    wave[samples // 3 : samples // 2] = 0.0
    return scale * wave


def kaldi(samples: Tensor, rate: int, bands: int, **options: Any) -> Tensor:
    package: Any = pytest.importorskip(
        "kaldi_native_fbank", reason="needs kaldi-native-fbank as the oracle"
    )
    settings = package.FbankOptions()
    settings.frame_opts.dither = 0
    settings.frame_opts.samp_freq = rate
    settings.frame_opts.snip_edges = options.get("snip_edges", True)
    settings.mel_opts.num_bins = bands
    settings.mel_opts.low_freq = options.get("low", 20.0)
    settings.mel_opts.high_freq = options.get("high", 0.0)
    computed = package.OnlineFbank(settings)
    computed.accept_waveform(rate, samples.tolist())
    computed.input_finished()
    frames = [torch.from_numpy(computed.get_frame(t)) for t in range(computed.num_frames_ready)]
    return torch.stack(frames) if frames else torch.empty(0, bands)


@pytest.mark.parametrize("scale", [1.0, 32768.0])
@pytest.mark.parametrize("snip_edges", [True, False])
@pytest.mark.parametrize(
    ("rate", "bands", "options"),
    [
        (16_000, 80, {}),
        (16_000, 40, {"low": 60.0, "high": -400.0}),
        (8_000, 40, {}),
        (16_000, 80, {"high": 7_600.0}),
    ],
)
def test_the_numbers_are_kaldis(
    rate: int, bands: int, options: dict[str, float], snip_edges: bool, scale: float
) -> None:
    samples_W = speech_like(16_123, scale=scale)
    expected_TM = kaldi(samples_W, rate, bands, snip_edges=snip_edges, **options)
    made_BTM, frames_B = LogMel(rate, bands, snip_edges=snip_edges, **options)(samples_W[None])
    assert frames_B.tolist() == [len(expected_TM)]
    torch.testing.assert_close(made_BTM[0], expected_TM, rtol=0, atol=1e-3)


def test_the_numbers_of_real_speech_are_kaldis() -> None:
    pytest.importorskip("soundfile", reason="needs soundfile to read the recordings")
    for file in sorted(corpus("mini_an4").glob("*.flac")):
        samples_W = torch.from_numpy(read_audio(file).samples)
        made_BTM, _ = LogMel()(samples_W[None])
        torch.testing.assert_close(made_BTM[0], kaldi(samples_W, 16_000, 80), rtol=0, atol=1e-3)


@pytest.mark.parametrize("snip_edges", [True, False])
@pytest.mark.parametrize("samples", [0, 1, 79, 80, 200, 399, 400, 401, 559, 560, 561])
def test_the_shortest_waveforms(samples: int, snip_edges: bool) -> None:
    samples_W = speech_like(1_000)[:samples]
    expected_TM = kaldi(samples_W, 16_000, 80, snip_edges=snip_edges)
    made_BTM, frames_B = LogMel(snip_edges=snip_edges)(samples_W[None])
    assert frames_B.tolist() == [len(expected_TM)]
    assert made_BTM.shape == (1, len(expected_TM), 80)
    torch.testing.assert_close(made_BTM[0], expected_TM, rtol=0, atol=1e-3)


@pytest.mark.parametrize("snip_edges", [True, False])
def test_a_batch_gives_what_each_row_alone_gives(snip_edges: bool) -> None:
    features = LogMel(snip_edges=snip_edges)
    lengths = [5_000, 399, 16_000, 401, 0]
    rows = [speech_like(length, seed) for seed, length in enumerate(lengths)]
    batch_BW = torch.full((len(rows), max(lengths)), 7.0)  # padding must not be heard
    for b, row in enumerate(rows):
        batch_BW[b, : len(row)] = row
    made_BTM, frames_B = features(batch_BW, torch.tensor(lengths))
    for b, row in enumerate(rows):
        alone_1TM, _ = features(row[None])
        assert frames_B[b] == alone_1TM.shape[1]
        torch.testing.assert_close(made_BTM[b, : frames_B[b]], alone_1TM[0], rtol=0, atol=1e-4)
        assert not made_BTM[b, frames_B[b] :].any()


def test_in_chunks_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    batch_BW = torch.stack([speech_like(9_000, seed) for seed in range(3)])
    whole_BTM, _ = LogMel()(batch_BW)
    monkeypatch.setattr(mel, "CHUNK", 30)
    chunked_BTM, _ = LogMel()(batch_BW)
    torch.testing.assert_close(chunked_BTM, whole_BTM, rtol=0, atol=1e-4)


def test_half_precision_does_not_reach_the_features() -> None:
    batch_BW = speech_like(9_000)[None]
    plain_BTM, _ = LogMel()(batch_BW)
    with torch.autocast("cpu", torch.bfloat16):
        cast_BTM, _ = LogMel()(batch_BW)
    assert torch.equal(plain_BTM, cast_BTM)


def test_it_computes_no_gradient_and_keeps_nothing_with_the_weights() -> None:
    features = LogMel()
    assert not features(torch.randn(1, 800, requires_grad=True))[0].requires_grad
    assert not features.state_dict()


def test_bands_that_cannot_be_are_reported() -> None:
    with pytest.raises(ValueError, match="from 20 to 9000 Hz are not possible"):
        mel_filters(16_000, 512, 80, 20, 9_000)
    with pytest.raises(ValueError, match="200 mel bands are too many"):
        mel_filters(16_000, 512, 200, 20, 0)


def test_on_the_meta_device_nothing_is_computed() -> None:
    """torch would load its compiler for it: two seconds before any model of speech is trained."""

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            made = func(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor) and made.is_meta:
                called.add(func.overloadpacket.__name__)
            return made

    called: set[str] = set()
    with torch.device("meta"), Calls():
        made = LogMel(8000, 20)
    assert made.window_A.is_meta
    assert made.filters_CM.is_meta
    assert called <= {"empty", "_to_copy"}
