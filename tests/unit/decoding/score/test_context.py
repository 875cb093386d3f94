"""Windows over a text, and a language model that search can step through them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from language import LSTM, language_network
from transduce.data.tokens.tokenizer import BEGIN, END
from transduce.decoding.score.context import SlidingWindow, stride, window_of, windows
from transduce.decoding.search.beam import beam
from transduce.decoding.search.greedy import greedy, sample
from transduce.models.language_model import LanguageModelNetwork

VOCABULARY = 7
KINDS: dict[str, dict[str, Any] | None] = {
    "transformer": None,
    "lstm": LSTM,
    "convolutional": {"kind": "convolutional", "layers": 2, "kernel": 2},
}


@given(st.integers(0, 60), st.integers(1, 12))
def test_windows_predict_every_token_once_from_enough_before_it(length: int, size: int) -> None:
    predicted: list[int] = []
    for window in windows(length, size):
        assert window.end - window.start <= size
        for position in range(window.first, window.end):
            assert position - window.start >= min(position, size - stride(size))
            assert window_of(position, size) == window.start
        predicted += range(window.first, window.end)
    assert predicted == list(range(length))


@pytest.mark.parametrize(
    ("position", "start"), [(0, 0), (7, 0), (8, 4), (11, 4), (12, 8), (19, 12)]
)
def test_a_window_of_eight_moves_by_four(position: int, start: int) -> None:
    assert window_of(position, 8) == start


@torch.no_grad()
def by_definition(network: LanguageModelNetwork, text: list[int], size: int) -> Tensor:
    """log p(· | BEGIN and the window's tokens so far), each from a pass of its own."""
    start = window_of(len(text), size)
    tokens_1T = torch.tensor([[BEGIN, *text[start:]]])
    return torch.log_softmax(network.head(network(tokens_1T)[0, -1]), dim=-1)


def prompts(*rows: list[int]) -> tuple[Tensor, Tensor]:
    source_BS = torch.tensor([[*row, END] for row in rows])
    return source_BS, torch.full((len(rows),), source_BS.shape[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 50])
@pytest.mark.parametrize("prompt", [[], [4], [4, 5, 6, 4], [5] * 9])
@torch.no_grad()
def test_steps_go_by_the_windows(kind: str, size: int, prompt: list[int]) -> None:
    network = language_network(VOCABULARY, KINDS[kind])
    model = SlidingWindow(network, size)
    written = [4, 6, 5, 5, 6, 4, 4, 6]
    context = model.start(*prompts(prompt, prompt[::-1]))
    given_B = torch.tensor([BEGIN, BEGIN])
    for step, token in enumerate(written):
        log_probs_BV, context = model.step(given_B, context)
        for row, first in enumerate((prompt, prompt[::-1])):
            expected_V = by_definition(network, first + written[:step], size)
            torch.testing.assert_close(log_probs_BV[row].double(), expected_V, rtol=1e-5, atol=1e-5)
        given_B = torch.tensor([token, token])


def probability(
    network: LanguageModelNetwork, text: list[int], prompt: list[int], size: int
) -> float:
    """Of what follows the prompt, token by token, by the definition."""
    return math.exp(
        sum(
            float(by_definition(network, (prompt + text)[: len(prompt) + place], size)[token])
            for place, token in enumerate(text)
        )
    )


@pytest.mark.parametrize("kind", KINDS)
def test_all_continuations_together_have_probability_one(kind: str) -> None:
    network = language_network(5, KINDS[kind])
    total = sum(
        probability(network, list(text), [4], size=2)
        for text in itertools.product(range(5), repeat=3)
    )
    assert total == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wide_beam_finds_the_likeliest_continuation_there_is(kind: str) -> None:
    """Against all of them, with a window that moves under the search."""
    network = language_network(6, KINDS[kind])
    model = SlidingWindow(network.float(), 3)
    prompt, limit = [4, 5, 4, 5], 4
    found = beam(model, *prompts(prompt), torch.tensor([limit]), 200, length_penalty=0.0)[0][0]
    tokens = [token for token in range(6) if token not in (0, BEGIN, END)]
    ended = [
        [*text, END] for length in range(limit) for text in itertools.product(tokens, repeat=length)
    ]
    worth = {tuple(t): probability(network.double(), list(t), prompt, 3) for t in ended}
    best = max(worth, key=worth.__getitem__)
    assert (*found.tokens, END) == best
    assert math.exp(found.log_probability) == pytest.approx(worth[best], rel=1e-4)


def test_samples_come_as_often_as_they_are_likely() -> None:
    network = language_network(6)
    model = SlidingWindow(network.float(), 3)
    drawn = sample(model, *prompts([4, 5]), torch.tensor([2]), [1], copies=4000)[0]
    counts = dict.fromkeys(range(6), 0)
    for hypothesis in drawn:
        counts[hypothesis.tokens[0] if hypothesis.tokens else END] += 1
    expected_V = by_definition(network.double(), [4, 5], 3).exp()
    allowed = [token for token in range(6) if token not in (0, BEGIN)]  # never drawn
    mass = float(expected_V[allowed].sum())
    for token in allowed:
        assert counts[token] / 4000 == pytest.approx(float(expected_V[token]) / mass, abs=0.03)


def test_rows_do_not_influence_each_other() -> None:
    model = SlidingWindow(language_network(VOCABULARY).float(), 4)
    together = greedy(model, *prompts([4, 5], [6, 6], [5, 4]), torch.tensor([9, 3, 7]))
    for number, (prompt, limit) in enumerate((([4, 5], 9), ([6, 6], 3), ([5, 4], 7))):
        alone = greedy(model, *prompts(prompt), torch.tensor([limit]))[0][0]
        assert together[number][0].tokens == alone.tokens
        assert together[number][0].log_probability == pytest.approx(alone.log_probability, abs=1e-5)
