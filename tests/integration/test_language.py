"""Really train a language model, on a text whose entropy is known, and use it as a person would."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import transduce
from lives import Command
from transduce.recipe import load_recipe
from transduce.storage import read_tensors
from transduce.tasks import LanguageModel
from transduce.training import train

# Each of four words is as likely as the others: two bits for every three letters.
WORDS = ("ab ", "cd\n", "ef ", "gé ")
BITS = 2 / 3

RECIPE = """
name: words
task: language_modeling
data:
  train: {text: train.txt}
  valid: {text: valid.txt}
  tokens: {both: {level: character}}
  max_length: 24
model:
  width: 32
  dropout: 0.0
  decoder: {layers: 1, heads: 2, feed_forward: 64, positions: rotary}
train: {steps: 200, batch_tokens: 480, lr: 1e-2, schedule: cosine, warmup: 20, label_smoothing: 0.0}
validation: {every: 200}
decode: {beam: 1, max_extra: 30}
"""
LSTM = "model.decoder={kind: recurrent, cell: lstm, attention: none}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    draw = random.Random(5)
    for name, count in (("train", 4000), ("valid", 400)):
        text = "".join(draw.choice(WORDS) for _ in range(count))
        (folder / f"{name}.txt").write_text(text, "utf-8")
    (folder / "words.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def trained(command: Command, folder: Path) -> Path:
    ended = command("train", folder / "words.yaml", "--output", folder / "run")
    assert ended.returncode == 0, ended.stderr
    assert "Training: " in ended.stderr
    assert "12,000 tokens" in ended.stderr
    return folder / "run"


def test_it_learns_all_there_is_to_know(command: Command, trained: Path) -> None:
    ended = command("evaluate", trained, "--split", "valid")
    assert ended.returncode == 0, ended.stderr
    metrics = json.loads((trained / "metrics.json").read_text())["valid"]["metrics"]
    bits = metrics["bits_per_character"]
    assert BITS * 0.97 < bits["value"] < BITS * 1.06
    # One letter in twelve has two bytes.
    ratio = bits["value"] / metrics["bits_per_byte"]["value"]
    assert ratio == pytest.approx(1 + 1 / 12, abs=0.02)
    assert metrics["perplexity"]["value"] == pytest.approx(2 ** bits["value"])
    assert "bits per character" in ended.stdout
    assert "| valid | 1,200 | bits_per_character" in (trained / "README.md").read_text()


def test_a_recurrent_network_learns_it_too(folder: Path, tmp_path: Path) -> None:
    recipe = load_recipe(folder / "words.yaml", [LSTM, "train.steps=150", "validation.every=150"])
    ended = train(recipe, tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").open()]
    (valid,) = [record for record in records if record["kind"] == "valid"]
    assert BITS * 0.97 < valid["bits_per_character"] < BITS * 1.1
    assert isinstance(ended.model, LanguageModel)


def test_what_it_writes_is_made_of_the_words(command: Command, trained: Path) -> None:
    ended = command("run", trained, "ab cd\ne", "--sample", "--max-length", 50)
    assert ended.returncode == 0, ended.stderr
    text = ended.stdout.removesuffix("\n")
    assert text.startswith("ab cd\ne")
    assert len(text) == 57
    whole = [text[at : at + 3] for at in range(0, 57, 3)]
    assert sum(word in WORDS for word in whole) >= 17
    assert (
        ended.stdout == command("run", trained, "ab cd\ne", "--sample", "--max-length", 50).stdout
    )


def test_scores_are_bits(command: Command, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("ab ef gé ab ef ab ef gé ab \nzz\n", "utf-8")
    ended = command("score", trained, tmp_path / "texts")
    assert ended.returncode == 0, ended.stderr
    likely, unlikely = (line.split("\t") for line in ended.stdout.splitlines())
    assert float(likely[1]) < 2.2 < float(unlikely[1])
    assert ended.stderr.startswith("2 texts, 29 tokens")


def test_prompts_are_compared(command: Command, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text("ab e\nab \n<script>x</script>\n")
    ended = command(
        "prompts", trained, tmp_path / "prompts", "--length", 6, "--output", tmp_path / "p.html"
    )
    assert ended.returncode == 0, ended.stderr
    assert "mean bits apart" in ended.stdout
    page = (tmp_path / "p.html").read_text("utf-8")
    assert page.count("<script") == 2
    assert "http" not in page.replace("http-equiv", "")


def test_one_run_and_a_resumed_one_are_the_same(folder: Path, tmp_path: Path) -> None:
    settings = ["train.schedule=constant", "model.dropout=0.2", "metrics=[]", "train.log_every=5"]
    ends = {"whole": ["train.steps=60", "validation.every=30"]}
    ends |= {"parts": ["train.steps=30", "validation.every=30"]}
    for name, steps in ends.items():
        train(load_recipe(folder / "words.yaml", [*settings, *steps]), tmp_path / name)
    longer = load_recipe(folder / "words.yaml", [*settings, *ends["whole"]])
    train(longer, tmp_path / "parts", resume=True)
    whole, parts = (
        read_tensors(tmp_path / name / "state" / "training.safetensors") for name in ends
    )
    # 60 updates of 20 blocks are 2.4 epochs: it was cut anew on the way.
    assert whole[1]["standing"]["position"] == parts[1]["standing"]["position"]
    assert whole[1]["standing"]["position"]["epoch"] == 2
    for name, tensor in whole[0].items():
        assert tensor.equal(parts[0][name]), name


def test_lines_that_are_texts_of_their_own_end(folder: Path, tmp_path: Path) -> None:
    draw = random.Random(6)
    names = "".join(draw.choice(["anna", "annika", "bo", "bob"]) + "\n" for _ in range(600))
    (tmp_path / "names.txt").write_text(names)
    corpus = "{text: names.txt, lines: apart}"
    overrides = [
        f"data.folder={tmp_path}",
        f"data.train={corpus}",
        f"data.valid={corpus}",
        "train.steps=250",
        "validation.every=250",
    ]
    model = train(load_recipe(folder / "words.yaml", overrides), tmp_path / "run").model
    assert isinstance(model, LanguageModel)
    drawn = model.run(["ann", "b"], sample=True, temperature=0.5, nbest=20)
    written = {output.text for of_one in drawn for output in of_one.alternatives}
    assert written <= {"anna", "annika", "bo", "bob"}
    assert model("anni", beam=4) == "annika"
    total = sum(
        2.718281828**score.log_probability for score in model.score(["anna", "annika", "bo", "bob"])
    )
    assert total == pytest.approx(1.0, abs=0.05)


def test_pieces_as_they_are_written(trained: Path) -> None:
    model = transduce.load(trained)
    pieces = list(model.stream("ef ", max_length=9))
    assert pieces[0].startswith("ef ")
    assert "".join(pieces) == model("ef ", max_length=9)
