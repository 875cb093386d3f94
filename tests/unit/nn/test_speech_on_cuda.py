"""Each part of speech on a GPU says what it says on a CPU."""

from __future__ import annotations

import pytest
import torch

from transduce.nn.conformer import ConformerBlock
from transduce.nn.ctc.alignment import MismatchPenalties, align
from transduce.nn.ctc.loss import ctc_loss
from transduce.nn.ctc.prefix_score import CtcPrefix
from transduce.nn.masks import padding
from transduce.nn.positions import Rotary, Sinusoidal
from transduce.nn.speech.feature_norm import GlobalNorm, Statistics, normalise_utterances
from transduce.nn.speech.mel import LogMel
from transduce.nn.speech.spec_augment import SpecAugment
from transduce.nn.speech.speed_perturbation import perturb_speed
from transduce.nn.speech.subsampling import Subsampling
from transduce.nn.transducer.loss import transducer_loss

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

DEVICES = ("cpu", "cuda")


@pytest.fixture(autouse=True)
def _whole_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions in TF32, as training has them, err by a thousandth: more than is compared."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("snip_edges", [True, False])
def test_features(snip_edges: bool) -> None:
    torch.manual_seed(0)
    samples_BW, lengths_B = torch.randn(3, 16_000), torch.tensor([16_000, 5_000, 300])
    made = []
    for device in DEVICES:
        wave_BW, count_B = perturb_speed(
            samples_BW.to(device), lengths_B, torch.Generator().manual_seed(1)
        )
        features = LogMel(snip_edges=snip_edges).to(device)
        mel_BTM, frames_B = features(wave_BW, count_B.to(device))
        statistics = Statistics.empty(80, device)
        statistics.update(mel_BTM, frames_B)
        norm = GlobalNorm(80).to(device)
        norm.set(statistics)
        parts = (normalise_utterances(mel_BTM, frames_B), norm(mel_BTM, frames_B), mel_BTM)
        made.append([part.cpu() for part in parts])
        generator = torch.Generator(device).manual_seed(2)
        assert SpecAugment()(mel_BTM, frames_B, generator).shape == mel_BTM.shape
    for on_cpu, on_cuda in zip(*made, strict=True):
        torch.testing.assert_close(on_cuda, on_cpu, rtol=0, atol=2e-3)


@pytest.mark.parametrize("positions", ["relative", "rotary"])
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_conformer(positions: str, norm: str) -> None:
    torch.manual_seed(0)
    subsampling = Subsampling(20, 32, channels=8).double()
    block = ConformerBlock(
        32,
        4,
        64,
        kernel=5,
        positions=Sinusoidal(32) if positions == "relative" else Rotary(8),
        convolution_norm=norm,
    ).double()
    mel_BTM, frames_B = torch.randn(3, 60, 20, dtype=torch.float64), torch.tensor([60, 31, 8])
    made = []
    for device in DEVICES:
        subsampling.to(device), block.to(device)
        x_BSD, lengths_B = subsampling(mel_BTM.to(device), frames_B.to(device))
        real_BS = torch.arange(x_BSD.shape[1], device=device) < lengths_B[:, None]
        y_BSD = block(x_BSD, padding(lengths_B, x_BSD.shape[1]), real_BS)
        block.zero_grad()
        y_BSD[real_BS].square().sum().backward()
        gradient = block.convolution.depthwise.weight.grad
        assert gradient is not None
        made.append((y_BSD[real_BS].detach().cpu(), gradient.to("cpu", copy=True)))
    for on_cpu, on_cuda in zip(*made, strict=True):
        torch.testing.assert_close(on_cuda, on_cpu, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("positions", ["relative", "rotary"])
def test_conformer_in_half_precision(positions: str) -> None:
    torch.manual_seed(0)
    block = ConformerBlock(
        64, 4, 128, kernel=5, positions=Sinusoidal(64) if positions == "relative" else Rotary(16)
    ).cuda()
    x_BSD, lengths_B = torch.randn(3, 40, 64, device="cuda"), torch.tensor([40, 7, 21]).cuda()
    real_BS = torch.arange(40, device="cuda") < lengths_B[:, None]
    exact_BSD = block(x_BSD, padding(lengths_B, 40), real_BS)
    with torch.autocast("cuda", torch.bfloat16):
        near_BSD = block(x_BSD, padding(lengths_B, 40), real_BS)
    near_BSD.float().square().sum().backward()
    assert (near_BSD.float() - exact_BSD)[real_BS].abs().max() < 0.15
    assert all(p.grad is not None and p.grad.isfinite().all() for p in block.parameters())


def test_ctc() -> None:
    torch.manual_seed(0)
    logits_BSV, lengths_B = torch.randn(4, 30, 12), torch.tensor([30, 22, 9, 3])
    targets_BT, target_lengths_B = torch.randint(4, 12, (4, 8)), torch.tensor([8, 8, 4, 5])
    made = []
    for device in DEVICES:
        inputs = [x.to(device) for x in (logits_BSV, lengths_B, targets_BT, target_lengths_B)]
        logits = inputs[0].requires_grad_()
        loss = ctc_loss(logits, *inputs[1:])
        (gradient,) = torch.autograd.grad(loss.total, logits)
        log_probs_BSV = logits.detach().log_softmax(dim=-1)
        prefix = CtcPrefix.start(log_probs_BSV, inputs[1], 3, blank=0, end=3)
        for token in range(4, 8):
            parents = torch.tensor([[2, 0, 1]] * 4, device=device)
            tokens = torch.tensor([[token, token, 4]] * 4, device=device)
            prefix = prefix.advance(parents, tokens)
        found = (*loss, gradient, prefix.total_BN, prefix.next_log_probs())
        made.append([tensor.detach().cpu() for tensor in found])
    for on_cpu, on_cuda in zip(*made, strict=True):
        torch.testing.assert_close(on_cuda, on_cpu, rtol=1e-3, atol=1e-3)


def test_transducer() -> None:
    torch.manual_seed(0)
    logits_BSPV, lengths_B = torch.randn(3, 20, 7, 9), torch.tensor([20, 11, 1])
    targets_BU, labels_B = torch.randint(1, 9, (3, 6)), torch.tensor([6, 3, 0])
    made = []
    for device in DEVICES:
        inputs = [x.to(device) for x in (logits_BSPV, lengths_B, targets_BU, labels_B)]
        logits = inputs[0].requires_grad_()
        loss_B, correct_B = transducer_loss(logits, *inputs[1:])
        (gradient,) = torch.autograd.grad(loss_B.sum(), logits)
        made.append([x.detach().cpu() for x in (loss_B, correct_B, gradient)])
    for on_cpu, on_cuda in zip(*made, strict=True):
        torch.testing.assert_close(on_cuda, on_cpu, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("penalties", [None, MismatchPenalties()])
def test_alignment(penalties: MismatchPenalties | None) -> None:
    torch.manual_seed(0)
    log_probs_SV = (3 * torch.randn(2_500, 12)).log_softmax(dim=-1)
    tokens_U = torch.randint(1, 12, (400,))
    breaks_G = torch.rand(401) < 0.1
    on_cpu, on_cuda = (
        align(log_probs_SV.to(device), tokens_U, 0, penalties, breaks_G) for device in DEVICES
    )
    assert torch.equal(on_cuda.first_U, on_cpu.first_U)
    assert torch.equal(on_cuda.last_U, on_cpu.last_U)
    torch.testing.assert_close(on_cuda.scores_S, on_cpu.scores_S)
