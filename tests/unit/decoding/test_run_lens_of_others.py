"""A lens on models that take part in a run: rerankers, language models; and around streams."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from language import language_model
from tiny_models import SOURCES as ALL
from tiny_models import tiny
from tiny_sounds import audio_model, noise
from transduce.data.tokens.tokenizer import BEGIN, END
from transduce.errors import ModelError
from transduce.models.lens import Recorder
from transduce.tasks import LanguageModel
from transduce.tasks.audio_input import AudioSegment
from transduce.tasks.transduce import Transducer

CROSS = "decoder.blocks.0.cross_attention"
SELF = "decoder.blocks.0.self_attention"
SOURCES = [source for source in ALL if source]


def fused(model: Transducer, window: int = 64) -> LanguageModel:
    """A language model of the vocabulary of a model's outputs."""
    settings = language_model(lines="apart", data={"max_length": window}).recipe
    torch.manual_seed(1)
    made = LanguageModel.create(settings, model.target_tokens, model.target_tokens)
    made.network.eval()
    return made


@pytest.mark.parametrize("settings", [{}, {"sample": True, "seed": 3}])
def test_around_a_stream(settings: dict[str, object]) -> None:
    model = tiny(banned=True)
    with model.lens(CROSS) as plain:
        model.run(SOURCES[:1], beam=1, **settings)
    with model.lens(CROSS) as lens:
        text = "".join(model.stream(SOURCES[0], **settings))
    (seen,) = lens
    assert (seen.source, seen.output.text) == (SOURCES[0], text)
    assert text
    assert math.isnan(seen.output.score)
    assert seen.target_tokens == plain[0].target_tokens
    np.testing.assert_allclose(seen.weights[CROSS], plain[0].weights[CROSS], atol=1e-6)


def test_around_a_stream_of_speech() -> None:
    model, sound = audio_model(), AudioSegment.of("noise", noise(0.6))
    with model.lens(CROSS) as lens:
        text = "".join(model.stream(sound))
    (seen,) = lens
    assert seen.output.text == text
    assert seen.weights[CROSS].shape[2] == len(seen.times) > 0


def test_a_reranker_shows_every_hypothesis_that_it_scored() -> None:
    model, other = tiny(banned=True), tiny(banned=True, seed=5)
    without = model.run(SOURCES, beam=3, nbest=2, rerank=other)
    with model.lens(CROSS) as ours, other.lens(CROSS) as theirs:
        outputs = model.run(SOURCES, beam=3, nbest=2, rerank=other)
    assert [o.text for o in outputs] == [o.text for o in without]
    assert len(ours) == 2 * len(SOURCES)
    assert len(theirs) == 3 * len(SOURCES), "the whole beam is scored"
    returned = {(seen.source, seen.output.text) for seen in ours}
    assert returned <= {(seen.source, seen.output.text) for seen in theirs}
    for seen in theirs:
        (score,) = other.score([seen.source], [seen.output.text])
        assert seen.output.log_probability == pytest.approx(score.log_probability, abs=1e-4)
    with other.lens(CROSS) as alone:
        other.score([theirs[0].source], [theirs[0].output.text])
    np.testing.assert_allclose(theirs[0].weights[CROSS], alone[0].weights[CROSS], atol=1e-5)


def test_the_language_model_of_shallow_fusion_shows_what_it_read() -> None:
    model = tiny(banned=True)
    language = fused(model)
    asked = {"beam": 3, "nbest": 2, "lm_weight": 0.5, "max_length": 12}
    without = model.run(SOURCES, language_model=language, **asked)
    with language.lens(SELF) as lens:
        outputs = model.run(SOURCES, language_model=language, **asked)
    assert [o.score for o in outputs] == [o.score for o in without]
    written = [(s, o) for s, one in zip(SOURCES, outputs, strict=True) for o in one.alternatives]
    assert [(e.source, e.output.text) for e in lens] == [(s, o.text) for s, o in written]
    for entry, (_, output) in zip(lens, written, strict=True):
        read_1T = torch.tensor([[BEGIN, *output.ids]])
        with torch.no_grad(), Recorder(language.network, [SELF]) as recorder:
            recorder.network(read_1T)
        np.testing.assert_allclose(entry.weights[SELF], recorder.found[SELF][0], atol=1e-5)
        assert entry.output.ids == [*output.ids, END]


def test_what_a_language_model_cannot_show_is_reported() -> None:
    model = tiny(banned=True)
    language = fused(model, window=4)
    with language.lens(SELF), pytest.raises(ModelError, match="up to 5 tokens, the context window"):
        model.run(SOURCES, language_model=language, max_length=12)
