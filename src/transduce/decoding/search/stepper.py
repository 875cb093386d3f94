"""The interface of a model that search needs, and a model's steps in the context of one call."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from transduce.models.call_context import CallContext
from transduce.models.decoders import DecoderState
from transduce.models.encoder_output import EncoderOutput


class Stepper(Protocol):
    """The interface of a model that search needs."""

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> DecoderState: ...

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_BV of the next token; search or the next step may overwrite them."""


class ContextStepper(Protocol):
    """A network, or its faster steps."""

    def start(
        self, source_BS: Tensor, lengths_B: Tensor, context: CallContext = ...
    ) -> DecoderState: ...

    def begin(self, memory: EncoderOutput, context: CallContext = ...) -> DecoderState:
        """As `start`, given what the encoder made of the sources."""

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]: ...


class InContext:
    """Each model of an ensemble has a context of its own, so search cannot pass one on: it is bound
    here."""

    def __init__(self, steps: ContextStepper, context: CallContext) -> None:
        self.steps, self.context = steps, context

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> DecoderState:
        return self.steps.start(source_BS, lengths_B, self.context)

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        return self.steps.step(tokens_B, state)
