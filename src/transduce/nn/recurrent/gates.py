"""What happens inside a recurrent cell: its gates over time.

Kernels keep none of it. Here the equations of a cell (cells.py) are done once more, step by step,
for whoever wants to look.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.nn.recurrent.cells import GRU, LSTM, Cell, KernelCell, PeepholeLSTM, State

HIDDEN, CELL = "hidden", "cell"
"""The output h_t, and the memory c_t of an LSTM."""


def gate_names(cell: Cell) -> tuple[str, ...]:
    """The gates of a cell: how much is let in, kept and let out."""
    if isinstance(cell, GRU):
        return ("reset", "update")
    if isinstance(cell, LSTM | PeepholeLSTM):
        return ("input", "forget", "output")
    return ()


def states_and_gates(cell: Cell, x_BSD: Tensor, start: State | None = None) -> dict[str, Tensor]:
    """The gates of a cell, its output `hidden` and an LSTM's memory `cell`, each [B, S, D].

    start: the state before the first step, zeros if not given.
    """
    dtype = next(cell.parameters()).dtype
    x_BSD = x_BSD.to(dtype)
    state = cell.zeros(len(x_BSD), x_BSD) if start is None else start
    state = tuple(part_BD.to(dtype) for part_BD in state)
    steps: dict[str, list[Tensor]] = {}
    for x_BD in x_BSD.unbind(1):
        found, state = _step(cell, x_BD, state)
        for name, value_BD in found.items():
            steps.setdefault(name, []).append(value_BD)
    return {name: torch.stack(values, dim=1) for name, values in steps.items()}


def _step(cell: Cell, x_BD: Tensor, state: State) -> tuple[dict[str, Tensor], State]:
    gates: dict[str, Tensor] = {}
    if isinstance(cell, GRU):
        x_r_BD, x_z_BD, _, h_r_BD, h_z_BD, _ = _sums(cell, x_BD, state[0], 3)
        gates = {"reset": torch.sigmoid(x_r_BD + h_r_BD), "update": torch.sigmoid(x_z_BD + h_z_BD)}
    elif isinstance(cell, LSTM):
        x_i, x_f, _, x_o, h_i, h_f, _, h_o = _sums(cell, x_BD, state[0], 4)
        sums = {"input": x_i + h_i, "forget": x_f + h_f, "output": x_o + h_o}
        gates = {name: torch.sigmoid(sum_BD) for name, sum_BD in sums.items()}
    elif isinstance(cell, PeepholeLSTM):
        h_BD, c_BD = state
        sum_i_BD, sum_f_BD, sum_c_BD, sum_o_BD = (cell.W_x(x_BD) + cell.W_h(h_BD)).chunk(4, dim=-1)
        i_BD = torch.sigmoid(sum_i_BD + cell.W_ci * c_BD)
        f_BD = torch.sigmoid(sum_f_BD + cell.W_cf * c_BD)
        c_BD = f_BD * c_BD + i_BD * torch.tanh(sum_c_BD)
        gates = {
            "input": i_BD,
            "forget": f_BD,
            "output": torch.sigmoid(sum_o_BD + cell.W_co * c_BD),
        }
    h_BD, after = cell.step(x_BD, state)
    memory = {CELL: after[1]} if len(after) > 1 else {}
    return {**gates, HIDDEN: h_BD, **memory}, after


def _sums(cell: KernelCell, x_BD: Tensor, h_BD: Tensor, parts: int) -> tuple[Tensor, ...]:
    """What input and state say to each gate, in the order of the kernel's weights."""
    W_x, W_h, bias_x, bias_h = cell.weights()
    from_x, from_h = F.linear(x_BD, W_x, bias_x), F.linear(h_BD, W_h, bias_h)
    return (*from_x.chunk(parts, dim=-1), *from_h.chunk(parts, dim=-1))
