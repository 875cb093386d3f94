"""Given texts through a language model: the numbers of the definition, in few passes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from language import LSTM, language_network
from transduce.data.tokens.tokenizer import BEGIN
from transduce.decoding.score import language_model as reading
from transduce.decoding.score import logits
from transduce.decoding.score.context import window_of
from transduce.models.language_model import LanguageModelNetwork

VOCABULARY = 7
KINDS: dict[str, dict[str, Any] | None] = {"transformer": None, "lstm": LSTM}
TEXTS = [[4, 5, 6, 6, 5, 4, 4, 4, 6, 5, 5], [6], [], [5, 5, 4, 6]]


@torch.no_grad()
def alone(network: LanguageModelNetwork, text: list[int], position: int, size: int) -> torch.Tensor:
    tokens_1T = torch.tensor([[BEGIN, *text[window_of(position, size) : position]]])
    return torch.log_softmax(network.head(network(tokens_1T)[0, -1]), dim=-1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 8, 64])
@torch.no_grad()
def test_every_token_is_worth_what_the_model_says_after_its_window(kind: str, size: int) -> None:
    network = language_network(VOCABULARY, KINDS[kind])
    found = reading.log_probabilities(network, TEXTS, size)
    assert [len(values) for values in found] == [len(text) for text in TEXTS]
    for text, values in zip(TEXTS, found, strict=True):
        for position, value in enumerate(values):
            expected = float(alone(network, text, position, size)[text[position]])
            assert value == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
def test_it_does_not_matter_how_many_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network = language_network(VOCABULARY)
    whole = reading.log_probabilities(network, TEXTS, 4)
    monkeypatch.setattr(reading, "PLACES", 8)
    monkeypatch.setattr(logits, "AT_ONCE", 2)
    for one, other in zip(whole, reading.log_probabilities(network, TEXTS, 4), strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("size", [3, 64])
@torch.no_grad()
def test_distributions_are_those_of_the_same_passes(size: int) -> None:
    network = language_network(VOCABULARY)
    starts = [3, 0, 0, 2]
    found = reading.distributions(network, TEXTS, starts, size)
    for text, start, log_probs_KV in zip(TEXTS, starts, found, strict=True):
        assert log_probs_KV.shape == (len(text) - start, VOCABULARY)
        np.testing.assert_allclose(np.exp(log_probs_KV).sum(axis=1), 1.0)
        for place, row_V in enumerate(log_probs_KV):
            expected_V = alone(network, text, start + place, size)
            np.testing.assert_allclose(row_V, expected_V.numpy(), atol=1e-9)


@torch.no_grad()
def test_a_model_that_knows_nothing_finds_all_tokens_alike() -> None:
    network = language_network(VOCABULARY)
    for parameter in network.head.parameters():
        parameter.zero_()
    for values in reading.log_probabilities(network, TEXTS, 4):
        assert values == pytest.approx([-math.log(VOCABULARY)] * len(values))
