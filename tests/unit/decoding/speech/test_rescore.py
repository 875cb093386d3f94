"""Attention rescoring gives what scoring of a given target gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tiny_sounds import audio_model, noise
from transduce.decoding.speech import rescore
from transduce.decoding.speech.rescore import attention_scores


def test_scores_are_those_of_given_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    model = audio_model()
    texts = [["ab", "a", ""], ["ed cba"], ["c", "dd"]]
    waves = [noise(seconds, seed) for seed, seconds in enumerate((1.0, 2.3, 0.7))]
    hypotheses = [model.target_tokens.encode_batch(of_one) for of_one in texts]
    with torch.inference_mode():
        states = [
            model.network.encode(torch.from_numpy(wave)[None], torch.tensor([len(wave)]))
            for wave in waves
        ]
        utterances = [memory.states_BSD[0] for memory in states]
        found = attention_scores(model.network, utterances, hypotheses)
        monkeypatch.setattr(rescore, "NUMBERS_AT_ONCE", 1)  # one utterance at a time
        apart = attention_scores(model.network, utterances, hypotheses)
    for wave, of_one, values, again in zip(waves, texts, found, apart, strict=True):
        scores = model.score([wave] * len(of_one), of_one, rate=4000)
        for score, ours, same in zip(scores, values, again, strict=True):
            np.testing.assert_allclose(ours, score.token_log_probabilities, atol=1e-5)
            np.testing.assert_allclose(same, ours, atol=1e-5)
    assert attention_scores(model.network, [], []) == []
