"""Times and confidences: words among tokens, and what each judge says of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tiny_sounds import audio_network, noise
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import PAD, Tokens
from transduce.decoding.score.forced import log_probabilities
from transduce.decoding.speech.timing import (
    MIN_DIAGONALITY,
    TokenTiming,
    _timed_by_attention,
    attention_diagonality,
    time_tokens,
    words_of,
)
from transduce.recipe import Tokens as TokensRecipe

WAVES = [noise(1.0, 1), noise(0.6, 2), noise(0.1, 3)]
TARGETS = [[4, 5, 5, 6], [7], [4, 5, 6, 7, 8]]


@pytest.mark.parametrize(
    ("level", "text", "words"),
    [
        ("character", "ab c", ["ab", "c"]),
        ("character", " a  bc ", ["a", "bc"]),
        ("character", "", []),
        ("symbol", "AH B AH", ["AH", "B", "AH"]),
        ("word", "ab , c", ["ab", ",", "c"]),
        ("subword", "ab cab", ["ab", "cab"]),
        ("byte", "é a", ["é", "a"]),
    ],
)
def test_words_are_found_among_tokens(level: str, text: str, words: list[str]) -> None:
    settings = TokensRecipe.model_validate({"level": level, "size": 300})
    tokens = Tokens.train(settings, ["ab c bc cab AH B AH ab , c"] * 3)
    ids = tokens.encode(text)
    assert [tokens.decode(ids[a:b]).strip() for a, b in words_of(tokens, ids)] == words


def test_what_each_judge_says() -> None:
    network = audio_network()
    with torch.inference_mode():
        reported = time_tokens(network, WAVES, TARGETS, ctc=True)  # type: ignore[arg-type]
        written = log_probabilities(network, WAVES, TARGETS)  # type: ignore[arg-type]
        for wave, target, account, expected in zip(WAVES, TARGETS, reported, written, strict=True):
            assert account.attention == pytest.approx(expected, abs=1e-4)
            batch = collate([wave], None)
            memory = network.encode(batch.source_BS, batch.source_lengths_B)
            loss = F.ctc_loss(
                network.ctc_log_probs(memory).transpose(0, 1),
                torch.tensor([target]),
                memory.lengths_B,
                torch.tensor([len(target)]),
                blank=PAD,
                reduction="sum",
            )
            assert account.ctc == pytest.approx(-float(loss), abs=1e-3)


def test_tokens_are_said_one_after_the_other() -> None:
    network = audio_network()
    with torch.inference_mode():
        reported, one, too_many = time_tokens(network, WAVES, TARGETS, ctc=True)  # type: ignore[arg-type]
    assert len(reported.first) == len(reported.last) == len(reported.ctc_probabilities) == 4
    assert all(a <= b for a, b in zip(reported.first, reported.last, strict=True))
    assert all(b < a for b, a in zip(reported.last, reported.first[1:], strict=False))
    assert reported.last[-1] < network.states_of(len(WAVES[0]))
    assert len(one.first) == 1
    assert too_many.first == []  # five tokens, one state
    assert too_many.ctc == -math.inf


def test_without_ctc_attention_tells_the_times_if_it_moves_along() -> None:
    network = audio_network("model.ctc_weight=0")
    with torch.inference_mode():
        (reported,) = time_tokens(network, WAVES[:1], TARGETS[:1], ctc=False)  # type: ignore[arg-type]
    assert (reported.ctc, reported.first) == (None, [])  # untrained, it looks everywhere
    assert reported.diagonal is not None
    assert abs(reported.diagonal) < MIN_DIAGONALITY
    place_TS = torch.arange(20) - torch.tensor([[2.0], [7.0], [8.0], [16.0]])
    weights_TS = (-place_TS.square() / 2).softmax(dim=1)
    found = _timed_by_attention(TokenTiming([0.0] * 5, None, [], [], [], diagonal=0.9), weights_TS)
    middles = [(a + b) / 2 for a, b in zip(found.first, found.last, strict=True)]
    assert middles == pytest.approx([2, 7, 8, 16], abs=1)
    assert all(b < a for b, a in zip(found.last, found.first[1:], strict=False))
    assert found.ctc_probabilities == []
    strayed = TokenTiming([0.0] * 5, None, [], [], [], diagonal=0.1)
    assert _timed_by_attention(strayed, weights_TS) == strayed
    assert _timed_by_attention(replace(strayed, diagonal=0.9), weights_TS[:, :3]).first == []


def test_what_neither_attention_nor_ctc_followed_is_lost() -> None:
    strayed = TokenTiming([0.0] * 13, -9.0, [], [], [0.3] * 12, diagonal=0.1)
    assert strayed.is_lost
    assert replace(strayed, ctc_probabilities=[]).is_lost
    assert not replace(strayed, ctc_probabilities=[0.6] * 12).is_lost
    assert not replace(strayed, diagonal=0.3).is_lost
    assert not replace(strayed, diagonal=None).is_lost
    assert not replace(strayed, attention=[0.0] * 10).is_lost  # so few tokens tell nothing


def test_what_does_not_attend_tells_no_times() -> None:
    fixed = "model.decoder={kind: recurrent, cell: gru, attention: none}"
    network = audio_network("model.ctc_weight=0", fixed, encoder="recurrent")
    with torch.inference_mode():
        (reported,) = time_tokens(network, WAVES[:1], TARGETS[:1], ctc=False)  # type: ignore[arg-type]
        assert attention_diagonality(network, WAVES, TARGETS) is None  # type: ignore[arg-type]
    assert (reported.diagonal, reported.first) == (None, [])


def test_confidence_is_a_geometric_mean() -> None:
    account = TokenTiming([math.log(0.5), math.log(0.2), 0.0], -1.0, [0, 1], [0, 1], [0.8, 0.9])
    assert account.confidence(0, 1, 0.0) == pytest.approx(0.5)
    assert account.confidence(0, 2, 0.0) == pytest.approx(0.1**0.5)
    assert account.confidence(0, 1, 0.5) == pytest.approx((0.5 * 0.8) ** 0.5)
    assert account.confidence(0, 0, 0.5) == 0.0
