"""Really train, then do with the model what a user would."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import transduce
from lives import Command
from transduce.data.text.pairs import read_pairs
from transduce.evaluation.evaluate import evaluate
from transduce.evaluation.items import items_of
from transduce.recipe import load_recipe
from transduce.tasks.folder import RUN_FILES
from transduce.training import train


@pytest.fixture(scope="module")
def trained(trained_tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    shutil.copytree(trained_tiny, folder)
    return folder


def test_the_model_has_learned_strings_it_never_saw(command: Command, trained: Path) -> None:
    result = command("evaluate", str(trained))
    assert result.returncode == 0, result.stderr
    metrics = json.loads((trained / "metrics.json").read_text())["test"]
    assert metrics["items"] == 125
    assert metrics["metrics"]["exact"]["value"] >= 95.0
    assert len((trained / "test.hypotheses.txt").read_text().splitlines()) == 125


def test_run_answers_in_order_and_keeps_empty_lines(command: Command, trained: Path) -> None:
    result = command("run", str(trained), text="abc\n\nedca\nba\n")
    assert result.stdout == "cba\n\nacde\nab\n"


def test_the_python_face(trained: Path) -> None:
    model = transduce.load(trained)
    assert model("abcd") == "dcba"
    (output,) = model.run(["abcd"], beam=3, nbest=3, attention=True)
    assert output.text == "dcba"
    assert len(output.alternatives) == 3
    assert output.attention is not None
    layers, heads, target, source = output.attention.shape
    assert (layers, heads, target, source) == (2, 4, 5, 5)


def test_attention_finds_the_other_diagonal(trained: Path) -> None:
    """What a reversing model attends to runs backwards: the lens shows what it has learned."""
    model = transduce.load(trained)
    hits = total = 0
    for output in model.run(["abcd", "dbea", "ceba", "edab"], attention=True):
        assert output.attention is not None
        # Some head of some layer points at the letter being written, nearly always.
        letters = output.attention[:, :, :4, :4].argmax(axis=-1)
        backwards = [3, 2, 1, 0]
        hits += int((letters == backwards).sum(axis=-1).max())
        total += 4
    assert hits / total >= 0.9


def test_every_piece_of_the_folder_is_there(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert {
        "recipe.yaml",
        "model.safetensors",
        "source.tokens.json",
        "target.tokens.json",
        "metrics.json",
        "README.md",
        "report.html",
        "log.jsonl",
        "state",
    } <= names
    assert names <= {*RUN_FILES, "test.hypotheses.txt"}


def test_check_finds_the_data_fit(command: Command, task: Path) -> None:
    result = command("check", str(task / "tiny.yaml"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Fit to train" in result.stdout


@pytest.mark.parametrize(
    ("preset", "minimum"),
    [
        pytest.param("lstm-attention", 90.0, marks=pytest.mark.slow),
        pytest.param("gru-attention", 90.0, marks=pytest.mark.slow),
        pytest.param("rnn-attention", 90.0, marks=pytest.mark.slow),
        pytest.param("peephole-attention", 90.0, marks=pytest.mark.slow),
        pytest.param("lstm-seq2seq", 80.0, marks=pytest.mark.slow),
        pytest.param("convolutional-small", 90.0, marks=pytest.mark.slow),
    ],
)
def test_other_families_learn_it_too(
    task: Path, tmp_path: Path, preset: str, minimum: float
) -> None:
    text = (task / "tiny.yaml").read_text()
    body = text.replace("  encoder: {feed_forward: 64}\n  decoder: {feed_forward: 64}\n", "")
    recipe_file = task / f"{preset}.yaml"
    recipe_file.write_text(body)
    slowly = preset == "convolutional-small"  # else it depends on rounding how much it learns
    brief = ["train.steps=400", "train.lr=3e-3"] if slowly else ["train.steps=200", "train.lr=1e-2"]
    brief.append("validation.every=100")
    recipe = load_recipe(recipe_file, [f"model.preset={preset}", "model.width=40", *brief])
    model = train(recipe, tmp_path / "run").model
    assert recipe.data.test is not None
    items = items_of(list(read_pairs(recipe.data.test, recipe.data.folder)), False)
    assert evaluate(model, items, ["exact"]).metrics["exact"].value >= minimum
