"""Which hypothesis becomes final, and what of a partial transcript is stable."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers

from tiny_sounds import audio_model
from transduce.data.tokens.tokenizer import PAD
from transduce.nn.ctc.prefix_beam import PrefixSearch
from transduce.tasks.live import utterance as module
from transduce.tasks.live.utterance import Finals, Utterance, best_hypotheses

MODEL = audio_model(letters="abc ")
A, B, C = MODEL.target_tokens.encode_batch(["abc"])[0]


def seconds(utterance: Utterance, state: float) -> float:
    return utterance.start / 4000 + 0.04 * state


def log_probs(*frames: dict[int, float]) -> torch.Tensor:
    probs_1SV = torch.full((1, len(frames), len(MODEL.target_tokens)), 1e-6)
    for s, frame in enumerate(frames):
        for label, p in frame.items():
            probs_1SV[0, s, label] = p
    return probs_1SV.log()


FRAMES = [{A: 0.9, PAD: 0.1}, {PAD: 0.9, A: 0.1}, {B: 0.5, C: 0.4, PAD: 0.1}, {PAD: 1.0}]


@pytest.mark.parametrize(("weight", "text"), [(1.0, "ab"), (0.9, "ab"), (0.1, "ac")])
def test_the_decoder_has_its_share_in_the_choice(
    weight: float, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_probs_BSV = log_probs(*FRAMES)
    search = PrefixSearch(beam=3)
    prefixes = search.advance(search.start(1), log_probs_BSV, torch.tensor([4]))

    def prefers_c(network: object, states: object, lists: list[list[list[int]]]) -> object:
        return [[[-0.01 if C in ids else -0.5] * (len(ids) + 1) for ids in lists[0]]]

    monkeypatch.setattr(module, "attention_scores", prefers_c)
    network = MODEL.network
    monkeypatch.setattr(network, "ctc_log_probs_of", lambda states_SD: log_probs_BSV[0])
    spoken = Utterance(2, 8000)
    spoken.add(torch.zeros(4, 16), 1)
    (final,) = Finals(network, MODEL.target_tokens, weight).of([spoken], prefixes, seconds)
    assert (final.text, final.final, final.utterance, final.stable) == (text, True, 2, 2)
    (word,) = final.words
    assert (word.start, word.end) == pytest.approx((2.0, 2.12))
    assert final.confidence is not None
    assert 0 < final.confidence < 1


def test_a_partial_is_stable_as_far_as_all_hypotheses_agree() -> None:
    search = PrefixSearch(beam=2)
    prefixes = search.advance(search.start(1), log_probs(*FRAMES), torch.tensor([4]))
    (best,) = best_hypotheses(prefixes)
    assert (best.ids, best.frames, best.agreed) == ([A, B], [0, 2], 1)
    assert best.probabilities == pytest.approx([0.9, 0.5], abs=1e-3)
    spoken = Utterance(0, 0)
    spoken.add(torch.zeros(4, 16), 1)
    partial = spoken.partial(best, MODEL.target_tokens, seconds)
    assert partial is not None
    assert (partial.text, partial.stable, partial.final) == ("ab", 1, False)
    assert partial.confidence == pytest.approx((0.9 * 0.5) ** 0.5, abs=1e-3)
    assert spoken.partial(best, MODEL.target_tokens, seconds) is None


@given(integers(0, 2**31), integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_what_is_stable_is_the_beginning_of_all_later_hypotheses(seed: int, beam: int) -> None:
    torch.manual_seed(seed)
    log_probs_BSV = torch.log_softmax(3 * torch.randn(1, 24, len(MODEL.target_tokens)), dim=-1)
    search = PrefixSearch(beam, candidates=4)
    prefixes, stable = search.start(1), ""
    spoken = Utterance(0, 0)
    for start in range(0, 24, 2):
        prefixes = search.advance(prefixes, log_probs_BSV[:, start : start + 2], torch.tensor([2]))
        (best,) = best_hypotheses(prefixes)
        spoken.add(torch.zeros(2, 16), 0)
        partial = spoken.partial(best, MODEL.target_tokens, seconds)
        for hypothesis in module._nbest(prefixes)[0]:  # any of which the decoder may choose
            assert MODEL.target_tokens.decode(hypothesis).strip().startswith(stable)
        if partial is not None:
            stable = partial.text[: partial.stable]


@pytest.mark.parametrize(
    ("text", "composed", "stays"),
    [
        ("ab ", False, "ab"),
        ("ab \ufffd", False, "ab"),
        ("né", True, "n"),
        ("ne", True, "n"),  # an accent may follow
        ("n e", True, "n"),
        ("x\u0323\u0307", True, ""),  # no character is composed of these three
        ("", True, ""),
        ("né", False, "né"),
    ],
)
def test_what_of_a_text_can_still_change(text: str, composed: bool, stays: str) -> None:
    assert module._settled(text, composed) == stays


def test_silence_at_the_end_is_counted_across_chunks() -> None:
    spoken = Utterance(0, 0)
    for silent, expected in ((1, 1), (4, 5), (4, 9), (0, 0), (3, 3)):
        spoken.add(torch.zeros(4, 16), silent)
        assert spoken.silence == expected
    assert spoken.states == 20
