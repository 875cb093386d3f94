"""A language model as search sees it: a prompt read in one pass, and a context that has an end.

A model was trained on blocks of `size` tokens, each after BEGIN, and is asked about no more. The
first `size` tokens of a text are one window; each further window begins half a size later than the
one before it, and says what follows the tokens that the one before it has said. So every token is
predicted once, from at least half a size of tokens before it, or from all there are. Search and
scores of given texts (reading.py) go by the same windows, and so give the same numbers.
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
    """How much later each window begins."""
    return max(1, size // 2)


def windows(length: int, size: int) -> Iterator[Window]:
    """The windows of a text of `length` tokens, which together predict each of them once."""
    start = first = 0
    while first < length:
        end = min(start + size, length)
        yield Window(start, first, end)
        first, start = end, start + stride(size)


def window_of(position: int, size: int) -> int:
    """Where the window begins in which the token at a position is predicted."""
    if position < size:
        return 0
    return stride(size) * ((position - size) // stride(size) + 1)


class Reader(Protocol):
    """What a context needs of a network."""

    def read(self, tokens_BT: Tensor) -> DecoderState: ...

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]: ...


@dataclass
class Context:
    """The window that each row stands in."""

    state: DecoderState
    window_BT: Tensor
    """Its tokens, BEGIN not among them."""
    waiting_B: Tensor | None
    """The last one, where the network has not read it yet."""

    def reorder(self, index_B: Tensor) -> None:
        self.state.reorder(index_B)
        self.window_BT = self.window_BT[index_B]
        if self.waiting_B is not None:
            self.waiting_B = self.waiting_B[index_B]


class Continued:
    """A network that goes on with prompts; search takes it for any other model."""

    def __init__(self, network: Reader, size: int) -> None:
        self.network = network
        self.size = size

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> Context:
        """Prompts, END after each, all of one length."""
        if int(lengths_B.min()) != source_BS.shape[1]:
            raise ValueError("Prompts of one batch must be of one length.")
        prompt_BT = source_BS[:, :-1]
        return self._open(prompt_BT[:, window_of(prompt_BT.shape[1], self.size) :])

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, Context]:
        """Log-probabilities_BV of the next token.

        The first tokens that a search gives, BEGIN, stand for the prompt that was read.
        """
        assert isinstance(state, Context)
        if state.waiting_B is None:
            window_BT = torch.cat([state.window_BT, tokens_B[:, None]], dim=1)
            if window_BT.shape[1] < self.size:
                state = Context(state.state, window_BT, tokens_B)
            else:
                state = self._open(window_BT[:, stride(self.size) :])
        assert state.waiting_B is not None
        log_probs_BV, after = self.network.step(state.waiting_B, state.state)
        return log_probs_BV, Context(after, state.window_BT, None)

    def _open(self, window_BT: Tensor) -> Context:
        """A window that has been read but for its last token."""
        begin_B1 = window_BT.new_full((len(window_BT), 1), BEGIN)
        read_BT = torch.cat([begin_B1, window_BT], dim=1)
        return Context(self.network.read(read_BT[:, :-1]), window_BT, read_BT[:, -1])
