"""Gates of recurrent cells over time: against the equations, written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from transduce.nn.recurrent.cells import CELLS, GRU, LSTM, PeepholeLSTM
from transduce.nn.recurrent.gates import gate_names, states_and_gates

torch.manual_seed(1)
X = torch.randn(2, 6, 3)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", CELLS)
def test_the_hidden_states_are_those_of_the_cell(kind: str) -> None:
    torch.manual_seed(2)
    cell = CELLS[kind](3, 4).eval()
    start = tuple(torch.randn(2, 4) for _ in range(cell.state_parts))
    with torch.no_grad():
        for state in (None, start):
            outputs_BSD, end = cell(X, state)
            found = states_and_gates(cell, X, state)
            close(found["hidden"], outputs_BSD)
            if cell.state_parts > 1:
                close(found["cell"][:, -1], end[1])
            assert set(gate_names(cell)) <= set(found)
            for name in gate_names(cell):
                assert found[name].shape == (2, 6, 4)
                assert ((found[name] > 0) & (found[name] < 1)).all()


def test_the_gates_of_a_gru_say_how_much_is_kept() -> None:
    torch.manual_seed(3)
    cell = GRU(3, 4)
    with torch.no_grad():
        found = states_and_gates(cell, X)
        W_x, W_h, bias_x, bias_h = cell.weights()
        h_BD = torch.zeros(2, 4)
        for t in range(6):
            from_x, from_h = X[:, t] @ W_x.T + bias_x, h_BD @ W_h.T + bias_h
            new_BD = (from_x[:, 8:] + found["reset"][:, t] * from_h[:, 8:]).tanh()
            kept = found["update"][:, t]
            h_BD = (1 - kept) * new_BD + kept * h_BD
            close(h_BD, found["hidden"][:, t])


def test_the_gates_of_an_lstm_let_in_keep_and_let_out() -> None:
    torch.manual_seed(4)
    plain, peephole = LSTM(3, 4), PeepholeLSTM(3, 4)
    with torch.no_grad():
        W_x, W_h, bias_x, bias_h = plain.weights()
        for zero in (peephole.W_ci, peephole.W_cf, peephole.W_co):
            zero.zero_()
        peephole.W_x.weight.copy_(W_x)
        peephole.W_x.bias.copy_(bias_x + bias_h)
        peephole.W_h.weight.copy_(W_h)
        found, same = states_and_gates(plain, X), states_and_gates(peephole, X)
        for name in ("input", "forget", "output", "hidden", "cell"):
            close(same[name], found[name])
        h_BD = c_BD = torch.zeros(2, 4)
        for t in range(6):
            new_BD = (X[:, t] @ W_x.T + bias_x + h_BD @ W_h.T + bias_h)[:, 8:12].tanh()
            c_BD = found["forget"][:, t] * c_BD + found["input"][:, t] * new_BD
            h_BD = found["output"][:, t] * c_BD.tanh()
            close(h_BD, found["hidden"][:, t])


def test_peepholes_see_the_memory() -> None:
    torch.manual_seed(5)
    cell = PeepholeLSTM(3, 4)
    with torch.no_grad():
        before = states_and_gates(cell, X)
        cell.W_co.add_(3.0)
        after = states_and_gates(cell, X)
    first = (after["output"] - before["output"])[:, 0]
    assert (first.sign() == before["cell"][:, 0].sign()).all()
    close(after["forget"][:, 0], before["forget"][:, 0])
