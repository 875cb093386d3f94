"""Whisper's rules on timestamps, and the cache of encoder states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import END
from transduce.data.tokens.whisper_prompt import PromptTokens
from transduce.decoding.search.greedy import greedy
from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.encoder_output import EncoderOutput
from transduce.whisper.encoder_cache import EncoderCache
from transduce.whisper.steps import PromptedSteps, Rules

FIRST = 30
TOKENS = PromptTokens({"en": 20}, {"transcribe": 22}, 25, 24, None, FIRST, 20, 131)


class Even:
    """All tokens are as likely as each other, text a little more so than all timestamps."""

    def reorder(self, index_R: Tensor) -> None: ...

    def begin(self, memory: EncoderOutput, context: CallContext = NO_CONTEXT) -> Even:
        return self

    def step(self, tokens_B: Tensor, state: object) -> tuple[Tensor, object]:
        log_probs_V = torch.zeros(131)
        log_probs_V[FIRST:] = -9.0
        return log_probs_V.repeat(len(tokens_B), 1), state


def allowed(*written: int) -> set[int]:
    """What may follow these tokens."""
    encode = lambda source_BS, lengths_B: EncoderOutput(torch.zeros(1, 1, 1), lengths_B, None)  # noqa: E731
    rules = Rules(TOKENS, suppress=[7], suppress_first=[8])
    steps = PromptedSteps(Even(), encode, (2, 20, 22), rules, torch.device("cpu"))  # type: ignore[arg-type]
    state = steps.start(torch.zeros(1, 1), torch.ones(1))
    for token in (2, *written):
        log_probs_1V, _ = steps.step(torch.tensor([token]), state)
    return set(log_probs_1V[0].isfinite().nonzero().flatten().tolist())


TEXT = set(range(FIRST)) - {7, 25}


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ((), set(range(FIRST, FIRST + 51))),  # a timestamp of at most 1 s comes first
        ((FIRST,), TEXT),  # then text
        ((FIRST, 9), TEXT | set(range(FIRST + 1, 131))),  # then anything, later than the last
        ((FIRST, 9, FIRST + 40), {END, *range(FIRST + 40, 131)}),  # an end, then a start or END
        ((FIRST, 9, FIRST + 40, FIRST + 40), TEXT),  # of two timestamps the second opens
        ((FIRST, 9, FIRST + 40, FIRST + 50, 9), TEXT | set(range(FIRST + 51, 131))),
    ],
)
def test_timestamps_come_in_pairs_and_never_go_back(
    written: tuple[int, ...], wanted: set[int]
) -> None:
    assert allowed(*written) == wanted


def test_each_recording_is_encoded_once() -> None:
    calls = []

    def encode(source_BS: Tensor, lengths_B: Tensor) -> EncoderOutput:
        calls.append(len(source_BS))
        states = source_BS.sum(dim=1)[:, None, None].float()
        return EncoderOutput(states, torch.ones(len(source_BS), dtype=torch.long), None)

    cache = EncoderCache(encode, torch.device("cpu"))
    waves = torch.zeros(3, 50, dtype=torch.int16)
    waves[1, 40], waves[2, 49] = 5, 6  # the same beginnings
    lengths = torch.tensor([50, 50, 50])
    assert cache(waves, lengths).states_BSD.flatten().tolist() == [0, 5, 6]
    assert cache(waves[[2, 0]], lengths[:2]).states_BSD.flatten().tolist() == [6, 0]
    assert calls == [3]


def test_an_output_of_the_greatest_length_is_cut_where_a_timestamp_must_come() -> None:
    """It is not lost: END is banned there, but what was written before stays."""

    class Timed(Even):
        def step(self, tokens_B: Tensor, state: object) -> tuple[Tensor, object]:
            log_probs_RV, state = super().step(tokens_B, state)
            log_probs_RV[:, FIRST:] = 9.0
            return log_probs_RV.log_softmax(dim=1), state

    encode = lambda source_BS, lengths_B: EncoderOutput(torch.zeros(1, 1, 1), lengths_B, None)  # noqa: E731
    steps = PromptedSteps(Timed(), encode, (2, 20, 22), Rules(TOKENS), torch.device("cpu"))  # type: ignore[arg-type]
    for limit in (3, 4, 6, 7):
        limits_B = torch.tensor([limit])
        ((best,),) = greedy(steps, torch.zeros(1, 1), torch.ones(1), limits_B)
        assert len(best.tokens) == limit - 1


def test_recordings_that_differ_in_one_sample_are_told_apart() -> None:
    """Each is encoded once, also where it is in a batch twice, and none has another's states."""
    asked: list[int] = []

    def encode(source_BS: Tensor, lengths_B: Tensor) -> EncoderOutput:
        asked.append(len(source_BS))
        states_BSD = source_BS.float().sum(dim=1)[:, None, None]
        return EncoderOutput(states_BSD, torch.ones(len(source_BS), dtype=torch.int64), None)

    cache = EncoderCache(encode, torch.device("cpu"))
    wave = torch.arange(1000, dtype=torch.int16)
    other = wave.clone()
    other[501] += 7  # between the samples that are looked at first
    short = torch.cat([wave[:900], torch.zeros(100, dtype=torch.int16)])
    batch, lengths = torch.stack([wave, other, wave, short]), torch.tensor([1000, 1000, 1000, 900])
    expected = torch.tensor([499500.0, 499507.0, 499500.0, float(wave[:900].sum())])
    assert torch.equal(cache(batch, lengths).states_BSD.flatten(), expected)
    back = cache(batch.flip(0), lengths.flip(0))
    assert torch.equal(back.states_BSD.flatten(), expected.flip(0))
    assert asked == [3]
