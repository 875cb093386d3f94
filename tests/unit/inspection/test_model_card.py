"""The model card says what is so, and nothing that is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from transduce.data.tokens.tokenizer import Tokens
from transduce.evaluation.evaluate import evaluate
from transduce.evaluation.items import Item
from transduce.evaluation.results import write_evaluation
from transduce.inspection.model_card import write_card
from transduce.recipe import parse_recipe
from transduce.storage import write_json
from transduce.tasks.transduce import Transducer

TRANSFORMER = """
name: letters
data:
  train: {source: [a.src, b.src], target: [a.tgt, b.tgt], limit: 5000}
  valid: {name: copy, split: valid}
  tokens: {source: {level: character}, target: {level: symbol}}
model:
  width: 16
  encoder: {layers: 2, heads: 4, feed_forward: 32, positions: rotary}
  decoder: {layers: 1, heads: 2, feed_forward: 16}
decode: {max_ratio: 1, max_extra: 2}
validation: {metric: per}
metrics: [per, exact]
"""
RECURRENT = """
name: states
data:
  train: {file: pairs.tsv}
  valid: {file: more.tsv}
  tokens: {both: {level: character}}
model:
  width: 16
  tie_embeddings: all
  encoder: {kind: recurrent, cell: gru, bidirectional: false}
  decoder: {kind: recurrent, cell: gru, attention: additive}
"""
# What training writes into metrics.json; a card without it does not speak of training.
TRAINING = {
    "steps": 1234,
    "seconds": 90.0,
    "best_step": 1200,
    "device": "a slow CPU",
    "precision": "float32",
}


def model(text: str) -> Transducer:
    recipe = parse_recipe(text, "test", Path("/data"))
    sides = recipe.data.tokens
    torch.manual_seed(1)
    if sides.both is not None:
        tokens = Tokens.train(sides.both, ["abc"])
        return Transducer.create(recipe, tokens, tokens)
    assert sides.source is not None
    assert sides.target is not None
    source = Tokens.train(sides.source, ["abcd"])
    return Transducer.create(recipe, source, Tokens.train(sides.target, ["A B"]))


def card(of: Transducer, folder: Path) -> str:
    write_card(of, folder)
    return (folder / "README.md").read_text("utf-8")


def test_a_transformer(tmp_path: Path) -> None:
    made = model(TRANSFORMER)
    said = card(made, tmp_path)
    assert "\n---\n\n# letters\n" in said
    count = sum(p.numel() for p in made.network.parameters())
    assert f"A sequence-to-sequence model of {count:,} parameters" in said
    assert "- Encoder: Transformer, layers 2, heads 4, feed_forward 32" in said
    assert "positions rotary" in said
    assert "- Decoder: Transformer, layers 1, heads 2" in said
    assert "Width 16, dropout 0.1, tied embeddings: target" in said
    assert "Source tokens: 8 (character), target tokens: 6 (symbol)" in said
    assert (
        "Trained on the first 5,000 pairs of a.src, b.src and a.tgt, b.tgt, "
        "chosen by per on copy (valid)"
    ) in said
    assert f'transduce run {tmp_path} "..."' in said


def test_a_recurrent_model(tmp_path: Path) -> None:
    said = card(model(RECURRENT), tmp_path)
    assert "- Encoder: recurrent, cell gru, layers 1, bidirectional no, reverse no" in said
    assert "- Decoder: recurrent, cell gru, layers 1, attention additive" in said
    assert "tied embeddings: all" in said
    assert "Trained on pairs.tsv, chosen by loss on more.tsv" in said
    assert not re.search(r"Transformer|heads|True|False|None|\[", said)


def head_of(said: str) -> dict[str, Any]:
    """What the hub reads: YAML between two lines of dashes."""
    empty, head, _ = said.split("---\n", 2)
    assert empty == ""
    values: dict[str, Any] = yaml.safe_load(head)
    return values


def test_the_head_says_what_was_measured_and_nothing_else(tmp_path: Path) -> None:
    made = model(TRANSFORMER)
    head = head_of(card(made, tmp_path))
    assert head == {
        "license": "unknown",
        "library_name": "transduce",
        "pipeline_tag": "text2text-generation",
        "tags": ["transduce", "transformer"],
    }
    items = [Item("ab", ["A B"]), Item("c", ["A"])]
    evaluation = evaluate(made, items, ["per", "exact"], bootstrap=0)
    write_evaluation(tmp_path, "test", evaluation)
    head = head_of(card(made, tmp_path))
    assert head["metrics"] == ["exact", "per"]
    (index,) = head["model-index"]
    assert index["name"] == "letters"
    found = {one["metrics"][0]["type"]: one["metrics"][0]["value"] for one in index["results"]}
    assert found == {
        name: pytest.approx(metric.value, abs=1e-3) for name, metric in evaluation.metrics.items()
    }
    assert index["results"][0]["dataset"]["split"] == "test"


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    said = card(model(TRANSFORMER), tmp_path)
    unknown = said.partition("## What is not known")[2]
    assert "licence of the weights" in unknown
    assert "The languages: not stated" in unknown
    assert "not measured yet" in unknown
    assert "no slices were measured" in unknown
    named = TRANSFORMER.replace(
        "{source: [a.src, b.src], target: [a.tgt, b.tgt], limit: 5000}",
        "{name: multi30k, split: train, pair: en-de}",
    )
    said = card(model(named), tmp_path)
    assert head_of(said)["language"] == ["en", "de"]
    assert "The languages" not in said


def test_before_and_after_evaluation(tmp_path: Path) -> None:
    made = model(TRANSFORMER)
    before = card(made, tmp_path)
    assert "Not measured yet: run `transduce evaluate` on this folder." in before
    assert "updates in" not in before
    write_json(tmp_path / "metrics.json", {"training": TRAINING})
    trained = card(made, tmp_path)
    assert "1,234 updates in 1.5 minutes on a slow CPU (float32), best at update 1,200" in trained
    assert "Not measured yet" in trained
    items = [Item("ab", ["A B"]), Item("c", ["A"])]
    evaluation = evaluate(made, items, ["per", "exact"], bootstrap=100)
    write_evaluation(tmp_path, "test", evaluation, beam=3)
    after = card(made, tmp_path)
    assert "Not measured yet" not in after
    assert "1,234 updates" in after
    per, exact = evaluation.metrics["per"], evaluation.metrics["exact"]
    assert per.low is not None
    assert (
        f"| test, beam 3 | 2 | per (lower is better) | {per.value:.2f} "
        f"| {per.low:.2f} to {per.high:.2f} |"
    ) in after
    assert f"| test, beam 3 | 2 | exact (higher is better) | {exact.value:.2f} |" in after


def test_a_readme_of_ones_own_stays(tmp_path: Path) -> None:
    of = model(TRANSFORMER)
    assert write_card(of, tmp_path) == ""
    assert write_card(of, tmp_path) == ""  # it is ours: it may be replaced
    (tmp_path / "README.md").write_text("mine")
    reported = write_card(of, tmp_path)
    assert f"the model card is {tmp_path / 'MODEL_CARD.md'}" in reported
    assert (tmp_path / "README.md").read_text() == "mine"
    (tmp_path / "MODEL_CARD.md").write_text("mine too")
    assert "no model card was written" in write_card(of, tmp_path)
    assert (tmp_path / "MODEL_CARD.md").read_text() == "mine too"


def test_without_an_interval(tmp_path: Path) -> None:
    made = model(RECURRENT)
    evaluation = evaluate(made, [Item("ab", ["ab"])], ["exact"], bootstrap=0)
    write_evaluation(tmp_path, "valid", evaluation)
    assert re.search(r"\| valid \| 1 \| exact .* \| \d+\.\d\d \|  \|\n", card(made, tmp_path))


@pytest.mark.parametrize("text", ["", "{"])
def test_a_damaged_metrics_file_is_no_hindrance(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.json").write_text(text)
    assert "Not measured yet" in card(model(RECURRENT), tmp_path)
