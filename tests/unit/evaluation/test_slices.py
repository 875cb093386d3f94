"""Slices of a corpus, and results item by item."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.cli.printing import print_metrics
from transduce.data.text.pairs import read_pairs
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError, RecipeError
from transduce.evaluation.evaluate import evaluate_folder
from transduce.evaluation.items import items_of
from transduce.evaluation.results import write_item_results
from transduce.evaluation.score import Answer, score, scored_rows
from transduce.evaluation.slices import cut, score_slices
from transduce.inspection.report import report_page
from transduce.recipe import parse_recipe
from transduce.tasks.transduce import Output, Transducer, load

RECIPE = """
data:
  train: {file: train.tsv, source: from, target: to, tags: language}
  valid: {file: test.tsv, source: from, target: to, tags: language}
  test: {file: test.tsv, source: from, target: to, tags: language}
  tokens: {both: {level: word, size: 100}}
model:
  width: 16
  encoder: {kind: recurrent}
  decoder: {kind: recurrent}
decode: {beam: 1}
metrics: [exact, wer, bleu]
"""
TRAIN = "the dog\tx\teng\nthe cat\ty\teng\nder Hund\tx\tdeu\n" + "the the\tz\teng\n" * 9
TEST = [
    ("the dog", "x", "eng", "Ann"),
    ("the the the cat", "y", "eng", "Bob"),
    ("the bird sings", "z", "eng", "Ann"),
    ("der Hund", "x", "deu", ""),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.tsv").write_text("from\tto\tlanguage\n" + TRAIN)
    lines = ["from\tto\tlanguage\tspeaker", *("\t".join(row) for row in TEST)]
    (tmp_path / "test.tsv").write_text("\n".join(lines) + "\n")
    parsed = parse_recipe(RECIPE, "tiny", tmp_path)
    assert parsed.data.tokens.both is not None
    torch.manual_seed(1)
    tokens = Tokens.train(parsed.data.tokens.both, ["the dog cat der Hund x y z"], ["deu", "eng"])
    Transducer.create(parsed, tokens, tokens).save(tmp_path)
    return tmp_path


def by(folder: Path, name: str) -> list[str]:
    model = load(folder)
    corpus = model.recipe.data.test
    assert corpus is not None
    items = items_of(list(read_pairs(corpus, str(folder))), alternatives=False)
    return cut(name, model, items, corpus).of_items


def test_by_tag_length_frequency_and_column(folder: Path) -> None:
    assert by(folder, "tag") == ["eng", "eng", "eng", "deu"]
    # Tags are no words of a source.
    assert by(folder, "length") == ["2 words", "4 words", "3 words", "2 words"]
    # The rarest word counts: bird is nowhere in training, dog once, the twenty times.
    assert by(folder, "frequency") == ["1–9 times", "1–9 times", "not in training", "1–9 times"]
    assert by(folder, "speaker") == ["Ann", "Bob", "Ann", "(none)"]
    assert by(folder, "3") == ["Ann", "Bob", "Ann", "(none)"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("label", "--by label is for classifiers"),
        ("group", "cannot be cut by group: the corpus names no column of groups"),
        ("speeker", "speeker"),
    ],
)
def test_what_cannot_be_cut_is_reported(folder: Path, name: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        by(folder, name)


def test_each_slice_is_judged_as_if_it_were_alone(folder: Path) -> None:
    model = load(folder)
    corpus = model.recipe.data.test
    assert corpus is not None
    items = items_of(list(read_pairs(corpus, str(folder))), alternatives=False)
    answers = [Answer(text, [], []) for text in ("x", "x", "q z", "the x")]
    names = ["exact", "wer", "bleu"]
    slices = cut("tag", model, items, corpus)
    found = score_slices(slices, scored_rows(model, items, answers, names))
    assert found.counts == {"eng": 3, "deu": 1}
    alone = score(model, items[:3], answers[:3], names)
    for name in names:
        assert found.metrics["eng"][name].value == pytest.approx(alone[name].value)
        assert found.metrics["eng"][name].low == pytest.approx(alone[name].low)
    assert found.metrics["deu"]["exact"].value == 0.0
    assert found.gaps["exact"].value == pytest.approx(100 / 3)
    assert (found.gaps["exact"].best, found.gaps["exact"].worst) == ("eng", "deu")
    assert found.gaps["wer"].worst == "deu"


def test_slices_are_kept_and_items_written(folder: Path, tmp_path: Path) -> None:
    model = load(folder)
    evaluation = evaluate_folder(model, folder, by="speaker")
    kept = json.loads((folder / "metrics.json").read_text())["test"]["slices"]
    assert kept["by"] == "speaker"
    assert {name: one["items"] for name, one in kept["slices"].items()} == {
        "Ann": 2,
        "Bob": 1,
        "(none)": 1,
    }
    write_item_results(tmp_path / "out" / "items.jsonl", model, evaluation)
    lines = (tmp_path / "out" / "items.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["source"] for record in records] == [row[0] for row in TEST]
    assert [record["prediction"] for record in records] == [o.text for o in evaluation.outputs]
    assert records[2]["unknown_words"] == ["bird", "sings"]
    assert records[2]["lengths"]["source_words"] == 3
    assert records[2]["lengths"]["reference_words"] == 1
    said = records[2]["prediction"]
    assert records[2]["lengths"]["prediction_characters"] == len(said)
    assert records[2]["references"] == ["z"]
    assert records[2]["by_speaker"] == "Ann"
    assert (records[2]["line"], records[2]["tags"]) == (4, ["eng"])
    exact = [record["scores"]["exact"] for record in records]
    assert sum(exact) / len(exact) == pytest.approx(evaluation.metrics["exact"].value)


def test_line_breaks_in_a_prediction_do_not_break_the_lines(folder: Path, tmp_path: Path) -> None:
    model = load(folder)
    evaluation = evaluate_folder(model, folder)
    evaluation.outputs[0].text = "a\u2028b\nc\x85d"
    write_item_results(tmp_path / "items.jsonl", model, evaluation)
    lines = (tmp_path / "items.jsonl").read_text().splitlines()
    assert len(lines) == len(TEST)
    assert json.loads(lines[0])["prediction"] == "a\u2028b\nc\x85d"


def test_errors_of_each_speaker_in_every_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kinds of errors and confused words: printed, in metrics.json and on the report's page."""
    texts = {"the dog": "X", "the the the cat": "z!", "the bird sings": "z!", "der Hund": "x"}
    model = load(folder)

    def said(sources: list[str], **_: Any) -> list[Output]:
        return [Output(texts[source.partition("> ")[2]], 0.0) for source in sources]

    monkeypatch.setattr(model, "run", said)
    asked: dict[str, Any] = {"by": "speaker", "metrics": "wer"}
    steps = "lower,punctuation"
    found = evaluate_folder(model, folder, normalize=steps, on_measured=print_metrics, **asked)
    assert found.name == "test-normalized"
    assert found.metrics["wer"].value == 25.0  # y was said, z was understood
    printed = capsys.readouterr().out
    counts = "1 substitution, 0 deletions, 0 insertions in"
    assert f"{counts} 4 words; normalised: lower, punctuation" in printed
    assert f"Bob: {counts} 1 word\n" in printed
    kept = json.loads((folder / "metrics.json").read_text())["test-normalized"]
    assert kept["normalize"] == ["lower", "punctuation"]
    assert kept["metrics"]["wer"]["details"]["confused"] == [["y", "z", 1]]
    speakers = kept["slices"]["slices"]
    assert speakers["Bob"]["metrics"]["wer"]["confused"] == [["y", "z", 1]]
    assert speakers["Ann"]["metrics"]["wer"]["confused"] == []
    assert speakers["Ann"]["metrics"]["wer"]["substitutions"] == 0
    page = report_page(model, folder, found)
    assert "Errors by WER" in page
    assert "Normalised: lower, punctuation." in page
    plain = evaluate_folder(model, folder, **asked)
    assert plain.metrics["wer"].value == 75.0
    with pytest.raises(RecipeError, match="no normalisation upper"):
        evaluate_folder(model, folder, normalize="upper", **asked)
