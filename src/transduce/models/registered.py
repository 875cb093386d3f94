"""Encoders and decoders of plugins, between the plain modules that people write and the rest.

A plugin's encoder maps vectors to vectors; its decoder maps the embeddings of the target and the
encoder's states to features. Shapes are checked here, so that a mistake is one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transduce.errors import PluginError
from transduce.models.encoder_output import EncoderOutput
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.masks import Mask, real_positions


class RegisteredEncoder(nn.Module):
    """`inner(x_BSD, real_BS)` → states_BSD; real_BS is False at padding."""

    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.name, self.inner = name, inner

    def forward(self, x_BSD: Tensor, lengths_B: Tensor, mask: Mask | None) -> EncoderOutput:
        states_BSD = self.inner(x_BSD, real_positions(lengths_B, x_BSD.shape[1], x_BSD.device))
        _check_shape(f"encoder {self.name}", states_BSD, x_BSD)
        return EncoderOutput(states_BSD, lengths_B, mask)


@dataclass
class PrefixState:
    """The target so far and the source: for decoders that read all of it again at each step."""

    tokens_BT: Tensor
    states_BSD: Tensor | None
    real_BS: Tensor | None

    def reorder(self, index_B: Tensor) -> None:
        self.tokens_BT = self.tokens_BT[index_B]
        if self.states_BSD is not None and self.real_BS is not None:
            self.states_BSD, self.real_BS = self.states_BSD[index_B], self.real_BS[index_B]


@dataclass
class OwnState:
    """What a plugin's `start` and `step` keep: tensors, batch first, in lists, tuples and dicts."""

    inner: Any
    length: int = 0

    def reorder(self, index_B: Tensor) -> None:
        self.inner = _reordered(self.inner, index_B)


class RegisteredDecoder(nn.Module):
    """`inner(x_BTD, states_BSD, real_BS)` → features_BTD, causal in T; a language model's decoder
    gets None for the source.

    Where `inner` has `start(states_BSD, real_BS)` → state and `step(x_BD, state)` → (features_BD,
    state), decoding uses these; else each step computes the whole target again.
    """

    def __init__(
        self, name: str, embedding: TokenEmbedding, inner: nn.Module, alone: bool = False
    ) -> None:
        super().__init__()
        self.name, self.embedding, self.inner, self.alone = name, embedding, inner, alone
        self.steps = hasattr(inner, "start") and hasattr(inner, "step")

    def forward(self, tokens_BT: Tensor, memory: EncoderOutput | None = None) -> Tensor:
        """Teacher forcing: tokens_BT (from BEGIN on) → features_BTD."""
        return self._features(tokens_BT, *_source(memory))

    def start(self, memory: EncoderOutput | None = None) -> PrefixState | OwnState:
        states_BSD, real_BS = _source(memory)
        if self.steps:
            return OwnState(self.inner.start(states_BSD, real_BS))  # type: ignore[operator]
        rows = 0 if states_BSD is None else len(states_BSD)
        device = next(self.parameters()).device
        return PrefixState(
            torch.empty(rows, 0, dtype=torch.long, device=device), states_BSD, real_BS
        )

    def step(
        self, tokens_B: Tensor, state: PrefixState | OwnState
    ) -> tuple[Tensor, PrefixState | OwnState]:
        """The features_BD after one more token."""
        features_B1D, state = self.read(tokens_B[:, None], state)
        return features_B1D[:, -1], state

    def read(
        self, tokens_BT: Tensor, state: PrefixState | OwnState
    ) -> tuple[Tensor, PrefixState | OwnState]:
        """The features_BTD after each of T more tokens."""
        if isinstance(state, OwnState):
            x_BTD = self.embedding(tokens_BT, start=state.length)
            features = []
            for x_BD in x_BTD.unbind(dim=1):
                features_BD, state.inner = self.inner.step(x_BD, state.inner)  # type: ignore[operator]
                _check_shape(f"decoder {self.name}", features_BD, x_BD)
                features.append(features_BD)
            state.length += tokens_BT.shape[1]
            return torch.stack(features, dim=1), state
        before_BT = state.tokens_BT
        if not len(before_BT):
            before_BT = before_BT.new_empty(len(tokens_BT), 0)
        state.tokens_BT = torch.cat([before_BT, tokens_BT], dim=1)
        features_BTD = self._features(state.tokens_BT, state.states_BSD, state.real_BS)
        return features_BTD[:, -tokens_BT.shape[1] :], state

    def _features(
        self, tokens_BT: Tensor, states_BSD: Tensor | None, real_BS: Tensor | None
    ) -> Tensor:
        x_BTD = self.embedding(tokens_BT)
        features_BTD: Tensor = self.inner(x_BTD, states_BSD, real_BS)
        _check_shape(f"decoder {self.name}", features_BTD, x_BTD)
        return features_BTD


def _source(memory: EncoderOutput | None) -> tuple[Tensor | None, Tensor | None]:
    if memory is None:
        return None, None
    states_BSD = memory.states_BSD
    return states_BSD, real_positions(memory.lengths_B, states_BSD.shape[1], states_BSD.device)


def _check_shape(what: str, output: Any, like: Tensor) -> None:
    if not isinstance(output, Tensor) or output.shape != like.shape:
        got = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise PluginError(
            f"the {what} must give a tensor of the shape of its input, {list(like.shape)}, but it "
            f"gave {got}"
        )


def _reordered(state: Any, index_B: Tensor) -> Any:
    if isinstance(state, Tensor):
        return state[index_B]
    if isinstance(state, dict):
        return {key: _reordered(value, index_B) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_reordered(value, index_B) for value in state)
    return state
