"""A model that hears on a GPU learns and says what it does on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch

from tiny_sounds import ENCODERS, audio_model, audio_network, noise
from tones import RATE, tones
from transduce.data.batches.batch import collate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

DEVICES = ("cpu", "cuda")


@pytest.fixture(autouse=True)
def _whole_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions in TF32, as training has them, err by a thousandth: more than is compared."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_loss_and_its_gradient(encoder: str) -> None:
    batch = collate([noise(1.0, 1), noise(0.6, 2), noise(0.05, 3)], [[4, 5, 5], [6], [7]])
    batch.transcript_BT = torch.tensor([[4, 5, 5], [6, 0, 0], [7, 0, 0]])
    batch.transcript_lengths_B = torch.tensor([3, 1, 1])
    found = []
    for device in DEVICES:
        # cuDNN's recurrent networks have a way back only while they learn.
        network = audio_network("audio.spec_augment=null", encoder=encoder).to(device).train()
        loss = network.batch_loss(batch.to(device))
        loss.total.backward()  # type: ignore[no-untyped-call]
        assert network.ctc is not None
        assert network.ctc.weight.grad is not None
        found.append((loss.total.detach().cpu(), network.ctc.weight.grad.cpu()))
    torch.testing.assert_close(found[0], found[1], rtol=2e-3, atol=2e-3)


def test_training_in_bfloat16_at_several_speeds() -> None:
    network = audio_network("audio.speed_perturbation=[0.9, 1.0, 1.1]").cuda().train()
    batch = collate([noise(1.0, 1), noise(0.6, 2)], [[4, 5, 5], [6]])
    batch.transcript_BT = torch.tensor([[4, 5, 5], [6, 0, 0]])
    batch.transcript_lengths_B = torch.tensor([3, 1])
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = network.batch_loss(batch.to("cuda"), 0.1)
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert all(bool(p.grad.isfinite().all()) for p in network.parameters() if p.grad is not None)


TRANSDUCER = "model.transducer={}", "model.decoder={kind: recurrent, attention: none}"


@pytest.mark.parametrize("given", [{}, {"hotwords": ["abc", "a b"]}])
@pytest.mark.parametrize("kind", ["attention", "transducer"])
@pytest.mark.parametrize("beam", [1, 4])
def test_what_is_heard(beam: int, kind: str, given: dict[str, Any], tmp_path: Path) -> None:
    texts = ["abc", "de a b", "c"]
    for number, text in enumerate(texts):
        soundfile.write(tmp_path / f"{number}.wav", tones(text), RATE)
    sources = [str(tmp_path / f"{number}.wav") for number in range(len(texts))]
    overrides = TRANSDUCER if kind == "transducer" else ()
    weight = {} if kind == "transducer" else {"ctc_weight": 0.4}
    outputs = [
        audio_model(*overrides).to(device).run(sources, beam=beam, times=True, **weight, **given)
        for device in DEVICES
    ]
    for on_cpu, on_gpu in zip(*outputs, strict=True):
        assert on_gpu.text == on_cpu.text
        assert on_gpu.score == pytest.approx(on_cpu.score, abs=1e-2)
        assert on_gpu.parts == pytest.approx(on_cpu.parts, abs=5e-2)
