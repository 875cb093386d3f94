"""Decoding steps after a prompt, with Whisper's rules on which tokens may come next.

The rules ban tokens and leave the log-probabilities of others as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END
from transduce.data.tokens.whisper_prompt import PromptTokens
from transduce.decoding.constraints.constraint import NEG_INF
from transduce.decoding.search.stepper import ContextStepper
from transduce.models.call_context import NO_CONTEXT, CallContext, attention_of
from transduce.models.decoders import DecoderState
from transduce.models.encoder_output import EncoderOutput

LATEST_START = 50  # the first timestamp is at most 1 s


class Encode(Protocol):
    def __call__(self, source_BS: Tensor, lengths_B: Tensor) -> EncoderOutput: ...


@dataclass(frozen=True)
class DetectedLanguage:
    """What a window holds, before it is decoded."""

    languages: dict[str, float]
    """The probability of each language, likeliest first; empty where there is only English."""
    no_speech: float
    """The probability that nothing is said."""

    @property
    def language(self) -> str:
        return next(iter(self.languages), "en")


def listen(
    steps: ContextStepper, memory: EncoderOutput, tokens: PromptTokens, *, languages: bool = True
) -> list[DetectedLanguage]:
    """Language, if asked for, and speech in each recording, from the decoder's first step."""
    begin_B = torch.full((len(memory.states_BSD),), BEGIN, device=memory.states_BSD.device)
    log_probs_BV, _ = steps.step(begin_B, steps.begin(memory))
    log_probs_BV = log_probs_BV.float()
    codes = list(tokens.languages) if tokens.multilingual and languages else []
    shares = log_probs_BV[:, [tokens.languages[code] for code in codes]].softmax(dim=1).tolist()
    silent = [0.0] * len(shares)
    if tokens.no_speech is not None:
        silent = log_probs_BV[:, tokens.no_speech].exp().tolist()
    return [
        DetectedLanguage(
            dict(sorted(zip(codes, of_one, strict=True), key=lambda pair: -pair[1])), none
        )
        for of_one, none in zip(shares, silent, strict=True)
    ]


@dataclass(frozen=True)
class Rules:
    """Which tokens are never chosen, which not as the first, and those of timestamps."""

    tokens: PromptTokens
    suppress: Sequence[int] = ()
    suppress_first: Sequence[int] = ()

    def penalties(self, timestamps: bool, device: torch.device) -> tuple[Tensor, Tensor]:
        """What is added to log-probabilities_V at any step, and at the first: 0 or -inf."""
        always_V = torch.zeros(self.tokens.vocabulary, device=device)
        always_V[list(self.suppress)] = NEG_INF
        always_V[self.tokens.no_timestamps] = NEG_INF
        first_V = always_V.clone()
        first_V[list(self.suppress_first)] = NEG_INF
        if timestamps:  # an output begins with one
            begin = self.tokens.first_timestamp
            first_V[:begin] = NEG_INF
            first_V[begin + LATEST_START + 1 :] = NEG_INF
        return always_V, first_V


def ban_by_times(
    scores_RV: Tensor, first_time: int, last: tuple[Tensor, Tensor, Tensor], length: Tensor | int
) -> None:
    """Timestamps come in pairs, never go back, and come if all of them together are likelier than
    any text. NEG_INF is written where a token is banned.

    last: of each row the last token, the one before it, and 1 more than the number of the last
    timestamp, or 0. length: tokens so far, of each row or of all. Scores may be logits.
    """
    last_R, before_R, latest_R = last
    text_RX, times_RX = scores_RV[:, :first_time], scores_RV[:, first_time:]
    last_R1 = ((last_R >= first_time) & (length > 0))[:, None]
    # Before the first token, as if there were a timestamp.
    both_R1 = last_R1 & ((before_R >= first_time) | (length == 1))[:, None]
    times_RX.masked_fill_(both_R1, NEG_INF)
    opens_R1 = last_R1 & ~both_R1  # the end of a segment: the next one begins, or END
    end_R = text_RX[:, END].clone()
    text_RX.masked_fill_(opens_R1, NEG_INF)
    text_RX[:, END] = end_R
    place_X = torch.arange(times_RX.shape[1], device=times_RX.device)
    # The same timestamp may come twice only as the end of a segment and the next start.
    min_R1 = latest_R[:, None] + (~opens_R1 & (latest_R > 0)[:, None]).long()
    times_RX.masked_fill_(place_X + 1 < min_R1, NEG_INF)
    likelier_R1 = times_RX.logsumexp(dim=1, keepdim=True) > text_RX.amax(dim=1, keepdim=True)
    text_RX.masked_fill_(likelier_R1, NEG_INF)


class RecordedRules:
    """The rules of rows at different lengths, for a CUDA graph: their values stay in place."""

    def __init__(self, rules: Rules, timestamps: bool, device: torch.device) -> None:
        self.timestamps, self.first_time = timestamps, rules.tokens.first_timestamp
        self._always_V, self._first_V = rules.penalties(timestamps, device)

    def ban(self, logits_RV: Tensor, last: tuple[Tensor, Tensor, Tensor], length_R: Tensor) -> None:
        first_R1 = (length_R == 0)[:, None]
        logits_RV += torch.where(first_R1, self._first_V, self._always_V)
        if self.timestamps:
            ban_by_times(logits_RV, self.first_time, last, length_R)


class PromptedSteps:
    """Steps that begin after a prompt, the same for all rows; search knows nothing of it."""

    def __init__(
        self,
        steps: ContextStepper,
        encode: Encode,
        prompt: Sequence[int],
        rules: Rules,
        device: torch.device,
        context: CallContext = NO_CONTEXT,
    ) -> None:
        self.steps, self.encode, self.context = steps, encode, context
        self.prompt = tuple(prompt)
        self.timestamps = rules.tokens.no_timestamps not in self.prompt
        self.first_time = rules.tokens.first_timestamp
        self._always_V, self._first_V = rules.penalties(self.timestamps, device)

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> PromptedState:
        state = self.steps.begin(self.encode(source_BS, lengths_B), self.context)
        tokens_B = torch.zeros(len(source_BS), dtype=torch.int64, device=source_BS.device)
        for token in self.prompt[:-1]:
            _, state = self.steps.step(tokens_B + token, state)
        return PromptedState(state, tokens_B, tokens_B.clone(), tokens_B.clone())

    def step(self, tokens_R: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_RV of the next token, NEG_INF where the rules ban it."""
        assert isinstance(state, PromptedState)
        if state.length:
            state.add(tokens_R, self.first_time)
        else:  # search begins with BEGIN
            tokens_R = torch.full_like(tokens_R, self.prompt[-1])
        log_probs_RV, state.inner = self.steps.step(tokens_R, state.inner)
        log_probs_RV = log_probs_RV + (self._always_V if state.length else self._first_V)
        if self.timestamps:
            last = (state.last_R, state.before_R, state.latest_R)
            ban_by_times(log_probs_RV, self.first_time, last, state.length)
        state.unending_R = log_probs_RV[:, END] == NEG_INF
        state.length += 1
        return log_probs_RV, state


@dataclass
class PromptedState:
    """The state of the steps, and the last tokens of each row."""

    inner: DecoderState
    last_R: Tensor
    before_R: Tensor
    latest_R: Tensor
    """1 more than the number of the last timestamp; 0: none yet."""
    length: int = 0
    unending_R: Tensor | None = None
    """Whether END may not come next, but a timestamp must; an output of the greatest length is cut
    there."""

    @property
    def attention_BS(self) -> Tensor | None:
        return attention_of(self.inner)

    @property
    def finite_or_neg_inf(self) -> bool:
        return bool(getattr(self.inner, "finite_or_neg_inf", False))

    def add(self, tokens_R: Tensor, first_time: int) -> None:
        self.before_R, self.last_R = self.last_R, tokens_R
        number_R = tokens_R - first_time + 1
        self.latest_R = torch.where(number_R > 0, number_R, self.latest_R)

    def reorder(self, index_R: Tensor) -> None:
        self.inner.reorder(index_R)
        self.last_R, self.before_R = self.last_R[index_R], self.before_R[index_R]
        self.latest_R = self.latest_R[index_R]
