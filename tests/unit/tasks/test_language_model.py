"""A language model in a person's hands: prompts continued, texts scored, whatever the search."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import transduce
from language import LSTM, TEA, language_model
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.errors import ModelError, RecipeError
from transduce.recipe import parse_recipe
from transduce.tasks import LanguageModel
from transduce.tasks.language_model import Continuation

PROMPTS = ["tea", "", "uncle iroh made", "a cup", "zuko", "of tea\nand"]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam": {"beam": 4, "nbest": 2},
    "groups": {"beam": 4, "groups": 2},
    "sample": {"sample": True, "temperature": 0.7, "top_k": 5},
    "nucleus": {"sample": True, "top_p": 0.8, "nbest": 3},
    "mbr": {"mbr": "chrf", "samples": 4},
    "wishes": {"beam": 4, "include": ["tea"], "exclude": ["u"], "no_repeat_ngram": 2},
    "bounds": {"min_length": 9, "max_length": 9, "only": ["tea"]},
}


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return language_model()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["transformer", "lstm"])
def test_every_search_continues_and_neighbours_change_nothing(kind: str, way: str) -> None:
    model = language_model(decoder=LSTM if kind == "lstm" else None)
    together = model.run(PROMPTS, **WAYS[way])
    for prompt, output in zip(PROMPTS, together, strict=True):
        assert output.text.startswith(prompt)
        assert output.warning == ""
        (alone,) = model.run([prompt], **WAYS[way])
        assert (alone.text, alone.tokens) == (output.text, output.tokens)
        assert alone.log_probability == pytest.approx(output.log_probability, abs=1e-6)


@pytest.mark.parametrize("way", ["greedy", "beam", "sample", "wishes"])
def test_what_a_search_reports_is_what_the_text_is_worth(model: LanguageModel, way: str) -> None:
    outputs = model.run(PROMPTS, unknown=False, **WAYS[way])  # <unk> has no text to score
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        (score,) = model.score([prompt], [output.text[len(prompt) :]])
        assert score.tokens == output.tokens
        assert output.log_probability == pytest.approx(score.log_probability, abs=1e-5)


def test_running_text_is_written_to_the_length_that_was_asked_for() -> None:
    model = language_model()
    with torch.no_grad():
        model.network.head.bias[END] = 20.0  # however likely an end may seem
    for length in (1, 5, 40):  # a window holds eight
        for output in model.run(PROMPTS, max_length=length):
            assert len(output.tokens) == length
    assert [len(o.tokens) for o in model.run(["tea"], sample=True)] == [6]  # decode.max_extra


def test_texts_that_end_end_and_those_that_are_cut_are_not_charged_for_it() -> None:
    model = language_model(lines="apart")
    with torch.no_grad():
        model.network.head.bias[END] += 6.0
    asked: dict[str, Any] = {"sample": True, "nbest": 300, "max_length": 3, "unknown": False}
    drawn = model.run(["tea"], **asked)[0].alternatives
    sizes = {len(output.tokens) for output in drawn}
    assert 3 in sizes  # those that were cut
    assert len(sizes) > 2
    for output in {output.text: output for output in drawn}.values():
        (score,) = model.score(["tea"], [output.text[3:]])
        *written, end = score.token_log_probabilities
        ended = len(output.tokens) < 3
        expected = math.fsum(written) + (end if ended else 0.0)
        assert output.log_probability == pytest.approx(expected, abs=1e-5)


def test_all_that_may_be_drawn_together_has_probability_one() -> None:
    """Over texts of at most two tokens, ended or cut; but for PAD and BEGIN, never written."""
    model = language_model(lines="apart")
    V = len(model.target_tokens)
    letters = [token for token in range(V) if token not in (PAD, BEGIN, END)]
    (first,) = model.distributions([Continuation([5, 6], [END])])
    total = math.exp(first[0, END])
    for one in letters:
        (second,) = model.distributions([Continuation([5, 6], [one, END])])
        total += math.exp(first[0, one]) * sum(math.exp(second[1, t]) for t in [*letters, END])
        total += math.exp(first[0, one]) * sum(math.exp(second[1, t]) for t in (PAD, BEGIN))
    total += sum(math.exp(first[0, token]) for token in (PAD, BEGIN))
    assert total == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("level", ["character", "subword", "byte", "word"])
@pytest.mark.parametrize("prompt", ["tea", "", "a cup", "uncle\n", "Ω tea", "spilt"])
def test_a_stream_gives_the_text_of_run(level: str, prompt: str) -> None:
    model = language_model(level)
    for settings in ({}, {"sample": True, "seed": 7}):
        pieces = list(model.stream(prompt, max_length=12, **settings))
        assert len(pieces) > 1 or level == "byte"  # random bytes are hardly ever characters
        (output,) = model.run([prompt], max_length=12, **settings)
        assert "".join(pieces) == output.text
        assert output.text.startswith(prompt)


def test_subwords_go_on_without_a_space_that_nobody_wrote() -> None:
    model = language_model("subword")
    tokens = model.target_tokens
    (score,) = model.score(["un"], ["cle iroh"])
    assert tokens.decode(tokens.encode("un")) + "".join(score.tokens).replace("▁", " ") == (
        "uncle iroh"
    )
    (whole,) = model.score(["uncle iroh"])
    assert "".join(whole.tokens) == "▁uncle▁iroh"


def test_perplexity_of_a_model_that_knows_nothing_is_the_size_of_its_vocabulary() -> None:
    model = language_model()
    with torch.no_grad():
        for parameter in model.network.head.parameters():
            parameter.zero_()
    for score in model.score(["tea", TEA, "t"]):
        assert score.perplexity == pytest.approx(len(model.target_tokens))


def test_a_text_is_worth_its_parts(model: LanguageModel) -> None:
    (whole,) = model.score(["a cup of tea"])
    (first,) = model.score(["a cup"])
    (rest,) = model.score(["a cup"], [" of tea"])
    together = first.token_log_probabilities + rest.token_log_probabilities
    assert whole.token_log_probabilities == pytest.approx(together, abs=1e-6)
    assert [s.log_probability for s in model.score([""])] == [0.0]


def test_models_write_together_and_judge_each_other(model: LanguageModel) -> None:
    other = language_model(decoder=LSTM, seed=8)
    (both,) = model.run(["tea"], ensemble=[other], max_length=12)
    following = both.text[3:]
    logs = [m.score(["tea"], [following])[0].token_log_probabilities for m in (model, other)]
    expected = float(np.log(np.exp(logs).mean(axis=0)).sum())
    assert both.log_probability == pytest.approx(expected, abs=1e-5)
    (rescored,) = model.run(["tea"], beam=4, nbest=4, rerank=other, length_penalty=0.0)
    for output in rescored.alternatives:
        (second,) = other.score(["tea"], [output.text[3:]])
        worth = output.log_probability + second.log_probability
        assert output.score == pytest.approx(worth, abs=1e-5)


@pytest.mark.parametrize("kind", ["int8", "bfloat16"])
def test_fewer_bits_continue_too(kind: str) -> None:
    model = language_model()
    model.network.float()
    assert model.compute_in(kind).run(["tea"], max_length=4)[0].text.startswith("tea")


def test_it_is_saved_and_loaded(tmp_path: Path, model: LanguageModel) -> None:
    saved = language_model()
    saved.network.float()
    saved.save(tmp_path)
    loaded = transduce.load(tmp_path)
    assert isinstance(loaded, LanguageModel)
    assert loaded.run(PROMPTS) == saved.run(PROMPTS)


def test_a_prompt_with_unknown_letters_is_given_back_whole(model: LanguageModel) -> None:
    (output,) = model.run(["tea ☕\x00<s>"])
    assert output.text.startswith("tea ☕\x00<s>")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"attention": True}, "a language model does not attend to a source"),
        ({"coverage_penalty": 0.5}, "coverage_penalty needs attention to the source"),
        ({"max_length": 0}, "max_length is 0; it must be 1 or more"),
        ({"min_length": 5, "max_length": 4}, "min_length is 5, above max_length, 4"),
        ({"max_length": 2.5}, "it must be a whole number"),
    ],
)
def test_what_it_cannot_do_is_said(model: LanguageModel, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        model.run(["tea"], **asked)


RECIPE = """
task: language_modeling
data: {train: {text: a.txt}, valid: {text: b.txt}, tokens: {both: {level: character}}}
"""


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.encoder={kind: transformer}", "a language model .* does not use it"),
        ("data.train={source: a, target: b}", "data.train does not fit task: language_modeling"),
        ("task=transduce", "data.train does not fit task: transduce, which trains on sources"),
        ("data.valid.lines=apart", "data.valid.lines is apart; it must equal data.train.lines"),
        ("data.tokens={source: {}, target: {}}", "data.tokens has source and target"),
        ("model.decoder={kind: recurrent}", "model.decoder.attention is general, but a language"),
        ("metrics=[bleu]", "bleu, which is not for a language model"),
        ("decode.coverage_penalty=0.1", "a language model .* does not use it"),
        ("model.decoder.max_positions=100", "max_positions is 100, but data.max_length allows 257"),
    ],
)
def test_recipes_that_cannot_be_are_refused_in_one_sentence(override: str, said: str) -> None:
    learned = ["model.decoder.positions=learned"] if "max_positions" in override else []
    with pytest.raises(RecipeError, match=said):
        parse_recipe(RECIPE, "r.yaml", Path(), [*learned, override])


def test_a_recipe_is_judged_as_language_models_are() -> None:
    made = parse_recipe(RECIPE, "r.yaml", Path())
    assert made.metrics == ["perplexity", "bits_per_character", "bits_per_byte"]
    assert made.model.encoder is None
