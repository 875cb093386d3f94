"""A convolutional network by the paper's formulas, one sentence at a time; what its state keeps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.data.batches.packing import pack
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from transduce.models.convolutional import ConvolutionalState
from transduce.nn.masks import Mask, Segments

D, V = 12, 17
LENGTHS = torch.tensor([6, 2, 4, 1])
SOURCE = torch.tensor(
    [[5, 6, 7, 8, 9, 3], [9, 3, 0, 0, 0, 0], [4, 4, 5, 3, 0, 0], [3, 0, 0, 0, 0, 0]]
)
TARGET = torch.tensor([[2, 5, 6, 7, 11], [2, 9, 4, 6, 3], [2, 16, 3, 0, 0], [2, 3, 0, 0, 0]])
HALF = math.sqrt(0.5)


def network(**part: Any) -> EncoderDecoder:
    torch.manual_seed(3)
    side = {"kind": "convolutional", "layers": 3, "kernel": 3, **part}
    shape = {"width": D, "dropout": 0.2, "encoder": side, "decoder": {**side, "layers": 2}}
    net = build(recipe.Model.model_validate(shape), Vocabulary(V, V)).double().eval()
    with torch.no_grad():  # biases begin at zero, where a forgotten one is not seen
        for parameter in net.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return net


def embedded(front: Any, tokens: Tensor) -> Tensor:
    """√D · w + p, of which the paper has a tenth."""
    rows = []
    for place, token in enumerate(tokens):
        wave = [0.0] * D
        if front.positions is not None and hasattr(front.positions.positions, "max_length"):
            wave = front.positions.positions.table_TD[place].tolist()
        elif front.positions is not None:
            for k in range(D // 2):
                angle = place / 10000 ** (2 * k / D)
                wave[2 * k], wave[2 * k + 1] = math.sin(angle), math.cos(angle)
        rows.append(
            front.table.weight[token] * math.sqrt(D) + torch.tensor(wave, dtype=torch.float64)
        )
    return 0.1 * torch.stack(rows)


def convolved(part: Any, x_SD: Tensor, t: int, places: list[int]) -> Tensor:
    both_E = part.product.bias.clone()
    for k, place in enumerate(places):
        if 0 <= t + place < len(x_SD):
            both_E = both_E + part.product.weight[:, k * D : (k + 1) * D] @ x_SD[t + place]
    return both_E[:D] * torch.sigmoid(both_E[D:])


def linear(layer: Any, x_D: Tensor) -> Tensor:
    result: Tensor = layer.weight @ x_D + layer.bias
    return result


def features_by_loops(net: Any, source_S: Tensor, target_T: Tensor) -> Tensor:
    e_SD = embedded(net.front, source_S)
    x_SD = torch.stack([linear(net.encoder.into, e_D) for e_D in e_SD])
    for block in net.encoder.blocks:
        places = range(len(x_SD))
        h = [convolved(block.convolution, x_SD, t, [-1, 0, 1]) for t in places]
        x_SD = torch.stack([(x_SD[t] + h[t]) * HALF for t in places])
    z_SD = torch.stack([linear(net.encoder.out_of, x_D) for x_D in x_SD])

    g_TD = embedded(net.decoder.embedding, target_T)
    x_TD = torch.stack([linear(net.decoder.into, g_D) for g_D in g_TD])
    for block in net.decoder.blocks:
        rows = []
        for i in range(len(x_TD)):
            h_D = convolved(block.convolution, x_TD, i, [-2, -1, 0])
            d_D = (linear(block.query_projection, h_D) + g_TD[i]) * HALF
            a_S = torch.stack([d_D @ z_D for z_D in z_SD]).softmax(dim=0)
            c_D = sum(a * (z_D + e_D) * HALF for a, z_D, e_D in zip(a_S, z_SD, e_SD, strict=True))
            c_D = linear(block.context_projection, c_D * math.sqrt(len(z_SD)))
            rows.append((x_TD[i] + (h_D + c_D) * HALF) * HALF)
        x_TD = torch.stack(rows)
    return torch.stack([linear(net.decoder.out_of, x_D) / 0.1 for x_D in x_TD])


@torch.no_grad()
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
def test_the_network_is_its_formulas_in_every_row(positions: str) -> None:
    net = network(positions=positions)
    found_BTD = net(SOURCE, LENGTHS, TARGET)
    for row, length in enumerate(LENGTHS.tolist()):
        expected_TD = features_by_loops(net, SOURCE[row, :length], TARGET[row])
        torch.testing.assert_close(found_BTD[row], expected_TD, rtol=1e-9, atol=1e-9)


def test_no_gradient_comes_from_the_future_or_from_padding() -> None:
    net = network()
    vectors: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Tensor) -> Tensor:
            vectors[name] = output.detach().requires_grad_()
            return vectors[name]

        return hook

    net.front.register_forward_hook(keep("source"))
    net.decoder.embedding.register_forward_hook(keep("target"))
    features_BTD = net(SOURCE, LENGTHS, TARGET)
    for t in range(TARGET.shape[1]):
        source_BSD, target_BTD = torch.autograd.grad(
            features_BTD[:, t].square().sum(),
            [vectors["source"], vectors["target"]],
            retain_graph=True,
        )
        assert (target_BTD[:, t + 1 :] == 0).all()
        assert (target_BTD[:, t] != 0).all()
        for row, length in enumerate(LENGTHS.tolist()):
            assert (source_BSD[row, length:] == 0).all()
            assert (source_BSD[row, :length] != 0).any(dim=1).all()


@torch.no_grad()
def test_a_state_copies_the_source_only_when_rows_change_their_source() -> None:
    net = network()
    state = net.start(SOURCE, LENGTHS)
    assert isinstance(state, ConvolutionalState)
    state.reorder(torch.tensor([0, 0, 2, 2]))
    assert state.source is not None
    kept_BSD = state.source.keys_BSD
    _, state = net.step(torch.full((4,), 2), state)
    state.reorder(torch.tensor([1, 1, 3, 2]))  # within the same sources
    assert state.source.keys_BSD is kept_BSD
    state.reorder(torch.tensor([2, 3, 0, 1]))
    assert state.source.keys_BSD is not kept_BSD
    assert torch.equal(state.source.keys_BSD, kept_BSD[[2, 2, 0, 0]])
    assert state.row_B is not None
    assert state.row_B.tolist() == [2, 2, 0, 0]


@torch.no_grad()
def test_it_keeps_no_more_than_a_kernel_sees() -> None:
    net = network(kernel=5)
    state = net.start(SOURCE, LENGTHS)
    for _ in range(9):
        _, state = net.step(torch.full((4,), 5), state)
    assert isinstance(state, ConvolutionalState)
    assert [tuple(past.shape) for past in state.past] == [(4, 4, D)] * 2
    assert state.length == 9


def test_sequences_in_one_row_are_padded_instead() -> None:
    net = network()
    assert not net.packs(16)
    offsets = torch.tensor([0, 2, 4], dtype=torch.int32)
    mask = Mask(segments=Segments(offsets, offsets, 2))
    with pytest.raises(ValueError, match="one sequence a row"):
        net.encoder(torch.zeros(1, 4, D).double(), offsets, mask)
    batch = collate([[5, 6], [7]], [[5], [6, 7, 8]])
    with pytest.raises(ValueError, match="one sequence a row"):
        net.packed_loss(pack(batch))


def test_in_half_precision_the_stream_is_whole() -> None:
    net = network().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory = net.encode(SOURCE, LENGTHS)
        assert memory.states_BSD.dtype == torch.float32
        half_BTD = net(SOURCE, LENGTHS, TARGET).detach().float()
        net.loss(SOURCE, LENGTHS, TARGET, 0.1).total.backward()
    whole_BTD = net(SOURCE, LENGTHS, TARGET).detach()
    assert float((half_BTD - whole_BTD).norm() / whole_BTD.norm()) < 0.03
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_the_parameters_are_counted() -> None:
    """Two linear layers around each stack; a block is one product; attention has two more."""
    square = D * D + D
    block = 3 * D * 2 * D + 2 * D
    encoder, decoder = 2 * square + 3 * block, 2 * square + 2 * (block + 2 * square)
    tables = 2 * V * D + V  # target and output are one
    assert sum(p.numel() for p in network().parameters()) == encoder + decoder + tables
