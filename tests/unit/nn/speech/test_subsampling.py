"""Half, a quarter or an eighth of the frames, each of a known stretch, nothing of the padding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from transduce.nn.speech.subsampling import FACTORS, Subsampling, few_sizes

BANDS, WIDTH = 20, 6


def subsampling(factor: int = 4) -> Subsampling:
    torch.manual_seed(0)
    return Subsampling(BANDS, WIDTH, channels=3, factor=factor).double()


@pytest.mark.parametrize(("factor", "states"), [(4, [5, 4]), (2, [10, 7]), (8, [2, 1])])
def test_it_reads_as_the_formula(factor: int, states: list[int]) -> None:
    part = subsampling(factor)
    mel_BTM = torch.randn(2, 25, BANDS, dtype=torch.float64)
    made_BSD, lengths_B = part(mel_BTM, torch.tensor([25, 19]))
    S = made_BSD.shape[1]
    assert states[0] == S
    assert lengths_B.tolist() == states

    def convolve(x: torch.Tensor, layer: torch.nn.Conv2d, stride: int) -> torch.Tensor:
        """By loops over what is made: channel, time, frequency."""
        T, G = x.shape[1:]
        depthwise = layer.groups > 1
        out = x.new_zeros(layer.out_channels, (T - 3) // stride + 1, (G - 3) // 2 + 1)
        assert layer.bias is not None
        for c in range(out.shape[0]):
            for t in range(out.shape[1]):
                for g in range(out.shape[2]):
                    seen = x[c, None] if depthwise else x
                    patch = seen[:, stride * t : stride * t + 3, 2 * g : 2 * g + 3]
                    out[c, t, g] = (patch * layer.weight[c]).sum() + layer.bias[c]
        return out

    hidden_CSG = convolve(mel_BTM[0][None], part.first, 2).clamp(min=0)
    hidden_CSG = convolve(hidden_CSG, part.second, 1 if factor == 2 else 2).clamp(min=0)
    if part.third is not None:
        depthwise, pointwise = part.third
        hidden_CSG = convolve(hidden_CSG, depthwise, 2)
        weight_CC = pointwise.weight[:, :, 0, 0]
        hidden_CSG = torch.einsum("oc,csg->osg", weight_CC, hidden_CSG)
        hidden_CSG = (hidden_CSG + pointwise.bias[:, None, None]).clamp(min=0)
    for t in range(S):
        expected_D = F.linear(
            hidden_CSG[:, t].flatten(), part.projection.weight, part.projection.bias
        )
        torch.testing.assert_close(made_BSD[0, t], expected_D)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("frames", range(0, 40))
def test_lengths_are_those_of_the_convolutions(frames: int, factor: int) -> None:
    part = subsampling(factor)
    made_BSD, lengths_B = part(
        torch.randn(1, frames, BANDS, dtype=torch.float64), torch.tensor([frames])
    )
    assert lengths_B.item() == (0 if frames < part.reach else made_BSD.shape[1])
    assert made_BSD.shape[1] >= 1


@pytest.mark.parametrize("factor", FACTORS)
def test_padding_never_leaks(factor: int) -> None:
    part = subsampling(factor)
    frames_B = torch.tensor([40, 7, 8, 13, 6, 31])
    mel_BTM = torch.randn(len(frames_B), 40, BANDS, dtype=torch.float64)
    for b, frames in enumerate(frames_B):
        mel_BTM[b, frames:] = 1e6
    together_BSD, lengths_B = part(mel_BTM, frames_B)
    for b, frames in enumerate(frames_B):
        alone_1SD, _ = part(mel_BTM[b : b + 1, :frames], frames[None])
        S = int(lengths_B[b])
        torch.testing.assert_close(together_BSD[b, :S], alone_1SD[0, :S])


@pytest.mark.parametrize("factor", FACTORS)
def test_a_frame_sees_what_it_should(factor: int) -> None:
    mel_BTM = torch.randn(1, 40, BANDS, dtype=torch.float64, requires_grad=True)
    part = subsampling(factor)
    made_BSD, _ = part(mel_BTM, torch.tensor([40]))
    for t in range(made_BSD.shape[1]):
        (gradient,) = torch.autograd.grad(made_BSD[0, t].sum(), mel_BTM, retain_graph=True)
        seen = gradient[0].any(dim=-1).nonzero().flatten().tolist()
        assert seen == list(range(factor * t, factor * t + part.reach))


def test_too_few_bands_are_reported() -> None:
    with pytest.raises(ValueError, match="at least 7 bands, not 6"):
        Subsampling(6, 4)
    with pytest.raises(ValueError, match="at least 15 bands, not 14"):
        Subsampling(14, 4, factor=8)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("frames", [15, 16, 17, 18, 37, 64])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_rows_as_one_image_are_rows_by_themselves(frames: int, rows: int, factor: int) -> None:
    part, mel_BTM = subsampling(factor), torch.randn(rows, frames, BANDS, dtype=torch.float64)
    torch.testing.assert_close(part._as_one_image(mel_BTM), part._convolve(mel_BTM))


def test_sizes_are_few_and_near() -> None:
    asked = range(1, 50_000)
    sizes = [few_sizes(size) for size in asked]
    assert all(
        0 <= size - minimum < max(64, minimum / 8)
        for size, minimum in zip(sizes, asked, strict=True)
    )
    assert len(set(sizes)) < 150
    assert sizes == sorted(sizes)
