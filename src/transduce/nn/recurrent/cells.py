"""Recurrent cells: Elman, GRU, LSTM, and the LSTM with peepholes.

A cell is one layer in one direction. Its `step` is the equation, one time step at a time, for a
decoder that feeds on its own output; its `forward` is the same equation over a whole sequence, as
fast as the machine can. Both read the same weights and give the same numbers.
"""

from __future__ import annotations

import warnings
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from transduce.nn.masks import readable, real_positions

# The state of a cell: (h_BD,) or (h_BD, c_BD). The batch is the first dimension of every part, so
# that beam search reorders any state with one index_select per part.
State = tuple[Tensor, ...]

SHUT = 1e4  # σ(−SHUT) is 0 and σ(SHUT) is 1, exactly
# An LSTM in a CUDA graph has one more column of weights, copied beside the others by intent.
warnings.filterwarnings("ignore", message=".*weights are not part of single contiguous chunk")

Steps = TypeVar("Steps", Tensor, PackedSequence)


class Cell(nn.Module):
    """One recurrent layer in one direction: `input_width` features for each step in, `width`
    out.
    """

    state_parts = 1

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.input_width = input_width
        self.width = width

    def zeros(self, batch: int, like: Tensor) -> State:
        """The state before the first step, each part [batch, width], on the device of `like`."""
        return tuple(like.new_zeros(batch, self.width) for _ in range(self.state_parts))

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        """One time step: the output h_t and the state to give to the next step."""
        raise NotImplementedError

    def forward(
        self, x_BSD: Tensor, state: State | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """The whole sequence: every h_t, and the state after each sequence's own last step.

        Beyond a sequence's length its outputs are zero; a sequence of length 0 keeps its state.
        """
        raise NotImplementedError


class KernelCell(Cell):
    """A cell whose weights are in a module of torch, which has a fast kernel for sequences."""

    module: ClassVar[type[nn.RNN | nn.GRU | nn.LSTM]]

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__(input_width, width)
        self.kernel: nn.RNNBase = self.module(input_width, width, batch_first=True)

    def weights(self) -> list[nn.Parameter]:
        """Input weight, recurrent weight and the bias of each; gates stacked along rows."""
        return self.kernel.all_weights[0]

    def forward(
        self, x_BSD: Tensor, state: State | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, State]:
        # The precision of the weights is used, not autocast's: autocast has run cuDNN in fp16 where
        # bf16 was asked for (ATen's AutocastRNN.cpp), and oneDNN in a bf16 that some processors
        # lack.
        with torch.autocast(x_BSD.device.type, enabled=False):
            x_BSD = x_BSD.to(self.weights()[0].dtype)
            state = self.zeros(len(x_BSD), x_BSD) if state is None else state
            state = tuple(part_BD.to(x_BSD.dtype) for part_BD in state)
            if lengths_B is None:
                return self._run_kernel(x_BSD, state)
            if readable(lengths_B):
                return self._run_ragged(x_BSD, state, lengths_B)
            return self._run_held(x_BSD, state, lengths_B)

    def _run_ragged(self, x_BSD: Tensor, start: State, lengths_B: Tensor) -> tuple[Tensor, State]:
        steps = x_BSD.shape[1]
        lengths_B = lengths_B.to(torch.int64)
        check_lengths(x_BSD, lengths_B)
        if bool((lengths_B == steps).all()):
            return self._run_kernel(x_BSD, start)
        # pack_padded_sequence allows no empty sequence: one step is taken and then undone.
        packed = pack_padded_sequence(
            x_BSD, lengths_B.clamp(min=1), batch_first=True, enforce_sorted=False
        )
        packed_outputs, state = self._run_kernel(packed, start)
        outputs_BSD, _ = pad_packed_sequence(packed_outputs, batch_first=True, total_length=steps)
        empty_B1 = (lengths_B == 0).to(x_BSD.device).unsqueeze(1)
        state = tuple(
            torch.where(empty_B1, before_BD, after_BD)
            for before_BD, after_BD in zip(start, state, strict=True)
        )
        return outputs_BSD.masked_fill(empty_B1.unsqueeze(2), 0.0), state

    def _run_held(self, x_BSD: Tensor, start: State, lengths_B: Tensor) -> tuple[Tensor, State]:
        """The same without reading lengths: all steps are taken, also those beyond an end."""
        outputs_BSD, _ = self._run_kernel(x_BSD, start)
        h_BD = _after_last_step(outputs_BSD, start[0], lengths_B)
        return zero_beyond(outputs_BSD, lengths_B), (h_BD,)

    def _run_kernel(self, steps: Steps, state: State) -> tuple[Steps, State]:
        # torch's modules want a leading axis of layers, and the LSTM alone wants a tuple.
        start = tuple(part_BD.unsqueeze(0).contiguous() for part_BD in state)
        outputs, end = self.kernel(steps, start if self.state_parts > 1 else start[0])
        end = end if self.state_parts > 1 else (end,)
        return outputs, tuple(part_1BD.squeeze(0) for part_1BD in end)


class Elman(KernelCell):
    """The plain recurrent network (Elman 1990).

        h_t = tanh(U x_t + V h_{t-1} + b)

    Args:
        input_width: width of the inputs x_t.
        width: width of the state h_t, which is also the output.
    """

    module = nn.RNN

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        U, V, bias_U, bias_V = self.weights()
        (h_BD,) = state
        h_BD = torch.tanh(F.linear(x_BD, U, bias_U) + F.linear(h_BD, V, bias_V))
        return h_BD, (h_BD,)


class GRU(KernelCell):
    """The gated recurrent unit (Cho et al. 2014), with the reset after the product, as in cuDNN.

        r_t = σ(W_xr x_t + W_hr h_{t-1} + b_r)
        z_t = σ(W_xz x_t + W_hz h_{t-1} + b_z)
        n_t = tanh(W_xn x_t + b_xn + r_t (W_hn h_{t-1} + b_hn))
        h_t = (1 - z_t) n_t + z_t h_{t-1}

    Args:
        input_width: width of the inputs x_t.
        width: width of the state h_t, which is also the output.
    """

    module = nn.GRU

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        W_x, W_h, bias_x, bias_h = self.weights()
        (h_BD,) = state
        x_r_BD, x_z_BD, x_n_BD = F.linear(x_BD, W_x, bias_x).chunk(3, dim=-1)
        h_r_BD, h_z_BD, h_n_BD = F.linear(h_BD, W_h, bias_h).chunk(3, dim=-1)
        reset_BD = torch.sigmoid(x_r_BD + h_r_BD)
        update_BD = torch.sigmoid(x_z_BD + h_z_BD)
        new_BD = torch.tanh(x_n_BD + reset_BD * h_n_BD)
        h_BD = (1 - update_BD) * new_BD + update_BD * h_BD
        return h_BD, (h_BD,)


class LSTM(KernelCell):
    """Long short-term memory (Hochreiter & Schmidhuber 1997, with the forget gate of Gers 2000).

        i_t = σ(W_xi x_t + W_hi h_{t-1} + b_i)
        f_t = σ(W_xf x_t + W_hf h_{t-1} + b_f)
        o_t = σ(W_xo x_t + W_ho h_{t-1} + b_o)
        c_t = f_t c_{t-1} + i_t tanh(W_xc x_t + W_hc h_{t-1} + b_c)
        h_t = o_t tanh(c_t)

    The bias b_f starts at 1, so that the forget gate is open at first (Jozefowicz 2015).

    Args:
        input_width: width of the inputs x_t.
        width: width of the memory c_t and of the state h_t, which is also the output.
    """

    module = nn.LSTM
    state_parts = 2

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__(input_width, width)
        _, _, bias_x, bias_h = self.weights()
        # A forget gate that starts open lets gradients through (Jozefowicz 2015). torch keeps two
        # biases; they add up, so one of them is 1 and the other 0.
        with torch.no_grad():
            bias_x[width : 2 * width] = 1.0
            bias_h[width : 2 * width] = 0.0

    def _run_held(self, x_BSD: Tensor, start: State, lengths_B: Tensor) -> tuple[Tensor, State]:
        """The kernel tells c_t of the last step alone, so that steps beyond an end must keep it.

        There, one more input is 1, and its weights shut the input gate and open the forget gate:
        c_t = 1 c_{t-1} + 0, exactly.
        """
        place_S = torch.arange(x_BSD.shape[1], device=x_BSD.device)
        beyond_BS1 = (place_S >= lengths_B[:, None]).unsqueeze(2).to(x_BSD.dtype)
        W_x, *others = self.weights()
        holding = torch.zeros_like(W_x[:, :1])
        holding[: self.width] = -SHUT
        holding[self.width : 2 * self.width] = SHUT
        outputs_BSD, _, c_1BD = torch.lstm(
            torch.cat((x_BSD, beyond_BS1), dim=2),
            [part_BD.unsqueeze(0).contiguous() for part_BD in start],
            [torch.cat((W_x, holding), dim=1), *others],
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=True,
        )
        h_BD = _after_last_step(outputs_BSD, start[0], lengths_B)
        return zero_beyond(outputs_BSD, lengths_B), (h_BD, c_1BD.squeeze(0))

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        W_x, W_h, bias_x, bias_h = self.weights()
        h_BD, c_BD = state
        sums = F.linear(x_BD, W_x, bias_x) + F.linear(h_BD, W_h, bias_h)
        sum_i_BD, sum_f_BD, sum_c_BD, sum_o_BD = sums.chunk(4, dim=-1)
        i_BD = torch.sigmoid(sum_i_BD)
        f_BD = torch.sigmoid(sum_f_BD)
        c_BD = f_BD * c_BD + i_BD * torch.tanh(sum_c_BD)
        o_BD = torch.sigmoid(sum_o_BD)
        h_BD = o_BD * torch.tanh(c_BD)
        return h_BD, (h_BD, c_BD)


class PeepholeLSTM(Cell):
    """LSTM with peephole connections: the gates also see the memory cell (Graves 2013).

        i_t = σ(W_xi x_t + W_hi h_{t-1} + W_ci c_{t-1} + b_i)
        f_t = σ(W_xf x_t + W_hf h_{t-1} + W_cf c_{t-1} + b_f)
        c_t = f_t c_{t-1} + i_t tanh(W_xc x_t + W_hc h_{t-1} + b_c)
        o_t = σ(W_xo x_t + W_ho h_{t-1} + W_co c_t + b_o)
        h_t = o_t tanh(c_t)

    W_ci, W_cf and W_co are diagonal.

    Args:
        input_width: width of the inputs x_t.
        width: width of the memory c_t and of the state h_t, which is also the output.
    """

    state_parts = 2

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__(input_width, width)
        self.W_x = nn.Linear(input_width, 4 * width)  # gates in the order i, f, c, o; holds b too
        self.W_h = nn.Linear(width, 4 * width, bias=False)
        self.W_ci = nn.Parameter(torch.empty(width))
        self.W_cf = nn.Parameter(torch.empty(width))
        self.W_co = nn.Parameter(torch.empty(width))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)
        with torch.no_grad():
            self.W_x.bias[width : 2 * width] = 1.0  # as in LSTM

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        h_BD, c_BD = self._equations(self.W_x(x_BD), *state)
        return h_BD, (h_BD, c_BD)

    def forward(
        self, x_BSD: Tensor, state: State | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, State]:
        if lengths_B is not None and readable(lengths_B):
            check_lengths(x_BSD, lengths_B)
        start = self.zeros(len(x_BSD), x_BSD) if state is None else state
        h_BD, c_BD = start
        # There is no library kernel with peepholes. What does not depend on the state is computed
        # for all steps at once, time first so that each step's slice is contiguous.
        all_h, all_c = [], []
        for from_x in self.W_x(x_BSD.transpose(0, 1)).unbind(0):
            h_BD, c_BD = self._equations(from_x, h_BD, c_BD)
            all_h.append(h_BD)
            all_c.append(c_BD)
        h_BSD = torch.stack(all_h, dim=1)
        if lengths_B is None:
            return h_BSD, (h_BD, c_BD)
        c_BSD = torch.stack(all_c, dim=1)
        lengths_B = lengths_B.to(x_BSD.device)
        state = tuple(
            _after_last_step(every_BSD, before_BD, lengths_B)
            for every_BSD, before_BD in zip((h_BSD, c_BSD), start, strict=True)
        )
        return zero_beyond(h_BSD, lengths_B), state

    def _equations(self, from_x: Tensor, h_BD: Tensor, c_BD: Tensor) -> tuple[Tensor, Tensor]:
        sum_i_BD, sum_f_BD, sum_c_BD, sum_o_BD = (from_x + self.W_h(h_BD)).chunk(4, dim=-1)
        i_BD = torch.sigmoid(sum_i_BD + self.W_ci * c_BD)
        f_BD = torch.sigmoid(sum_f_BD + self.W_cf * c_BD)
        c_BD = f_BD * c_BD + i_BD * torch.tanh(sum_c_BD)
        o_BD = torch.sigmoid(sum_o_BD + self.W_co * c_BD)
        return o_BD * torch.tanh(c_BD), c_BD


CELLS: dict[str, type[Cell]] = {
    "elman": Elman,
    "gru": GRU,
    "lstm": LSTM,
    "lstm-peephole": PeepholeLSTM,
}


def zero_beyond(x_BSD: Tensor, lengths_B: Tensor) -> Tensor:
    real_BS = real_positions(lengths_B, x_BSD.shape[1])
    return x_BSD.masked_fill(~real_BS.unsqueeze(2), 0.0)


def _after_last_step(every_BSD: Tensor, before_BD: Tensor, lengths_B: Tensor) -> Tensor:
    last_B1D = (lengths_B - 1).clamp(min=0)[:, None, None].expand(-1, 1, every_BSD.shape[2])
    last_BD = every_BSD.gather(1, last_B1D).squeeze(1)
    return torch.where((lengths_B == 0).unsqueeze(1), before_BD, last_BD)


def check_lengths(x_BSD: Tensor, lengths_B: Tensor) -> None:
    batch, steps = x_BSD.shape[:2]
    if lengths_B.shape != (batch,):
        raise ValueError(
            f"Lengths must be one number for each of the {batch} sequences of the batch, "
            f"not a tensor of shape {tuple(lengths_B.shape)}."
        )
    if batch and not 0 <= int(lengths_B.min()) <= int(lengths_B.max()) <= steps:
        raise ValueError(
            f"Lengths must lie between 0 and the {steps} steps of the batch; they run from "
            f"{int(lengths_B.min())} to {int(lengths_B.max())}."
        )
