"""The recipe's own rules: what a value may be, and which keys do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from transduce.cookbook import parse_recipe
from transduce.errors import RecipeError
from transduce.recipe import Columns, Named, ParallelFiles, Recipe

DATA = """data:
  train: {source: a, target: b}
  valid: {source: a, target: b}
"""


def read(text: str = DATA, *overrides: str) -> Recipe:
    return parse_recipe(text, "my.yaml", Path("/data"), overrides)


def complaint(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        read(text, *overrides)
    return str(caught.value)


def test_data_is_enough() -> None:
    recipe = read()
    assert recipe.model.encoder.kind == recipe.model.decoder.kind == "transformer"
    assert recipe.data.tokens.both is not None
    assert recipe.metrics == ["bleu", "chrf"]


def test_the_keys_say_which_corpus_it_is() -> None:
    text = "data: {train: {file: a.tsv}, valid: {name: copy, split: valid}, test: {%s}}"
    data = read(text % "source: [a, b], target: [c, d]").data
    assert isinstance(data.train, Columns)
    assert isinstance(data.valid, Named)
    assert isinstance(data.test, ParallelFiles)
    assert data.test.source == ["a", "b"]


@pytest.mark.parametrize(
    "value", ["train.lr=nan", "train.lr=.inf", "train.lr=1e999", "decode.length_penalty=-.inf"]
)
def test_no_number_is_infinite(value: str) -> None:
    key = value.partition("=")[0]
    assert f"{key} is " in complaint(DATA, value)


@pytest.mark.parametrize(
    ("override", "must"),
    [
        ("train.lr=0", "a number above 0"),
        ("train.lr=[1]", "a number above 0"),
        ("train.steps=1.5", "a whole number above 0"),
        ("train.steps=many", "a whole number above 0"),
        ("train.smoothing=1", "a number of at least 0 and below 1"),
        ("train.ema=1", "a number of at least 0 and below 1, or null"),
        ("train.betas=[0.9]", "a list of 2, each a number of at least 0 and below 1"),
        ("seed=-1", "a whole number of at least 0"),
        ("seed=yes", "a whole number of at least 0"),
        ("data.streaming=1", "true or false"),
        ("train.schedule=linea", "inverse-sqrt, linear, cosine or constant; did you mean linear?"),
        ("metrics=bleu", "perplexity, bits_per_character or bits_per_byte; write [bleu]"),
        ("data.train.source=[]", "a file name, a glob, or a list of them"),
        ("data.train.source=[a, 5]", "a file name, a glob, or a list of them"),
        ("data.train.target=''", "a file name, a glob, or a list of them"),
        ("data.train={file: a.tsv, source: -1}", "a number from 0, or a name"),
        ("data.train={file: a.tsv, target: 1.5}", "a number from 0, or a name"),
        ("data.train={file: a.tsv, target: true}", "a number from 0, or a name"),
        ("name=5", "a plain name; put quotes around it"),
        ("name=", "a plain name"),
    ],
)
def test_a_wrong_value_is_told_what_it_must_be(override: str, must: str) -> None:
    said = complaint(DATA, override)
    assert said.count("\n") == 0
    assert said.startswith("on the command line: ")
    assert must in said


@pytest.mark.parametrize("name", ["../x", "a/b", "''", ".", "..", "a\\b"])
def test_a_name_stays_inside_runs(name: str) -> None:
    assert "it becomes a folder in runs/" in complaint(DATA, f"name={name}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "model:\n  width: 64\n  encoder:\n    heads: 3\n",
            "my.yaml:7: model.encoder.heads is 3, which does not divide model.width, 64",
        ),
        ("model:\n  width: 33\n", "my.yaml:5: model.width is 33; it must be even"),
        (
            "model:\n  width: 36\n  encoder: {heads: 6}\n"
            "  decoder: {heads: 4, positions: rotary}\n",
            "my.yaml:7: model.decoder.heads is 4, which leaves 9 of model.width, 36, for each head",
        ),
        (
            "model:\n  encoder:\n    positions: rotary\n    combine: concatenate\n",
            "my.yaml:7: model.encoder.combine is concatenate, but rotary positions turn",
        ),
        (
            "model: {decoder: {positions: none, combine: concatenate}}\n",
            "my.yaml:4: model.decoder.combine is concatenate, but there are no positions",
        ),
        (
            "  tokens: {source: {}, target: {}}\nmodel:\n  tie: all\n",
            "my.yaml:6: model.tie is all, which needs one vocabulary",
        ),
        ("  tokens: {source: {}}\n", "my.yaml:4: data.tokens needs either both, or source and"),
        (
            "  tokens: {both: {}, source: {}, target: {}}\n",
            "my.yaml:4: data.tokens needs either both, or source and",
        ),
        (
            "validation:\n  metric: wer\n",
            "my.yaml:5: validation.metric is wer, which is not measured; add it to metrics, now "
            "bleu, chrf",
        ),
        (
            "model:\n  encoder: {kind: recurrent}\n  decoder: {kind: recurrent, attention: none}\n"
            "decode:\n  coverage: 0.2\n",
            "my.yaml:8: decode.coverage is 0.2, but it is counted by attention to the source",
        ),
        ("validation: {metric: blue}\n", "or bits_per_byte; did you mean bleu?"),
    ],
)
def test_what_does_not_go_together(text: str, said: str) -> None:
    found = complaint(DATA + text)
    assert said in found
    assert "\n" not in found


def test_an_odd_width_is_told_before_its_heads() -> None:
    assert "even" in complaint(DATA, "model.width=33")
    assert "even" in complaint(
        DATA, "model={width: 33, encoder: {kind: recurrent}, decoder: {kind: recurrent}}"
    )


def test_a_recipe_cannot_be_changed_by_accident() -> None:
    recipe = read()
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 2  # type: ignore[misc]
