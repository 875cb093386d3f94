"""The kernels written by hand, against float64; they run on a GPU alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.attention.attention import fused_attention, masked_softmax
from transduce.nn.attention.short import fits, short_attention
from transduce.nn.depthwise import Borders, DepthwiseConvolution
from transduce.nn.embedding.tokens import TokenEmbedding, applies, embedded
from transduce.nn.gradient_sums import GRADIENT_SUMS
from transduce.nn.linear import linear
from transduce.nn.loss import cross_entropy, r_drop_cross_entropy
from transduce.nn.masks import Mask, Segments, causal
from transduce.nn.pass_buffers import pass_buffers
from transduce.nn.positions import ExplicitPositions, Positioned, Sinusoidal
from transduce.nn.residual import ResidualStream, keep_and_normalise, normalise

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

HALF = torch.autocast("cuda", dtype=torch.bfloat16)


def apart(ours: Tensor, exact: Tensor) -> float:
    ours, exact = ours.detach().double(), exact.detach().double()
    return float((ours - exact).norm() / exact.norm())


def lengths_of(count: int, longest: int) -> Tensor:
    lengths = torch.randint(0, longest + 1, (count,), device="cuda")
    lengths[0] = longest
    return lengths


def offsets_of(lengths: Tensor) -> Tensor:
    return F.pad(lengths.cumsum(0), (1, 0)).int()


def exact_attention(
    query: Tensor, keys: Tensor, values: Tensor, heads: int, mask: Mask | None
) -> Tensor:
    """Head by head, in the tensors' own precision."""
    T, S = query.shape[1], keys.shape[1]
    visible = None if mask is None else mask.dense(T, S, "cuda")
    outs = []
    for q, k, v in zip(*(x.chunk(heads, dim=-1) for x in (query, keys, values)), strict=True):
        outs.append(masked_softmax(q @ k.mT / q.shape[-1] ** 0.5, visible) @ v)
    return torch.cat(outs, dim=-1)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("T", "S", "K", "is_causal"),
    [
        (32, 32, 64, True),
        (7, 19, 64, False),
        (64, 64, 32, True),
        (9, 9, 128, True),
        (16, 5, 16, False),
    ],
)
def test_short_attention(T: int, S: int, K: int, is_causal: bool, packed: bool) -> None:
    torch.manual_seed(1)
    B, H = 6, 4
    mask = causal() if is_causal else Mask()
    if packed:
        targets, sources = lengths_of(B, T), lengths_of(B, S)
        sources = targets if is_causal else sources
        longest = max(T, S)
        mask &= Mask(segments=Segments(offsets_of(targets), offsets_of(sources), longest))
        B, T, S = 1, int(targets.sum()), int(sources.sum())
    query = torch.randn(B, T, (3 if is_causal else 1) * H * K, device="cuda").bfloat16()
    memory = None if is_causal else torch.randn(B, S, 2 * H * K, device="cuda").bfloat16()
    grad = torch.randn(B, T, H * K, device="cuda").bfloat16()
    ours = [x.clone().requires_grad_() for x in (query, memory) if x is not None]
    plain = mask if packed or is_causal else None
    assert fits(ours[0][..., : H * K], S, H, plain)
    out = short_attention(ours[0], ours[1] if len(ours) > 1 else None, H, plain)
    out.backward(grad)
    exact = [x.double().requires_grad_() for x in (query, memory) if x is not None]
    parts = (
        torch.cat(exact, dim=-1).chunk(3, dim=-1)
        if is_causal
        else (exact[0], *exact[1].chunk(2, -1))
    )
    reference = exact_attention(*parts, H, plain)
    reference.backward(grad.double())
    assert apart(out, reference) < 5e-3
    for mine, theirs in zip(ours, exact, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert apart(mine.grad, theirs.grad) < 6e-3


@pytest.mark.parametrize("is_causal", [True, False])
def test_long_sequences_in_one_row(is_causal: bool) -> None:
    """torch's kernel for that, called through our masks."""
    torch.manual_seed(1)
    H, K = 4, 64
    lengths = torch.tensor([200, 0, 3, 130, 64], device="cuda")
    segments = Segments(offsets_of(lengths), offsets_of(lengths), 256)
    mask = Mask(causal=is_causal, segments=segments)
    N = int(lengths.sum())
    inputs = [torch.randn(1, H, N, K, device="cuda").bfloat16() for _ in range(3)]
    ours = [x.clone().requires_grad_() for x in inputs]
    exact = [x.double().requires_grad_() for x in inputs]
    grad = torch.randn(1, H, N, K, device="cuda").bfloat16()
    out = fused_attention(*ours, mask=mask)
    out.backward(grad)
    visible = mask.dense(N, N, "cuda")
    assert visible is not None
    weights = masked_softmax(exact[0] @ exact[1].mT / K**0.5, visible[:, None])
    reference = weights @ exact[2]
    reference.backward(grad.double())
    assert apart(out, reference) < 5e-3
    for mine, theirs in zip(ours, exact, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert apart(mine.grad, theirs.grad) < 6e-3


def test_dropped_attention_weights_are_the_same_forward_and_back() -> None:
    """With values of one-hot vectors, the output is the weights themselves."""
    torch.manual_seed(1)
    B, T, K = 64, 32, 32
    query = torch.zeros(B, T, K, device="cuda", dtype=torch.bfloat16)
    keys = torch.zeros(B, T, K, device="cuda", dtype=torch.bfloat16)
    values = torch.eye(K, device="cuda", dtype=torch.bfloat16).expand(B, T, K)
    memory = torch.cat((keys, values), dim=-1).requires_grad_()
    weights = short_attention(query, memory, 1, None, dropout=0.25)
    kept = weights.detach() > 0
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.01)
    assert float(weights.detach().float().mean() * T) == pytest.approx(1.0, abs=0.02)
    assert not torch.equal(kept[0], kept[1])
    weights.backward(torch.ones_like(weights))
    assert memory.grad is not None
    by_values = memory.grad[..., K:]  # each value's gradient: the sum of the weights it got
    expected = weights.float().sum(dim=1)[..., None].expand(B, T, K)
    torch.testing.assert_close(by_values.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("rows", "D", "F_"), [(1000, 64, 96), (24576, 512, 2048), (7, 512, 33)])
def test_linear(rows: int, D: int, F_: int, relu: bool) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(rows, D, device="cuda"), torch.randn(F_, D, device="cuda") / D**0.5
    bias, grad = torch.randn(F_, device="cuda"), torch.randn(rows, F_, device="cuda").bfloat16()
    ours = [t.clone().requires_grad_() for t in (x.bfloat16(), weight, bias)]
    exact = [t.detach().double().requires_grad_() for t in ours]
    with HALF:
        y = linear(ours[0][None], ours[1], ours[2], relu)[0]
    assert y.dtype == torch.bfloat16
    y.backward(grad)
    z = exact[0] @ exact[1].T + exact[2]
    reference = z.relu() if relu else z
    # Where rounding moved a number across zero the gate differs: the same gate for both.
    gate = (y > 0) if relu else torch.ones_like(y, dtype=torch.bool)
    z.backward(grad.double() * gate)
    assert apart(y, reference) < 5e-3
    for mine, theirs in zip(ours, exact, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert apart(mine.grad, theirs.grad) < 6e-3


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("R", [1, 5, 64, 70, 300])
@pytest.mark.parametrize(("D", "F_"), [(512, 1536), (2048, 512), (33, 7)])
@torch.inference_mode()
def test_linear_of_few_rows(D: int, F_: int, R: int, relu: bool) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(R, 1, D, device="cuda"), torch.randn(F_ + 3, D, device="cuda")
    bias = torch.randn(F_, device="cuda").bfloat16()
    x, weight = x.bfloat16(), (weight / D**0.5).bfloat16()[3:]
    for b in (bias, None):
        y = linear(x, weight, b, relu)
        exact = x.double() @ weight.double().T + (0 if b is None else b.double())
        assert y.shape == (R, 1, F_)
        assert apart(y, exact.relu() if relu else exact) < 5e-3


@pytest.mark.parametrize("V", [50, 10_000])
def test_two_passes_that_should_agree(V: int) -> None:
    torch.manual_seed(1)
    N, D = 300, 64
    targets = torch.randint(1, V, (N,), device="cuda")
    targets[::7] = 0
    features = torch.randn(2 * N, D, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(V, D, device="cuda") / 8).bfloat16().requires_grad_()
    loss = r_drop_cross_entropy(features, weight, None, targets.repeat(2), 3.0, 0.1)
    found = torch.autograd.grad(loss.total, (features, weight))
    exact = [x.detach().cpu().double().requires_grad_() for x in (features, weight)]
    right = r_drop_cross_entropy(*exact, None, targets.cpu().repeat(2), 3.0, 0.1)
    assert apart(loss.total.cpu(), right.total) < 2e-3
    assert apart(loss.nll.cpu(), right.nll) < 2e-3
    assert int(loss.tokens) == int(right.tokens)
    for mine, theirs in zip(found, torch.autograd.grad(right.total, exact), strict=True):
        assert apart(mine.cpu(), theirs) < 2e-2


def test_a_gradient_that_was_changed_has_lost_its_sums() -> None:
    """The bias's gradient is what the rows add up to now, not when they were first added up."""
    bias = torch.zeros(8, device="cuda", requires_grad=True)
    weight = torch.ones(8, 16, device="cuda", requires_grad=True)
    x = torch.ones(5, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for changed, expected in ((False, 7.0), (True, 10.0)):
        with HALF:
            y = linear(x, weight, bias)
        grad = torch.ones_like(y)
        GRADIENT_SUMS.put(grad, torch.full((8,), 7.0, device="cuda"))  # not true, so that it shows
        if changed:
            grad.add_(1.0)
        (found,) = torch.autograd.grad(y, bias, grad)
        assert found.tolist() == [expected] * 8


@pytest.mark.parametrize("with_positions", [False, True])
def test_embedded(with_positions: bool) -> None:
    torch.manual_seed(1)
    table = torch.randn(90, 300, device="cuda", requires_grad=True)
    waves = torch.randn(40, 300, device="cuda")
    tokens = torch.randint(0, 90, (1, 501), device="cuda")
    places = torch.randint(0, 40, (1, 501), device="cuda")
    grad = torch.randn(1, 501, 300, device="cuda")
    positions = (waves, places) if with_positions else None
    x = embedded(tokens, table, 3.0, positions, dropout=0.0)
    (mine,) = torch.autograd.grad(x, table, grad)
    exact = 3.0 * table[tokens] + (waves[places] if with_positions else 0.0)
    (theirs,) = torch.autograd.grad(exact, table, grad)
    torch.testing.assert_close(x, exact)
    torch.testing.assert_close(mine, theirs)


def test_what_is_embedded_drops_the_same_forward_and_back() -> None:
    table = torch.ones(2000, 512, device="cuda", requires_grad=True)
    tokens = torch.randperm(2000, device="cuda")[None]
    x, again = (embedded(tokens, table, 1.0, None, dropout=0.25) for _ in range(2))
    assert float((x > 0).float().mean()) == pytest.approx(0.75, abs=0.002)
    assert not torch.equal(x, again)
    x.sum().backward()
    assert table.grad is not None
    torch.testing.assert_close(table.grad[tokens[0]], x[0].detach())


def test_norm_and_what_goes_past_it_give_one_gradient() -> None:
    torch.manual_seed(1)
    norm = nn.LayerNorm(512, device="cuda")
    x = torch.randn(50, 9, 512, device="cuda", requires_grad=True)
    x64 = x.detach().double().requires_grad_()
    with HALF:
        kept, y = keep_and_normalise(norm, x, half=False)
    (kept * 2 + y * y).sum().backward()
    y64 = F.layer_norm(x64, (512,))
    (x64 * 2 + y64 * y64).sum().backward()
    assert torch.equal(kept, x)
    assert apart(x.grad, x64.grad) < 1e-5


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("width", [512, 300, 1024])
@pytest.mark.parametrize("adds", [False, True])
def test_norm_of_the_sum(width: int, adds: bool, kind: type[nn.Module]) -> None:
    torch.manual_seed(1)
    norm = kind(width, eps=1e-6, device="cuda")
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    exact = kind(width, eps=1e-6, device="cuda", dtype=torch.float64)
    exact.load_state_dict(norm.state_dict())
    x = (3 * torch.randn(37, 11, width, device="cuda") + 1).requires_grad_()
    change = torch.randn_like(x).bfloat16().requires_grad_() if adds else None
    x64 = x.detach().double().requires_grad_()
    change64 = change.detach().double().requires_grad_() if change is not None else None
    by_y, by_kept = torch.randn_like(x), torch.randn_like(x)
    with HALF:
        kept, y = keep_and_normalise(norm, ResidualStream(x, change), half=False)
        assert normalise(norm, ResidualStream(x, change), half=True).dtype == torch.bfloat16
    torch.autograd.backward([kept, y], [by_kept, by_y])
    kept64 = x64 if change64 is None else x64 + change64
    y64 = exact(kept64)
    torch.autograd.backward([kept64, y64], [by_kept.double(), by_y.double()])
    assert apart(kept, kept64) < 1e-6
    assert apart(y, y64) < 1e-6
    pairs = [(x, x64), *zip(norm.parameters(), exact.parameters(), strict=True)]
    for mine, theirs in pairs:
        assert mine.grad is not None
        assert theirs.grad is not None
        assert apart(mine.grad, theirs.grad) < 1e-6
    if change is not None and change64 is not None:
        assert apart(change.grad, change64.grad) < 5e-3


def test_the_dropped_sum_drops_the_same_forward_and_back() -> None:
    norm = nn.LayerNorm(512, device="cuda")
    x = torch.randn(100, 33, 512, device="cuda", requires_grad=True)
    change = torch.ones(100, 33, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with HALF:
        out, y = keep_and_normalise(norm, ResidualStream(x, change, 0.1), half=False)
        again, _ = keep_and_normalise(norm, ResidualStream(x, change, 0.1), half=False)
        calm, _ = keep_and_normalise(norm, ResidualStream(x, change), half=False)
    added = (out - x).detach()
    assert float((added > 0.5).float().mean()) == pytest.approx(0.9, abs=0.002)
    assert float(added.mean()) == pytest.approx(1.0, abs=0.002)
    assert not torch.equal(out, again)
    torch.testing.assert_close(calm, x + 1)
    torch.testing.assert_close(y, F.layer_norm(out, (512,)))
    out.sum().backward()
    assert change.grad is not None
    assert torch.equal(change.grad > 0.5, added > 0.5)
    torch.testing.assert_close(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("vocabulary", [45, 8000, 40000])
@pytest.mark.parametrize("half", [False, True])
def test_cross_entropy(vocabulary: int, half: bool) -> None:
    torch.manual_seed(1)
    features = 0.3 * torch.randn(300, 64, device="cuda")
    weight = 0.3 * torch.randn(vocabulary, 64, device="cuda")
    bias = torch.randn(vocabulary, device="cuda")
    targets = torch.randint(1, vocabulary, (300,), device="cuda")
    targets[:20] = 0
    ours = [t.clone().requires_grad_() for t in (features, weight, bias)]
    exact = [t.double().requires_grad_() for t in (features, weight, bias)]
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
        loss = cross_entropy(ours[0][None], ours[1], ours[2], targets[None], 0.1, ignore=0)
    (loss.total / 7).backward()
    logits = exact[0] @ exact[1].T + exact[2]
    reference = F.cross_entropy(
        logits, targets, label_smoothing=0.1, ignore_index=0, reduction="sum"
    )
    (reference / 7).backward()
    assert int(loss.tokens) == 280
    assert apart(loss.total, reference) < (1e-3 if half else 1e-5)
    for mine, theirs in zip(ours, exact, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert apart(mine.grad, theirs.grad) < (1e-2 if half else 1e-3)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("causal_one", [False, True])
@pytest.mark.parametrize(("width", "taps"), [(384, 7), (144, 15), (70, 31)])
def test_depthwise_convolution(width: int, taps: int, causal_one: bool, packed: bool) -> None:
    torch.manual_seed(0)
    part = DepthwiseConvolution(width, taps, causal_one).cuda()
    borders = None
    x = torch.randn(9, 83, width, device="cuda")
    if packed:
        offsets = offsets_of(lengths_of(60, 40))
        x = torch.randn(1, int(offsets[-1]), width, device="cuda")
        borders = Borders.of(Segments(offsets, offsets, 40), x.shape[1])
    half = x.bfloat16().requires_grad_()
    exact = half.detach().double().requires_grad_()
    grad = torch.randn_like(x)
    found = part(half, borders)
    assert found.dtype == torch.float32
    mine = torch.autograd.grad(found, [half, *part.parameters()], grad)
    part.double()
    wanted = part(exact, borders)
    theirs = torch.autograd.grad(wanted, [exact, *part.parameters()], grad.double())
    assert apart(found, wanted) < 1e-5
    for one, other, limit in zip(mine, theirs, (4e-3, 1e-5, 1e-5), strict=True):
        assert one.shape == other.shape
        assert apart(one, other) < limit


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("positions", [False, True])
@torch.inference_mode()
def test_embeddings_of_a_decoding_step(kind: torch.dtype, positions: bool) -> None:
    """The same numbers as by torch's operations; in bfloat16 to the last bit."""
    torch.manual_seed(1)
    place = Positioned(Sinusoidal(40), "add") if positions else None
    embedding = TokenEmbedding(50, 40, place, 0.1).eval().to("cuda", kind)
    tokens_BT = torch.randint(0, 50, (9, 1), device="cuda")
    at_BT = torch.randint(0, 20, (9, 1), device="cuda", dtype=torch.int32)
    start = ExplicitPositions(at_BT, 20)
    expected = embedding.table(tokens_BT) * embedding.scale
    if place is not None:
        expected = place(expected, start)
    assert applies(tokens_BT, embedding.table.weight)
    close = {"rtol": 0.0, "atol": 0.0 if kind == torch.bfloat16 else 1e-6}
    torch.testing.assert_close(embedding(tokens_BT, start), expected, **close)


def test_the_gradient_of_a_bias_before_attention_has_nothing_of_empty_sequences() -> None:
    """Its sums are in a buffer that is not filled before: here it has held no numbers."""
    torch.manual_seed(1)
    H, K = 2, 16
    lengths = torch.tensor([5, 0, 3, 0, 7], device="cuda")
    offsets = offsets_of(lengths)
    mask = causal() & Mask(segments=Segments(offsets, offsets, 7))
    x = torch.randn(1, 15, H * K, device="cuda").bfloat16()
    weight = torch.randn(3 * H * K, H * K, device="cuda", requires_grad=True)
    bias = torch.zeros(3 * H * K, device="cuda", requires_grad=True)
    with HALF, pass_buffers():
        projected = linear(x, weight, bias)
        projected.retain_grad()
        out = short_attention(projected, None, H, mask)
    torch.full((5, 3 * H * K), torch.nan, device="cuda")
    out.backward(torch.randn_like(out))
    assert projected.grad is not None
    assert bias.grad is not None
    assert apart(bias.grad, projected.grad[0].double().sum(dim=0)) < 5e-3
