"""Joint CTC/attention decoding, and shallow fusion with a language model.

Search sees one model whose score of a token is a weighted sum of log-probabilities. None of them is
above zero, so the score of a hypothesis never rises as it grows, as with one model.

R rows (hypotheses of all sources), N of them in a row for each of B sources.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import END, PAD
from transduce.decoding.search.rules import NEG_INF
from transduce.decoding.search.stepper import ContextStepper, Stepper
from transduce.models.call_context import NO_CONTEXT, CallContext, attention_of
from transduce.models.decoders import DecoderState, shared_rows
from transduce.models.speech import SpeechEncoderDecoder
from transduce.nn.ctc.prefix_score import CtcPrefix


@dataclass
class CtcState:
    """A decoder's state, and the CTC prefix probabilities of each row."""

    written: DecoderState
    prefix: CtcPrefix
    begun: bool = False

    @property
    def attention_BS(self) -> Tensor | None:
        return attention_of(self.written)

    def reorder(self, index_R: Tensor) -> None:
        self.written.reorder(index_R)
        B, N = self.prefix.last_BN.shape
        # Synchronizes, on any device: the CTC probabilities of all tokens at all frames are shared
        # by the rows of a source, and copying them for each row would take far longer.
        sources_B, each = shared_rows((index_R // N).cpu(), N, B)
        if sources_B is not None:
            self.prefix = self.prefix.select(sources_B.to(index_R.device))
        # For each new row, its parent among the rows of its source.
        parent_BN = (index_R % N).view(-1, each)
        self.prefix = _rows(self.prefix, parent_BN)


def _rows(prefix: CtcPrefix, parent_BN: Tensor) -> CtcPrefix:
    frames = prefix.label_BNE.shape[-1]
    parent_BNE = parent_BN[..., None].expand(-1, -1, frames)
    return replace(
        prefix,
        label_BNE=prefix.label_BNE.gather(1, parent_BNE),
        blank_BNE=prefix.blank_BNE.gather(1, parent_BNE),
        last_BN=prefix.last_BN.gather(1, parent_BN),
        total_BN=prefix.total_BN.gather(1, parent_BN),
    )


class CtcScorer:
    """Joint CTC/attention: (1 − w) log p by attention + w log p by CTC.

    Watanabe et al. 2017, section 3.3. With w = 1 the decoder is not used: CTC prefix search, Graves
    et al. 2006, section 3.2.
    """

    def __init__(
        self,
        network: SpeechEncoderDecoder,
        steps: ContextStepper,
        weight: float,
        context: CallContext = NO_CONTEXT,
    ) -> None:
        """`steps`: the steps of the network's decoder, in any implementation."""
        self.network, self.steps, self.weight = network, steps, weight
        self.context = context

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> CtcState:
        memory = self.network.encode(source_BS, lengths_B, **self.context.keywords)
        log_probs_BSV = self.network.ctc_log_probs(memory)
        states_B = memory.lengths_B.to(log_probs_BSV.device)
        prefix = CtcPrefix.start(log_probs_BSV, states_B, 1, blank=PAD, end=END)
        return CtcState(self.steps.begin(memory, self.context), prefix)

    def step(self, tokens_R: Tensor, state: DecoderState) -> tuple[Tensor, CtcState]:
        assert isinstance(state, CtcState)
        prefix = state.prefix
        if state.begun:
            tokens_BN = tokens_R.view(prefix.last_BN.shape)
            same_BN = torch.arange(tokens_BN.shape[1], device=tokens_R.device)
            prefix = prefix.advance(same_BN.expand_as(tokens_BN), tokens_BN)
        ctc_RV = prefix.next_log_probs().flatten(0, 1)
        if self.weight == 1:
            return ctc_RV, CtcState(state.written, prefix, begun=True)
        attention_RV, written = self.steps.step(tokens_R, state.written)
        joint_RV = weighted(attention_RV, 1 - self.weight, ctc_RV, self.weight)
        return joint_RV, CtcState(written, prefix, begun=True)


@dataclass
class ShallowFusionState:
    own: DecoderState
    language: DecoderState

    @property
    def attention_BS(self) -> Tensor | None:
        return attention_of(self.own)

    def reorder(self, index_R: Tensor) -> None:
        self.own.reorder(index_R)
        self.language.reorder(index_R)


class ShallowFusion:
    """Shallow fusion: log p + w log p by a language model with the same vocabulary.

    Gulcehre et al. 2015, https://arxiv.org/abs/1503.03535.

    A language model of running text knows no END. If END alone were free of its cost, an output
    would be the better the sooner it ends. So such a model only moves probability among the tokens
    that go on: these keep the total that they have without it, and so does END.
    """

    def __init__(
        self, model: Stepper, language: Stepper, weight: float, endless: bool = False
    ) -> None:
        """`endless`: the language model never predicts END."""
        self.model, self.language, self.weight, self.endless = model, language, weight, endless

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> ShallowFusionState:
        own = self.model.start(source_BS, lengths_B)
        # An empty prompt: END alone.
        nothing_B1 = torch.full((len(source_BS), 1), END, device=source_BS.device)
        language = self.language.start(nothing_B1, torch.ones(len(source_BS), dtype=torch.int64))
        return ShallowFusionState(own, language)

    def step(self, tokens_R: Tensor, state: DecoderState) -> tuple[Tensor, ShallowFusionState]:
        assert isinstance(state, ShallowFusionState)
        own_RV, own = self.model.step(tokens_R, state.own)
        language_RV, language = self.language.step(tokens_R, state.language)
        fused_RV = weighted(own_RV, 1.0, language_RV, self.weight)
        if self.endless:
            end_R = own_RV[:, END].clone()
            for scores_RV in (own_RV, fused_RV):
                scores_RV.nan_to_num_(nan=NEG_INF, neginf=NEG_INF)[:, END] = NEG_INF
            kept_R1, fused_R1 = (x.logsumexp(dim=1, keepdim=True) for x in (own_RV, fused_RV))
            # Where nothing can go on, -inf - -inf is NaN.
            fused_RV = (fused_RV + kept_R1 - fused_R1).nan_to_num_(nan=NEG_INF, neginf=NEG_INF)
            fused_RV[:, END] = end_R
        return fused_RV, ShallowFusionState(own, language)


def weighted(one_RV: Tensor, of_one: float, other_RV: Tensor, of_other: float) -> Tensor:
    """The weighted sum of two scores; −inf or NaN in either stays so in the sum."""
    return of_one * one_RV + of_other * other_RV
