"""Perplexity and bits: by the definition, whatever the tokens, shared out as one likes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from language import TEA, language_model
from transduce.data.text.pairs import Pair, read_pairs
from transduce.errors import DataError, RecipeError
from transduce.evaluation.evaluate import evaluate_folder
from transduce.evaluation.perplexity import in_blocks, metrics_of, text_to_score
from transduce.recipe import Text
from transduce.tasks import LanguageModel

NAMES = ("perplexity", "bits_per_character", "bits_per_byte")
TEXT = "zuko spilt tea\n\nuncle made a cup\nof tea"


def pairs(text: str = TEXT) -> list[Pair]:
    return [
        Pair("", line, "a.txt", number)
        for number, line in enumerate(text.splitlines(keepends=True), start=1)
    ]


def flat(model: LanguageModel) -> LanguageModel:
    with torch.no_grad():
        for parameter in model.network.head.parameters():
            parameter.zero_()
    return model


@pytest.mark.parametrize("level", ["character", "byte", "subword"])
def test_a_model_that_knows_nothing_needs_the_bits_of_its_vocabulary(level: str) -> None:
    model = flat(language_model(level))
    given = text_to_score(pairs("tea é\n" * 40), model.target_tokens, running=True)
    total, tokens = model.negative_log_likelihood(given.texts)
    measured = metrics_of(NAMES, total, given, model.window)
    V = len(model.target_tokens)
    assert measured["perplexity"].value == pytest.approx(V)
    assert (given.characters, given.bytes) == (240, 280)
    bits = tokens * math.log2(V)
    assert measured["bits_per_character"].value == pytest.approx(bits / 240)
    assert measured["bits_per_byte"].value == pytest.approx(bits / 280)


@pytest.mark.parametrize("level", ["character", "subword"])
def test_the_sum_is_that_of_every_token_after_its_window(level: str) -> None:
    model = language_model(level)
    given = text_to_score(pairs(), model.target_tokens, running=True)
    total, tokens = model.negative_log_likelihood(given.texts)
    ids = model.target_tokens.encode(TEXT)
    assert given.texts[0].tolist() == ids
    assert tokens == len(ids) == given.tokens
    expected = -sum(
        model.log_probabilities([ids[position : position + 1]], after=[ids[:position]])[0][0]
        for position in range(len(ids))
    )
    assert total == pytest.approx(expected, abs=1e-5)


def test_processes_share_the_windows() -> None:
    model = language_model()
    given = text_to_score(pairs(), model.target_tokens, running=True)
    whole = model.negative_log_likelihood(given.texts)
    parts = [model.negative_log_likelihood(given.texts, rank, 3) for rank in range(3)]
    assert min(tokens for _, tokens in parts) > 0
    assert sum(tokens for _, tokens in parts) == whole[1]
    assert sum(total for total, _ in parts) == pytest.approx(whole[0], abs=1e-6)


def test_texts_that_end_are_charged_for_it_and_a_line_break_is_its_character(
    tmp_path: Path,
) -> None:
    (tmp_path / "tea.txt").write_text("tea\n\na cup\n")
    model = language_model(lines="apart")
    corpus = Text(text="tea.txt", lines="apart")
    given = text_to_score(read_pairs(corpus, str(tmp_path)), model.target_tokens, running=False)
    assert (given.characters, given.bytes, given.tokens) == (10, 10, 10)
    total, _ = model.negative_log_likelihood(given.texts)
    expected = -sum(score.log_probability for score in model.score(["tea", "a cup"]))
    assert total == pytest.approx(expected, abs=1e-5)


def test_blocks_begin_with_nothing_before_them() -> None:
    model = language_model()
    given = text_to_score(pairs(), model.target_tokens, running=True)
    blocks = in_blocks(given, 8)
    assert [len(block) for block in blocks][:-1] == [8] * (given.tokens // 8)
    assert np.concatenate(blocks).tolist() == given.texts[0].tolist()
    total, _ = model.negative_log_likelihood(blocks)
    expected = -sum(values.sum() for values in model.log_probabilities(blocks))
    assert total == pytest.approx(expected, abs=1e-5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tea.txt").write_text(TEA)
    return tmp_path


def test_a_folder_is_evaluated_on_its_text_or_another(folder: Path) -> None:
    model = language_model(data={"folder": str(folder)})
    evaluation = evaluate_folder(model, folder, split="valid")
    assert list(evaluation.metrics) == ["loss", *NAMES]
    given = text_to_score(pairs(TEA), model.target_tokens, running=True)
    expected = model.negative_log_likelihood(in_blocks(given, 8))[0] / given.tokens
    assert evaluation.metrics["loss"].value == pytest.approx(expected)
    (folder / "other.txt").write_text("tea ☕")
    other = evaluate_folder(
        model, folder, files=(folder / "other.txt", None), metrics="bits_per_byte"
    )
    assert other.metrics["bits_per_byte"].details["unknown_tokens"] == 1
    kept = json.loads((folder / "metrics.json").read_text())
    assert kept["valid"]["items"] == len(TEA)
    assert list(kept["other.txt"]["metrics"]) == ["loss", "bits_per_byte"]
    assert not list(folder.glob("*.hypotheses.txt"))


def test_what_cannot_be_evaluated_is_said(folder: Path) -> None:
    model = language_model(data={"folder": str(folder)})
    with pytest.raises(DataError, match=r"no test set; give --split valid, or --source$"):
        evaluate_folder(model, folder)
    named = {"train": {"name": "tiny-shakespeare", "split": "train"}}
    named["valid"] = {"name": "tiny-shakespeare", "split": "valid"}
    by_name = language_model(data=named)
    with pytest.raises(DataError, match=r"no test set; give --split valid, or --source$"):
        evaluate_folder(by_name, folder)
    with pytest.raises(DataError, match="--source alone"):
        evaluate_folder(model, folder, files=(folder / "tea.txt", folder / "tea.txt"))
    with pytest.raises(RecipeError, match="there is no metric bleu; there are perplexity"):
        evaluate_folder(model, folder, split="valid", metrics="bleu")
