"""Ensembles: several models that predict each token together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.decoding.search.stepper import Stepper
from transduce.models.call_context import attention_of
from transduce.models.decoders import DecoderState


@dataclass
class EnsembleState:
    states: list[DecoderState]

    @property
    def attention_BS(self) -> Tensor | None:
        """That of the first model."""
        return attention_of(self.states[0])

    def reorder(self, index_B: Tensor) -> None:
        for state in self.states:
            state.reorder(index_B)


class Ensemble:
    """The mean of the models' next-token probabilities, as one model for search.

    Geometric: the mean of their log-probabilities, so that the log-probability of an output is the
    mean of those that the models assign to it.
    """

    def __init__(self, models: Sequence[Stepper], *, geometric: bool = False) -> None:
        self.models = models
        self.geometric = geometric

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> EnsembleState:
        return EnsembleState([model.start(source_BS, lengths_B) for model in self.models])

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, EnsembleState]:
        assert isinstance(state, EnsembleState)
        steps = [m.step(tokens_B, s) for m, s in zip(self.models, state.states, strict=True)]
        log_probs_MBV = torch.stack([log_probs_BV for log_probs_BV, _ in steps])
        after = EnsembleState([new for _, new in steps])
        if self.geometric:
            return log_probs_MBV.mean(dim=0), after
        return log_probs_MBV.logsumexp(dim=0) - math.log(len(self.models)), after
