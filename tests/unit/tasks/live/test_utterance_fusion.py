"""A language model scores the next token of live hypotheses."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from fixtures.make_models import MODELS, in_noise
from tiny_sounds import audio_model
from transduce.data.audio.corpus import to_int16
from transduce.data.tokens.tokenizer import END
from transduce.errors import ModelError
from transduce.recipe import parse_recipe
from transduce.tasks import LanguageModel, NgramModel, SpeechModel
from transduce.tasks.live.utterance import Fusion
from transduce.tasks.transduce import create, load

RECIPE = """
task: language_modeling
data:
  train: {text: train.txt, lines: apart}
  valid: {text: valid.txt, lines: apart}
  tokens: {both: {level: character}}
  max_length: 6
model: {width: 16, decoder: {layers: 1, heads: 2, feed_forward: 32}}
"""


def language_model(model: SpeechModel) -> LanguageModel:
    """Untrained; it has an opinion all the same."""
    recipe = parse_recipe(RECIPE, "recipe", Path())
    torch.manual_seed(3)
    made = create(recipe, model.target_tokens, model.target_tokens)
    assert isinstance(made, LanguageModel)
    made.network.eval()
    return made


def test_scores_are_those_of_the_language_model() -> None:
    model = audio_model()
    language = language_model(model)
    fusion = Fusion(model, language, 0.5)
    texts = [[], [4, 5], [6, 4, 5, 5, 4, 7, 6, 4, 5]]  # the last beyond its window
    tokens_RU = torch.tensor([[*text, *[0] * (9 - len(text))] for text in texts])
    with torch.inference_mode():
        scores_RV = fusion.scores(tokens_RU, torch.tensor([len(text) for text in texts]))
    for row, text in enumerate(texts):
        seen = text[-(language.window - 1) :]
        for token in (END, 5):
            (expected,) = language.log_probabilities([[*seen, token]])
            assert float(scores_RV[row, token]) == pytest.approx(0.5 * expected[-1], abs=1e-5)


def test_it_has_a_say_in_the_transcript() -> None:
    model = load(MODELS / "live")
    assert isinstance(model, SpeechModel)
    samples = to_int16(np.asarray(in_noise("abcd ab", random.Random(4))))
    found = []
    for weight in (None, 0.0, 20.0):
        asked = {} if weight is None else {"language_model": language_model(model)}
        with model.live(4000, **asked, lm_weight=weight) as session:
            given = session.feed(samples) + session.finish()
            found.append([one.text for one in given if one.final])
    assert found[0] == found[1] == ["abcd ab"]
    assert found[2] != found[0]


def test_another_vocabulary_is_refused() -> None:
    model = load(MODELS / "live")
    assert isinstance(model, SpeechModel)
    other = language_model(audio_model(letters="xyz"))
    with pytest.raises(ModelError, match="another vocabulary"):
        model.live(4000, language_model=other)


ARPA = """\\data\\
ngram 1=4
ngram 2=2
\\1-grams:
-2 <s> 0
-1 </s>
-3 abcd -0.1
-0.2 abb
\\2-grams:
-0.1 <s> abcd
-0.1 abcd abb
\\end\\
"""


def test_an_n_gram_model_has_a_say_as_well(tmp_path: Path) -> None:
    (tmp_path / "words.arpa").write_text(ARPA)
    words = NgramModel.load(tmp_path / "words.arpa")
    model = load(MODELS / "live")
    assert isinstance(model, SpeechModel)
    samples = np.asarray(in_noise("abcd ab", random.Random(4)))
    asked = {"rate": 4000, "times": True, "ctc_weight": 0.5, "language_model": words}
    for weight, text in ((0.3, "abcd ab"), (2.0, "abcd abb")):
        (output,) = model.run([samples], **asked, lm_weight=weight)
        assert output.text == text
        parts = output.parts
        total = 0.5 * parts["attention"] + 0.5 * parts["ctc"] + weight * parts["language_model"]
        assert output.log_probability == pytest.approx(total, abs=1e-2)
        with model.live(4000, language_model=words, lm_weight=4 * weight, beam=20) as session:
            given = session.feed(to_int16(samples)) + session.finish()
            assert [one.text for one in given if one.final] == [text]
