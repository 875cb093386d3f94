"""The Conformer block against plain loops in float64, and each row as if it were alone."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from transduce.nn.attention.relative import RelativeAttention, by_key
from transduce.nn.conformer import (
    ConformerBlock,
    Convolution,
    MaskedBatchNorm,
)
from transduce.nn.depthwise import Borders, DepthwiseConvolution
from transduce.nn.masks import Mask, Segments, padding, window
from transduce.nn.positions import Rotary, Sinusoidal

B, S, WIDTH, HEADS, HIDDEN, KERNEL = 3, 7, 8, 2, 12, 5
K = WIDTH // HEADS
LENGTHS = torch.tensor([7, 1, 4])
REAL = torch.arange(S) < LENGTHS[:, None]
POSITIONS = {
    "relative": lambda: Sinusoidal(WIDTH),
    "rotary": lambda: Rotary(K),
    "none": lambda: None,
}


def shaken(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module.double()


def block(positions: str = "relative", **options: object) -> ConformerBlock:
    made = ConformerBlock(
        WIDTH, HEADS, HIDDEN, kernel=KERNEL, positions=POSITIONS[positions](), **options
    )
    shaken(made)
    return made


def wave(distance: int) -> Tensor:
    """sin and cos of the distance at geometric frequencies; negative distances as well."""
    angles = [distance / 10000 ** (2 * k / WIDTH) for k in range(WIDTH // 2)]
    pairs = [value for angle in angles for value in (math.sin(angle), math.cos(angle))]
    return torch.tensor(pairs, dtype=torch.float64)


def attention_by_loops(part: RelativeAttention, x_SD: Tensor) -> Tensor:
    projected = x_SD @ part.in_projection.weight.T + part.in_projection.bias
    query_SD, keys_SD, values_SD = projected.chunk(3, dim=1)
    context_SD = torch.zeros_like(x_SD)
    for h in range(HEADS):
        own = slice(h * K, (h + 1) * K)
        u, v = part.content_bias_HK[h], part.distance_bias_HK[h]
        for t in range(len(x_SD)):
            scores = []
            for s in range(len(x_SD)):
                distance_K = (part.distance_projection.weight @ wave(t - s))[own]
                content = (query_SD[t, own] + u) @ keys_SD[s, own]
                scores.append((content + (query_SD[t, own] + v) @ distance_K) / math.sqrt(K))
            weights_S = torch.stack(scores).softmax(dim=0)
            for s in range(len(x_SD)):
                context_SD[t, own] += weights_S[s] * values_SD[s, own]
    return context_SD @ part.out_projection.weight.T + part.out_projection.bias


def convolution_by_loops(part: Convolution, x_SD: Tensor) -> Tensor:
    expanded_SE = x_SD @ part.expand.weight.T + part.expand.bias
    gated_SD = expanded_SE[:, :WIDTH] * torch.sigmoid(expanded_SE[:, WIDTH:])
    assert part.depthwise.bias is not None
    convolved_SD = torch.zeros_like(x_SD)
    for t in range(len(x_SD)):
        for d in range(WIDTH):
            convolved_SD[t, d] = part.depthwise.bias[d]
            for k in range(KERNEL):
                place = t + k - KERNEL // 2
                if 0 <= place < len(x_SD):
                    convolved_SD[t, d] += part.depthwise.weight[d, 0, k] * gated_SD[place, d]
    normed_SD = norm_by_loops(part.norm, convolved_SD)
    swished_SD = normed_SD * torch.sigmoid(normed_SD)
    return swished_SD @ part.contract.weight.T + part.contract.bias


def norm_by_loops(norm: nn.Module, x_SD: Tensor) -> Tensor:
    if isinstance(norm, MaskedBatchNorm):  # not in training
        spread_D = (norm.running_variance_D + norm.eps).sqrt()
        return (x_SD - norm.running_mean_D) / spread_D * norm.weight + norm.bias
    assert isinstance(norm, nn.LayerNorm)
    mean_S1 = x_SD.mean(dim=1, keepdim=True)
    variance_S1 = (x_SD - mean_S1).square().mean(dim=1, keepdim=True)
    return (x_SD - mean_S1) / (variance_S1 + norm.eps).sqrt() * norm.weight + norm.bias


def block_by_loops(part: ConformerBlock, x_SD: Tensor) -> Tensor:
    """The four lines of the paper, section 2.4."""

    def feed_forward(layer: nn.Module, x_SD: Tensor) -> Tensor:
        hidden_SF = x_SD @ layer.expand.weight.T + layer.expand.bias
        hidden_SF = hidden_SF * torch.sigmoid(hidden_SF)
        return hidden_SF @ layer.contract.weight.T + layer.contract.bias

    def norm(residual: nn.Module, x_SD: Tensor) -> Tensor:
        return norm_by_loops(residual.norm, x_SD)

    assert isinstance(part.self_attention, RelativeAttention)
    normed_SD = norm(part.first_feed_forward_residual, x_SD)
    x_SD = x_SD + feed_forward(part.first_feed_forward, normed_SD) / 2
    normed_SD = norm(part.self_attention_residual, x_SD)
    x_SD = x_SD + attention_by_loops(part.self_attention, normed_SD)
    normed_SD = norm(part.convolution_residual, x_SD)
    x_SD = x_SD + convolution_by_loops(part.convolution, normed_SD)
    normed_SD = norm(part.last_feed_forward_residual, x_SD)
    x_SD = x_SD + feed_forward(part.last_feed_forward, normed_SD) / 2
    return norm_by_loops(part.norm, x_SD)


@pytest.mark.parametrize("convolution_norm", ["layer", "batch"])
def test_the_block_is_the_papers(convolution_norm: str) -> None:
    part = block(convolution_norm=convolution_norm).eval()
    if isinstance(part.convolution.norm, MaskedBatchNorm):
        part.convolution.norm.running_mean_D.normal_()
        part.convolution.norm.running_variance_D.uniform_(0.5, 2.0)
    x_BSD = torch.randn(B, S, WIDTH, dtype=torch.float64)
    made_BSD = part(x_BSD, padding(LENGTHS, S), REAL)
    for b, length in enumerate(LENGTHS):
        expected_SD = block_by_loops(part, x_BSD[b, :length])
        torch.testing.assert_close(made_BSD[b, :length], expected_SD, rtol=0, atol=1e-10)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("convolution_norm", ["layer", "batch"])
def test_a_batch_gives_what_each_row_alone_gives(positions: str, convolution_norm: str) -> None:
    part = block(positions, convolution_norm=convolution_norm).eval()
    x_BSD = torch.randn(B, S, WIDTH, dtype=torch.float64)
    x_BSD[~REAL] = 1e3
    made_BSD = part(x_BSD, padding(LENGTHS, S), REAL)
    for b, length in enumerate(LENGTHS):
        alone_1SD = part(x_BSD[b : b + 1, :length])
        torch.testing.assert_close(made_BSD[b, :length], alone_1SD[0], rtol=0, atol=1e-10)


def test_more_padding_changes_nothing_in_training() -> None:
    """A batch norm reads the whole batch, and still none of its padding."""
    x_BSD = torch.randn(B, S, WIDTH, dtype=torch.float64)
    wider_BSD = F.pad(x_BSD, (0, 0, 0, 4), value=9.0)
    wider_real_BS = F.pad(REAL, (0, 4))
    made_BSD = block(convolution_norm="batch")(x_BSD, padding(LENGTHS, S), REAL)
    wide_BSD = block(convolution_norm="batch")(wider_BSD, padding(LENGTHS, S + 4), wider_real_BS)
    torch.testing.assert_close(wide_BSD[:, :S][REAL], made_BSD[REAL])


@pytest.mark.parametrize("positions", POSITIONS)
def test_padding_gets_no_gradient(positions: str) -> None:
    part = block(positions, convolution_norm="batch")
    x_BSD = torch.randn(B, S, WIDTH, dtype=torch.float64, requires_grad=True)
    part(x_BSD, padding(LENGTHS, S), REAL)[REAL].square().sum().backward()
    assert x_BSD.grad is not None
    assert not x_BSD.grad[~REAL].any()
    assert x_BSD.grad[REAL].all()


@pytest.mark.parametrize("positions", ["relative", "rotary"])
def test_gradients_are_those_of_the_function(positions: str) -> None:
    part = block(positions, convolution_norm="batch")
    names = [name for name, _ in part.named_parameters()]
    x_BSD = torch.randn(2, 4, WIDTH, dtype=torch.float64, requires_grad=True)
    lengths_B = torch.tensor([4, 3])
    real_BS = torch.arange(4) < lengths_B[:, None]

    def run(x_BSD: Tensor, *parameters: Tensor) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in part.named_buffers()}
        state = dict(zip(names, parameters, strict=True)) | buffers
        inputs = (x_BSD, padding(lengths_B, 4), real_BS)
        made_BSD: Tensor = functional_call(part, state, inputs)
        return made_BSD[real_BS]

    assert torch.autograd.gradcheck(run, (x_BSD, *part.parameters()), fast_mode=True)


def test_distances_find_their_keys() -> None:
    T = 5
    distance_BHTR = torch.arange(T - 1, -T, -1).expand(2, 3, T, -1).double()
    expected_TT = torch.arange(T)[:, None] - torch.arange(T)
    assert torch.equal(by_key(distance_BHTR), expected_TT.expand(2, 3, -1, -1).double())
    part = RelativeAttention(WIDTH, HEADS, Sinusoidal(WIDTH)).double()
    expected_RD = torch.stack([wave(distance) for distance in range(T - 1, -T, -1)])
    torch.testing.assert_close(part.distances(T), expected_RD)


def test_relative_attention_sees_distance_and_nothing_else() -> None:
    """A sequence shifted within padding is attended to as before."""
    part = shaken(RelativeAttention(WIDTH, HEADS, Sinusoidal(WIDTH)))
    x_BSD = torch.randn(1, 4, WIDTH, dtype=torch.float64)
    later_BSD = F.pad(x_BSD, (0, 0, 3, 0), value=5.0)
    seen = Mask(visible_BTS=(torch.arange(7) >= 3)[None, None])
    torch.testing.assert_close(part(later_BSD, mask=seen)[:, 3:], part(x_BSD))
    swapped_BSD = x_BSD[:, [1, 0, 2, 3]]
    assert not torch.allclose(part(swapped_BSD)[:, 3], part(x_BSD)[:, 3])


def test_watching_relative_attention_changes_nothing() -> None:
    part = block().eval()
    x_BSD = torch.randn(B, S, WIDTH, dtype=torch.float64)
    plain_BSD = part(x_BSD, padding(LENGTHS, S) & window(2, 2), REAL)
    seen: list[Tensor] = []
    part.self_attention.watch = seen.append
    assert torch.equal(part(x_BSD, padding(LENGTHS, S) & window(2, 2), REAL), plain_BSD)
    assert seen[0].shape == (B, HEADS, S, S)
    torch.testing.assert_close(seen[0][0].sum(dim=-1), torch.ones(HEADS, S, dtype=torch.float64))
    assert not seen[0][0, :, 0, 3:].any()


@pytest.mark.parametrize("steps", [1, 3])
def test_batch_norm_over_real_frames_is_torchs(steps: int) -> None:
    ours, theirs = MaskedBatchNorm(WIDTH).double(), nn.BatchNorm1d(WIDTH).double()
    shaken(ours)
    theirs.weight.data, theirs.bias.data = ours.weight.data.clone(), ours.bias.data.clone()
    for _ in range(steps):
        x_BSD = 3 * torch.randn(B, S, WIDTH, dtype=torch.float64) + 2
        x_BSD[~REAL] = 1e4
        torch.testing.assert_close(ours(x_BSD, REAL)[REAL], theirs(x_BSD[REAL]))
    torch.testing.assert_close(ours.running_mean_D, theirs.running_mean)
    torch.testing.assert_close(ours.running_variance_D, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x_BSD)[REAL], theirs.eval()(x_BSD[REAL]))
    whole_BSD = torch.randn(B, S, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(
        ours.train()(whole_BSD).flatten(0, 1), theirs.train()(whole_BSD.flatten(0, 1))
    )


@pytest.mark.parametrize("positions", POSITIONS)
def test_half_precision_stays_near(positions: str) -> None:
    part = block(positions).float().eval()
    x_BSD = torch.randn(B, S, WIDTH)
    exact_BSD = part(x_BSD, padding(LENGTHS, S), REAL)
    with torch.autocast("cpu", torch.bfloat16):
        near_BSD = part(x_BSD, padding(LENGTHS, S), REAL)
    assert (near_BSD.float() - exact_BSD).abs().max() < 0.15


def test_each_dropout_acts_in_training_alone() -> None:
    x_BSD = torch.randn(1, S, WIDTH, dtype=torch.float64)
    for kind in ("dropout", "attention_dropout", "activation_dropout"):
        part = block(**{kind: 0.5})
        assert not torch.equal(part(x_BSD), part(x_BSD))
        part.eval()
        assert torch.equal(part(x_BSD), part(x_BSD))


def test_mistakes_are_reported() -> None:
    with pytest.raises(ValueError, match="must be odd, not 4: make it 3 or 5"):
        Convolution(WIDTH, 4)
    with pytest.raises(ValueError, match='"layer" or "batch", not "group"'):
        Convolution(WIDTH, 5, "group")
    with pytest.raises(ValueError, match="Positions of width 6 do not fit attention of width 8"):
        RelativeAttention(WIDTH, HEADS, Sinusoidal(6))
    relative = RelativeAttention(WIDTH, HEADS, Sinusoidal(WIDTH))
    with pytest.raises(ValueError, match="no keys of another"):
        relative(torch.randn(1, 2, WIDTH), torch.randn(1, 2, WIDTH))
    offsets = torch.tensor([0, 2], dtype=torch.int32)
    packed = Mask(segments=Segments(offsets, offsets, 2))
    for unable in (block("relative"), block("rotary", convolution_norm="batch")):
        assert not unable.packs
        with pytest.raises(ValueError, match="no packed sequences"):
            unable(torch.randn(1, 2, WIDTH), packed)


def test_a_frozen_batch_norm_keeps_its_statistics() -> None:
    norm = MaskedBatchNorm(3)
    x_BSD = torch.randn(2, 5, 3) * 4 + 7
    norm.requires_grad_(False).train()
    expected = norm.eval()(x_BSD)
    assert torch.equal(norm.train()(x_BSD), expected)
    assert torch.equal(norm.running_mean_D, torch.zeros(3))
    norm.requires_grad_(True)
    assert not torch.allclose(norm(x_BSD), expected)
    assert not torch.equal(norm.running_mean_D, torch.zeros(3))


def test_threads_may_convolve_at_once() -> None:
    """On ARM, torch's own kernel gives other numbers while two threads are in it."""
    layers = [DepthwiseConvolution(16, 5) for _ in range(2)]
    x_BSD = torch.randn(2, 40, 16)

    def outputs(_: int) -> list[Tensor]:
        with torch.inference_mode():
            return [layer(x_BSD) for layer in layers * 20]

    expected = outputs(0)
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(outputs, range(64)):
            for one_BSD, other_BSD in zip(found, expected, strict=True):
                torch.testing.assert_close(one_BSD, other_BSD)


# -------------------------------------------------------------------------- packed sequences


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", ["rotary", "none"])
def test_packed_sequences_do_not_see_each_other(positions: str, causal: bool) -> None:
    """Outputs and gradients are those of each sequence alone; one of them is empty."""
    part = block(positions, causal=causal)
    lengths = [7, 1, 0, 4]
    rows = [torch.randn(1, n, WIDTH, dtype=torch.float64) for n in lengths]
    offsets = F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()
    assert part.packs
    together_1SD = part(torch.cat(rows, 1), Mask(segments=Segments(offsets, offsets, 7)))
    alone_1SD = torch.cat([part(row) for row in rows if row.shape[1]], 1)
    torch.testing.assert_close(together_1SD, alone_1SD)
    weights = list(part.parameters())
    mine, theirs = (
        torch.autograd.grad((y_1SD * alone_1SD.detach()).square().sum(), weights)
        for y_1SD in (together_1SD, alone_1SD)
    )
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_borders_of_packed_sequences() -> None:
    offsets = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    borders = Borders.of(Segments(offsets, offsets, 3), 5)
    assert borders.start_S.tolist() == [0, 0, 2, 2, 2]
    assert borders.end_S.tolist() == [2, 2, 5, 5, 5]
