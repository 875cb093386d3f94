"""The sliding context window of a language model; prompts are read in one pass.

A model was trained on blocks of `size` tokens, each after BEGIN, and never sees more. The first
`size` tokens of a text are one window; each further window begins size/2 tokens after the previous
one, and predicts the tokens that follow those already predicted. So every token is predicted once,
from at least size/2 tokens before it, or from all there are. Search and scores of given texts
(language_model.py) use the same windows, and so give the same log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN
from transduce.models.decoders import DecoderState


class Window(NamedTuple):
    """Tokens start … end − 1 of a text; those from `first` on are predicted in it."""

    start: int
    first: int
    end: int


def stride(size: int) -> int:
    """The distance between the starts of two windows."""
    return max(1, size // 2)


def windows(length: int, size: int) -> Iterator[Window]:
    """The windows of a text of `length` tokens, which together predict each of them once."""
    start = first = 0
    while first < length:
        end = min(start + size, length)
        yield Window(start, first, end)
        first, start = end, start + stride(size)


def window_of(position: int, size: int) -> int:
    """The start of the window that predicts the token at a position."""
    if position < size:
        return 0
    return stride(size) * ((position - size) // stride(size) + 1)


class Reader(Protocol):
    """The interface of a network that a sliding window needs."""

    def read(self, tokens_BT: Tensor) -> DecoderState: ...

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]: ...


@dataclass
class WindowState:
    """The current window of each row."""

    state: DecoderState
    window_BT: Tensor
    """Its tokens, without BEGIN."""
    waiting_B: Tensor | None
    """The last token, if the network has not read it yet."""

    def reorder(self, index_B: Tensor) -> None:
        self.state.reorder(index_B)
        self.window_BT = self.window_BT[index_B]
        if self.waiting_B is not None:
            self.waiting_B = self.waiting_B[index_B]


class SlidingWindow:
    """A language model that continues prompts, with the interface that search needs."""

    def __init__(self, network: Reader, size: int) -> None:
        self.network = network
        self.size = size

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> WindowState:
        """Prompts, END after each, all of one length."""
        if int(lengths_B.min()) != source_BS.shape[1]:
            raise ValueError("Prompts of one batch must be of one length.")
        prompt_BT = source_BS[:, :-1]
        return self._open(prompt_BT[:, window_of(prompt_BT.shape[1], self.size) :])

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, WindowState]:
        """Log-probabilities_BV of the next token.

        The first tokens of a search, BEGIN, stand for the prompt, which has been read.
        """
        assert isinstance(state, WindowState)
        if state.waiting_B is None:
            window_BT = torch.cat([state.window_BT, tokens_B[:, None]], dim=1)
            if window_BT.shape[1] < self.size:
                state = WindowState(state.state, window_BT, tokens_B)
            else:
                state = self._open(window_BT[:, stride(self.size) :])
        assert state.waiting_B is not None
        log_probs_BV, after = self.network.step(state.waiting_B, state.state)
        return log_probs_BV, WindowState(after, state.window_BT, None)

    def _open(self, window_BT: Tensor) -> WindowState:
        """Read a new window, except its last token."""
        begin_B1 = window_BT.new_full((len(window_BT), 1), BEGIN)
        read_BT = torch.cat([begin_B1, window_BT], dim=1)
        return WindowState(self.network.read(read_BT[:, :-1]), window_BT, read_BT[:, -1])
