"""Recurrent networks against torch's own modules, the lectures' equations and plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from transduce.nn.recurrent.cells import CELLS, LSTM, Cell, Elman, PeepholeLSTM
from transduce.nn.recurrent.stack import (
    Recurrent,
    SumOverLayers,
    reverse_sequences,
    rotate_sequences,
)

TORCH_MODULES: dict[str, type[nn.RNNBase]] = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
LENGTHS = torch.tensor([3, 7, 1, 5])


def agree(ours: Tensor, theirs: Tensor, tolerance: float | None = None) -> None:
    tolerance = TOLERANCE[ours.dtype] if tolerance is None else tolerance
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def run_by_steps(network: Cell | Recurrent, x_BSD: Tensor, state):
    outputs = []
    for x_BD in x_BSD.unbind(1):
        output_BD, state = network.step(x_BD, state)
        outputs.append(output_BD)
    return torch.stack(outputs, dim=1), state


def oracle_of(stack: Recurrent, name: str, input_width: int, width: int) -> nn.RNNBase:
    """torch's module of the same shape, with the stack's weights."""
    oracle = TORCH_MODULES[name](
        input_width,
        width,
        num_layers=stack.layers,
        bidirectional=stack.directions == 2,
        batch_first=True,
    ).to(next(stack.parameters()).dtype)
    with torch.no_grad():
        for cell, weights in zip(stack.cells, oracle.all_weights, strict=True):
            for ours, theirs in zip(cell.weights(), weights, strict=True):
                theirs.copy_(ours)
    return oracle


def as_torch_state(state) -> Tensor | tuple[Tensor, ...]:
    parts = tuple(torch.stack(part) for part in zip(*state, strict=True))
    return parts if len(parts) > 1 else parts[0]


def random_state(stack: Recurrent, batch: int, like: Tensor):
    return [tuple(torch.randn_like(part) for part in cell) for cell in stack.zeros(batch, like)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", list(TORCH_MODULES))
def test_a_stack_is_torchs_own_module(name, ragged, bidirectional, dtype):
    torch.manual_seed(1)
    stack = Recurrent(name, 6, 5, layers=3, bidirectional=bidirectional).to(dtype)
    oracle = oracle_of(stack, name, 6, 5)
    x_BSD = torch.randn(4, 7, 6, dtype=dtype)
    state = random_state(stack, 4, x_BSD)

    if ragged:
        outputs, end = stack(x_BSD, state, LENGTHS)
        packed = pack_padded_sequence(x_BSD, LENGTHS, batch_first=True, enforce_sorted=False)
        packed_outputs, expected_end = oracle(packed, as_torch_state(state))
        expected, _ = pad_packed_sequence(packed_outputs, batch_first=True, total_length=7)
    else:
        outputs, end = stack(x_BSD, state)
        expected, expected_end = oracle(x_BSD, as_torch_state(state))

    assert stack.output_width == outputs.shape[-1] == (10 if bidirectional else 5)
    agree(outputs, expected)
    for ours, theirs in zip(
        [as_torch_state(end)] if name != "lstm" else as_torch_state(end),
        [expected_end] if name != "lstm" else expected_end,
        strict=True,
    ):
        agree(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", list(TORCH_MODULES))
def test_repeated_steps_are_torchs_own_module(name, dtype):
    torch.manual_seed(2)
    stack = Recurrent(name, 6, 5, layers=2).to(dtype)
    oracle = oracle_of(stack, name, 6, 5)
    x_BSD = torch.randn(4, 7, 6, dtype=dtype)
    state = random_state(stack, 4, x_BSD)
    outputs, end = run_by_steps(stack, x_BSD, state)
    expected, expected_end = oracle(x_BSD, as_torch_state(state))
    agree(outputs, expected)
    agree(end[-1][0], (expected_end[0] if name == "lstm" else expected_end)[-1])


@pytest.mark.parametrize("name", list(CELLS))
def test_step_and_forward_of_a_cell_are_one_function(name):
    torch.manual_seed(3)
    cell = CELLS[name](6, 5).double()
    x_BSD = torch.randn(4, 7, 6, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn_like(part) for part in cell.zeros(4, x_BSD))
    outputs, end = cell(x_BSD, state)
    stepped, stepped_end = run_by_steps(cell, x_BSD, state)
    agree(outputs, stepped)
    for ours, theirs in zip(end, stepped_end, strict=True):
        agree(ours, theirs)
    weight = torch.randn_like(outputs)
    variables = [x_BSD, *cell.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad((outputs * weight).sum(), variables),
        torch.autograd.grad((stepped * weight).sum(), variables),
        strict=True,
    ):
        agree(ours, theirs)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("name", list(CELLS))
def test_step_and_forward_of_a_stack_are_one_function(name, skip):
    torch.manual_seed(4)
    stack = Recurrent(name, 6, 5, layers=3, skip=skip, dropout=0.5).double().eval()
    x_BSD = torch.randn(4, 7, 6, dtype=torch.float64)
    outputs, end = stack(x_BSD)
    stepped, stepped_end = run_by_steps(stack, x_BSD, stack.zeros(4, x_BSD))
    agree(outputs, stepped)
    assert len(end) == len(stepped_end) == 3
    for ours, theirs in zip(end, stepped_end, strict=True):
        for our_part, their_part in zip(ours, theirs, strict=True):
            agree(our_part, their_part)


@pytest.mark.parametrize("name", list(CELLS))
def test_a_sequence_may_be_read_in_two_pieces(name):
    torch.manual_seed(5)
    stack = Recurrent(name, 6, 5, layers=2).double()
    x_BSD = torch.randn(2, 7, 6, dtype=torch.float64)
    whole, _ = stack(x_BSD)
    first, state = stack(x_BSD[:, :4])
    second, _ = stack(x_BSD[:, 4:], state)
    agree(torch.cat([first, second], dim=1), whole)


def lecture_peephole(cell: PeepholeLSTM, x_SD: Tensor, h: list[Tensor], c: list[Tensor]):
    """Lecture D's six equations for one sequence, one number at a time."""
    width = cell.width

    def weights(matrix: Tensor) -> list[list[list[Tensor]]]:
        return [[list(row) for row in block] for block in matrix.chunk(4)]

    (W_xi, W_xf, W_xc, W_xo) = weights(cell.W_x.weight)
    (W_hi, W_hf, W_hc, W_ho) = weights(cell.W_h.weight)
    (b_i, b_f, b_c, b_o) = (list(bias) for bias in cell.W_x.bias.chunk(4))

    def dot(row: list[Tensor], vector: list[Tensor]) -> Tensor:
        return sum(a * b for a, b in zip(row, vector, strict=True))

    outputs = []
    for x_D in x_SD:
        x = list(x_D)
        new_h, new_c = [], []
        for d in range(width):
            i = 1 / (
                1 + (-(dot(W_xi[d], x) + dot(W_hi[d], h) + cell.W_ci[d] * c[d] + b_i[d])).exp()
            )
            f = 1 / (
                1 + (-(dot(W_xf[d], x) + dot(W_hf[d], h) + cell.W_cf[d] * c[d] + b_f[d])).exp()
            )
            c_d = f * c[d] + i * (dot(W_xc[d], x) + dot(W_hc[d], h) + b_c[d]).tanh()
            o = 1 / (1 + (-(dot(W_xo[d], x) + dot(W_ho[d], h) + cell.W_co[d] * c_d + b_o[d])).exp())
            new_c.append(c_d)
            new_h.append(o * c_d.tanh())
        h, c = new_h, new_c
        outputs.append(torch.stack(h))
    return torch.stack(outputs), torch.stack(h), torch.stack(c)


def test_the_peephole_lstm_is_lecture_d_with_its_gradients():
    torch.manual_seed(6)
    cell = PeepholeLSTM(3, 4).double()
    x_BSD = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    h_BD, c_BD = torch.randn(2, 2, 4, dtype=torch.float64)
    outputs, (h_end, c_end) = cell(x_BSD, (h_BD, c_BD))
    expected = [
        lecture_peephole(cell, x_SD, list(h), list(c))
        for x_SD, h, c in zip(x_BSD, h_BD, c_BD, strict=True)
    ]
    expected_outputs, expected_h, expected_c = map(torch.stack, zip(*expected, strict=True))
    agree(outputs, expected_outputs)
    agree(h_end, expected_h)
    agree(c_end, expected_c)

    weight = torch.randn_like(outputs)
    variables = [x_BSD, *cell.parameters()]
    ours = torch.autograd.grad((outputs * weight).sum() + c_end.sum(), variables)
    theirs = torch.autograd.grad((expected_outputs * weight).sum() + expected_c.sum(), variables)
    for our_gradient, their_gradient in zip(ours, theirs, strict=True):
        assert their_gradient.abs().max() > 0
        agree(our_gradient, their_gradient)


def test_without_peepholes_it_is_the_plain_lstm():
    torch.manual_seed(7)
    peephole, plain = PeepholeLSTM(3, 4).double(), LSTM(3, 4).double()
    W_x, W_h, bias_x, bias_h = plain.weights()
    with torch.no_grad():
        peephole.W_x.weight.copy_(W_x)
        peephole.W_x.bias.copy_(bias_x + bias_h)
        peephole.W_h.weight.copy_(W_h)
        for diagonal in (peephole.W_ci, peephole.W_cf, peephole.W_co):
            diagonal.zero_()
    x_BSD = torch.randn(2, 5, 3, dtype=torch.float64)
    agree(peephole(x_BSD)[0], plain(x_BSD)[0])


@pytest.mark.parametrize("name", list(CELLS))
def test_gradcheck_with_lengths(name):
    torch.manual_seed(8)
    cell = CELLS[name](2, 2).double()
    x_BSD = torch.randn(3, 3, 2, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn_like(part).requires_grad_() for part in cell.zeros(3, x_BSD))

    def run(x: Tensor, *start: Tensor) -> tuple[Tensor, ...]:
        outputs, end = cell(x, start, torch.tensor([2, 3, 0]))
        return (outputs, *end)

    assert torch.autograd.gradcheck(run, (x_BSD, *state))


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", list(CELLS))
def test_padding_never_matters(name, bidirectional, skip):
    torch.manual_seed(9)
    stack = Recurrent(name, 6, 5, layers=2, bidirectional=bidirectional, skip=skip).double()
    lengths = torch.tensor([3, 7, 0, 5])
    x_BSD = torch.randn(4, 9, 6, dtype=torch.float64)  # longer than the longest sequence
    start = random_state(stack, 4, x_BSD)
    outputs, end = stack(x_BSD, start, lengths)
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(outputs[row, length:], torch.zeros_like(outputs[row, length:]))
        own_start = [tuple(part[row : row + 1] for part in cell) for cell in start]
        if length == 0:
            alone_end = own_start
        else:
            alone, alone_end = stack(x_BSD[row : row + 1, :length], own_start)
            agree(outputs[row : row + 1, :length], alone)
        for cell, alone_cell in zip(end, alone_end, strict=True):
            for part, alone_part in zip(cell, alone_cell, strict=True):
                agree(part[row : row + 1], alone_part)


@pytest.mark.parametrize("name", list(CELLS))
def test_what_stands_in_the_padding_changes_nothing_and_gets_no_gradient(name):
    torch.manual_seed(10)
    stack = Recurrent(name, 6, 5, layers=2, bidirectional=True)
    x_BSD = torch.randn(4, 7, 6)
    padding_BS = torch.arange(7) >= LENGTHS[:, None]
    other_BSD = x_BSD.masked_fill(padding_BS[..., None], 100.0).requires_grad_()
    outputs, _ = stack(x_BSD, lengths_B=LENGTHS)
    other_outputs, _ = stack(other_BSD, lengths_B=LENGTHS)
    assert torch.equal(outputs, other_outputs)
    other_outputs.square().sum().backward()
    assert other_BSD.grad is not None
    assert other_BSD.grad[padding_BS].abs().max() == 0
    assert other_BSD.grad[~padding_BS].abs().min() > 0


def test_back_propagation_through_time_is_lecture_cs_recursion():
    """dL/dh_{i,t} = ∂L/∂h_{i,t} + Σ_j (dL/dh_{j,t+1}) (∂h_{j,t+1}/∂h_{i,t})."""
    torch.manual_seed(11)
    width, steps = 3, 5
    cell = Elman(2, width).double()
    U, V, bias_U, bias_V = cell.weights()
    x_SD = torch.randn(steps, 2, dtype=torch.float64)
    W = torch.randn(4, width, dtype=torch.float64)  # o_t = softmax(W h_t), as in the lecture
    labels = [2, 0, 3, 1, 1]
    h_1SD, _ = cell(x_SD[None])
    loss = -sum((W @ h_1SD[0, t]).log_softmax(-1)[labels[t]] for t in range(steps))
    loss.backward()

    with torch.no_grad():
        h = h_1SD[0].tolist()
        partial = []  # ∂L/∂h_{i,t}: only through o_t
        for t in range(steps):
            error = (W @ h_1SD[0, t]).softmax(-1)
            error[labels[t]] -= 1
            partial.append((W.T @ error).tolist())
        total = [[0.0] * width for _ in range(steps)]
        for t in reversed(range(steps)):
            for i in range(width):
                total[t][i] = partial[t][i]
                if t + 1 < steps:
                    # ∂h_{j,t+1}/∂h_{i,t} = (1 - h_{j,t+1}²) V_ji
                    total[t][i] += math.fsum(
                        total[t + 1][j] * (1 - h[t + 1][j] ** 2) * V[j, i].item()
                        for j in range(width)
                    )
        before_tanh = torch.tensor(
            [[total[t][i] * (1 - h[t][i] ** 2) for i in range(width)] for t in range(steps)],
            dtype=torch.float64,
        )
        previous_h = torch.cat([torch.zeros(1, width, dtype=torch.float64), h_1SD[0, :-1]])
        agree(U.grad, before_tanh.T @ x_SD)
        agree(V.grad, before_tanh.T @ previous_h)
        agree(bias_U.grad, before_tanh.sum(0))
        agree(bias_V.grad, before_tanh.sum(0))


@pytest.mark.parametrize("name", list(CELLS))
def test_the_skip_stack_is_lecture_ds_deep_network(name):
    torch.manual_seed(12)
    layers, width = 3, 5
    stack = Recurrent(name, 6, width, layers, skip=True).double()
    x_BSD = torch.randn(4, 7, 6, dtype=torch.float64)
    outputs, _ = stack(x_BSD)
    states = stack.zeros(4, x_BSD)
    W, b_e = stack.sum_over_layers.W_he.weight, stack.sum_over_layers.W_he.bias
    for t in range(7):
        estimate_BE = b_e.expand(4, width)
        h_BD = x_BSD.new_empty(4, 0)  # there is nothing below the lowest layer
        for layer in range(layers):
            seen = torch.cat([x_BSD[:, t], h_BD], dim=1)
            h_BD, states[layer] = stack.cells[layer].step(seen, states[layer])
            estimate_BE = estimate_BE + h_BD @ W[:, layer * width : (layer + 1) * width].T
        agree(outputs[:, t], estimate_BE)


def test_the_sum_over_layers_has_a_width_of_its_own():
    torch.manual_seed(13)
    module = SumOverLayers(3, 2, 7)
    low, high = torch.randn(2, 4, 3)
    W, b_e = module.W_he.weight, module.W_he.bias
    agree(module([low, high]), b_e + low @ W[:, :3].T + high @ W[:, 3:].T)


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    extra=st.integers(0, 2),
    width=st.sampled_from([None, 3]),
)
def test_reversing_turns_each_row_within_its_length(lengths, extra, width):
    steps = max(lengths) + extra
    shape = (len(lengths), steps) if width is None else (len(lengths), steps, width)
    x = torch.arange(math.prod(shape)).view(shape)
    lengths_B = torch.tensor(lengths)
    turned = reverse_sequences(x, lengths_B)
    for row, length in enumerate(lengths):
        ours, original = turned[row].tolist(), x[row].tolist()
        assert ours == original[:length][::-1] + original[length:]
    assert torch.equal(reverse_sequences(turned, lengths_B), x)


def test_reversing_without_lengths_turns_the_whole_row():
    assert reverse_sequences(torch.tensor([[1, 2, 3]])).tolist() == [[3, 2, 1]]


def test_dropout_falls_between_layers_only():
    torch.manual_seed(14)
    x_BSD = torch.randn(2, 3, 6)
    alone = Recurrent("gru", 6, 5, layers=1, dropout=0.9).train()
    assert torch.equal(alone(x_BSD)[0], alone(x_BSD)[0])
    stack = Recurrent("gru", 6, 5, layers=2, dropout=1.0).train()
    top = stack.cells[1]
    agree(stack(x_BSD)[0], top(torch.zeros(2, 3, 5))[0])
    agree(stack.step(x_BSD[:, 0], stack.zeros(2, x_BSD))[0], top(torch.zeros(2, 1, 5))[0][:, 0])


@pytest.mark.parametrize("name", ["lstm", "lstm-peephole"])
def test_the_forget_gate_starts_open(name):
    parameters = CELLS[name](6, 5).named_parameters()
    total = sum(parameter for parameter_name, parameter in parameters if "bias" in parameter_name)
    assert torch.equal(total[5:10], torch.ones(5))
    assert not torch.equal(total[:5], torch.ones(5))


@pytest.mark.parametrize("name", list(CELLS))
def test_weights_start_within_one_over_root_width(name):
    torch.manual_seed(15)
    for parameter_name, parameter in CELLS[name](30, 16).named_parameters():
        if "bias" not in parameter_name:
            assert 0.15 < parameter.abs().max() <= 0.25, parameter_name


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("name", list(CELLS))
def test_autocast_gives_nearly_the_same(name, lengths):
    torch.manual_seed(16)
    stack = Recurrent(name, 6, 5, layers=2, bidirectional=True)
    x_BSD = torch.randn(4, 7, 6)
    expected, _ = stack(x_BSD, lengths_B=lengths)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, state = stack(x_BSD.bfloat16(), lengths_B=lengths)
        stack(x_BSD.bfloat16(), state, lengths)
    outputs.float().sum().backward()
    agree(outputs.float(), expected, 0.03)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in stack.parameters())


def test_the_loop_over_time_compiles_into_one_graph():
    torch.manual_seed(17)
    cell = PeepholeLSTM(6, 5)
    x_BSD = torch.randn(4, 3, 6)
    compiled = torch.compile(cell, backend="eager", fullgraph=True)
    agree(compiled(x_BSD)[0], cell(x_BSD)[0])


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Recurrent("gur", 6, 5, 1), "no recurrent cell 'gur'.*'gru'"),
        (lambda: Recurrent("gru", 6, 5, 0), "at least one layer, not 0"),
        (
            lambda: Recurrent("gru", 6, 5, 1, bidirectional=True).step(torch.zeros(1, 6), []),
            "bidirectional=False",
        ),
        (
            lambda: Recurrent("gru", 6, 5, 2)(torch.zeros(1, 3, 6), [(torch.zeros(1, 5),)]),
            "needs 2 states.*given 1",
        ),
        (lambda: CELLS["gru"](6, 5)(torch.zeros(4, 6, 6), None, LENGTHS), "from 1 to 7"),
        (lambda: CELLS["lstm-peephole"](6, 5)(torch.zeros(4, 6, 6), None, LENGTHS), "from 1 to 7"),
        (lambda: CELLS["lstm"](6, 5)(torch.zeros(4, 7, 6), None, LENGTHS - 2), "from -1 to 5"),
        (lambda: CELLS["lstm"](6, 5)(torch.zeros(3, 7, 6), None, LENGTHS), "each of the 3"),
    ],
)
def test_mistakes_are_reported_in_a_sentence(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


def test_each_row_is_rotated_by_its_own_number() -> None:
    x_BSD = torch.tensor([[1, 2, 3], [4, 5, 6]])[:, :, None]
    by_B = torch.tensor([1, 2])
    turned_BSD = rotate_sequences(x_BSD, by_B)
    assert turned_BSD[:, :, 0].tolist() == [[2, 3, 1], [6, 4, 5]]
    assert torch.equal(rotate_sequences(turned_BSD, -by_B), x_BSD)
