"""Models compared on the same items."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from language import language_model
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError
from transduce.evaluation.compare import compare_models
from transduce.evaluation.evaluate import evaluate_folder
from transduce.inspection.compare_page import comparison_page, marked
from transduce.recipe import parse_recipe
from transduce.tasks.transduce import Transducer

RECIPE = """
data:
  train: {file: train.tsv}
  valid: {file: test.tsv}
  test: {file: test.tsv}
  tokens: {both: {level: character}}
model:
  width: 16
  encoder: {layers: 1, heads: 2, feed_forward: 16}
  decoder: {layers: 1, heads: 2, feed_forward: 16}
decode: {beam: 1}
metrics: [exact, cer]
"""
WORDS = [f"{one}{two}" for one in "abcd" for two in "abcd"]


class Scripted(Transducer):
    """Says what it is told to."""

    said: dict[str, str]

    def run(self, sources, **settings):  # type: ignore[no-untyped-def]
        plain = super().run(sources, **settings)
        return [replace(o, text=self.said[s]) for s, o in zip(sources, plain, strict=True)]


def scripted(folder: Path, wrong: set[str]) -> Scripted:
    """Copies its source, but for those that it gets wrong."""
    parsed = parse_recipe(RECIPE, "tiny", folder)
    assert parsed.data.tokens.both is not None
    torch.manual_seed(1)
    tokens = Tokens.train(parsed.data.tokens.both, ["abcd <script>"])
    model = Scripted.create(parsed, tokens, tokens)
    model.said = {word: "zzzz" if word in wrong else word for word in WORDS}
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test.tsv").write_text("".join(f"{word}\t{word}\n" for word in WORDS))
    return tmp_path


def test_scores_differences_and_what_differs_most(folder: Path) -> None:
    first, second = scripted(folder, set(WORDS[:10])), scripted(folder, {"ab"})
    second.said["dd"] = "da"
    found = compare_models([("one", first), ("two", second)], folder)
    one, two = found.models
    assert one.metrics["exact"].value == pytest.approx(37.5)
    assert two.metrics["exact"].value == pytest.approx(87.5)
    assert one.differences == {}
    exact = two.differences["exact"]
    assert exact.value == pytest.approx(50.0)
    assert exact.is_clear
    assert exact.p is not None
    assert exact.p < 0.05
    assert two.differences["cer"].value < 0  # fewer errors
    # Each by itself: aa and others are 200 % apart, dd 50 %, ab not at all.
    different = found.most_different("cer", 16)
    assert [WORDS[place] for place in different[:9]] == [w for w in WORDS[:10] if w != "ab"]
    assert [WORDS[place] for place in different[9:]] == ["dd"]
    values = json.loads(json.dumps(found.to_json()))
    assert values["models"][1]["differences"]["exact"]["value"] == pytest.approx(50.0)
    assert values["most_different"][0]["predictions"] == {"one": "zzzz", "two": "aa"}


def test_a_model_is_no_better_than_itself(folder: Path) -> None:
    model = scripted(folder, set(WORDS[::2]))
    found = compare_models([("one", model), ("same", model)], folder, metrics="exact")
    same = found.models[1].differences["exact"]
    assert (same.value, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)
    assert found.most_different("exact", 5) == []


def test_the_scores_are_those_of_evaluate(folder: Path) -> None:
    model = scripted(folder, {"aa"})
    model.save(folder)
    alone = evaluate_folder(model, folder)
    found = compare_models([("one", model), ("two", model)], folder)
    assert found.models[1].metrics["cer"] == alone.metrics["cer"]


def test_files_of_ones_own_a_limit_and_notes(folder: Path, tmp_path: Path) -> None:
    model = scripted(folder, set())
    for name in ("s.txt", "t.txt"):
        (tmp_path / name).write_text("aa\nab\nac\n")
    files = (tmp_path / "s.txt", tmp_path / "t.txt")
    models = [("one", model), ("two", model), ("three", model)]
    found = compare_models(models, folder, files=files, limit=2)
    assert len(found.items) == 2
    assert "multiply each p by 2" in found.notes[0]


def test_models_of_other_tasks_are_refused(folder: Path) -> None:
    with pytest.raises(
        ModelError, match="lm does the task language_modeling and one the task transduce"
    ):
        compare_models([("one", scripted(folder, set())), ("lm", language_model())], folder)


def test_language_models_line_by_line(tmp_path: Path) -> None:
    model, other = language_model(), language_model()
    with torch.no_grad():
        for parameter in other.network.parameters():
            parameter.mul_(1.5)
    (tmp_path / "text.txt").write_text("ab\nba ab\nabba\n")
    files = (tmp_path / "text.txt", None)
    found = compare_models([("one", model), ("two", other)], tmp_path, files=files)
    model.save(tmp_path / "model")
    alone = evaluate_folder(model, tmp_path / "model", files=files)
    for name in ("perplexity", "bits_per_character"):
        assert found.models[0].metrics[name].value == pytest.approx(alone.metrics[name].value)
    assert found.models[1].differences["bits_per_byte"].p is not None
    assert "resampled" in found.notes[0]


def test_nothing_in_the_page_can_run(folder: Path) -> None:
    evil = '<script>alert(1)</script> & "x'
    first, second = scripted(folder, set()), scripted(folder, set(WORDS))
    first.said["aa"] = evil
    found = compare_models([("<b>one</b>", first), ("two", second)], folder, metrics="cer")
    page = comparison_page(found, [first, second])
    assert "<script" not in page
    assert "<b>one" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.replace("<del>", "").replace(
        "</del>", ""
    )
    assert "http" not in page.replace("http-equiv", "")
    assert "attention of two to the source" in page


def test_what_the_reference_has_not_is_marked() -> None:
    assert marked("the cat sat", "the dog sat <b>") == (
        "the <del>dog</del> sat <del>&lt;b&gt;</del>"
    )
    assert marked("x", "") == "(nothing)"
    assert marked("tlps", "tlxps<") == "tl<del>x</del>ps<del>&lt;</del>"
