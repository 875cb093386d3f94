"""Tasks beside transduce: trained for real, used, judged, gone on with; a new one, by the page."""

from __future__ import annotations

import json
import random
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from slow_params import some_slow
from transduce import load
from transduce.cli import main as cli
from transduce.inspection.figures import attention_map
from transduce.recipe import load_recipe
from transduce.storage import read_tensors
from transduce.tasks.folder import read_metrics
from transduce.training import train
from transduce.training.log import read_log

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "tasks.md"
TRAIN = """
train: {steps: 100, batch_tokens: 512, lr: 1e-2, schedule: constant, warmup: 10,
  label_smoothing: 0.0, log_every: 10, device: cpu}
validation: {every: 50, limit: null, metric: accuracy}
"""
CLASSIFY = (
    """
name: mood
task: classify
data:
  train: {file: mood.train.tsv}
  valid: {file: mood.valid.tsv}
  test: {file: mood.valid.tsv}
  tokens: {source: {level: word}}
model: {width: 32, dropout: 0.1, encoder: {kind: pooled}}
"""
    + TRAIN
)
TAG = (
    """
name: tags
task: tag
data:
  train: {file: tags.train.tsv}
  valid: {file: tags.valid.tsv}
  test: {file: tags.valid.tsv}
model:
  width: 32
  dropout: 0.1
  encoder: {kind: recurrent, cell: gru}
  characters: {kind: lstm, width: 16}
  word_dropout: 0.2
"""
    + TRAIN
)
SHAPES: dict[str, list[str]] = {
    "pooled": ["model.pooling=mean"],
    "attention": ["model.pooling=attention"],
    "recurrent-last": ["model.encoder={kind: recurrent, cell: gru}", "model.pooling=last"],
    "recurrent-attention": ["model.encoder={kind: recurrent}", "model.pooling=attention"],
    "transformer": ["model.encoder={layers: 1, heads: 4, feed_forward: 32}", "train.lr=5e-3"],
}
ENDINGS = {"NOUN": "ness", "VERB": "ize", "ADV": "ly", "ADJ": "ful"}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Moods that a word or two tell; tags that endings tell, of stems that are new in valid."""
    folder = tmp_path_factory.mktemp("corpora")
    draw = random.Random(3)

    def mood() -> tuple[str, str]:
        label = draw.choice(["good", "bad", "so so"])
        reported = {"good": ["fine", "great"], "bad": ["dull", "poor"], "so so": ["fair", "okay"]}
        words = draw.choices([f"w{n}" for n in range(40)], k=draw.randint(3, 12))
        words.insert(draw.randrange(len(words)), draw.choice(reported[label]))
        return " ".join(words), label

    def tags(letters: str) -> tuple[str, str]:
        chosen = draw.choices(list(ENDINGS), k=draw.randint(2, 8))
        stems = ("".join(draw.choices(letters, k=4)) for _ in chosen)
        words = [stem + ENDINGS[tag] for stem, tag in zip(stems, chosen, strict=True)]
        return " ".join(words), " ".join(chosen)

    for name, count in (("train", 600), ("valid", 100)):
        for what, make in (("mood", mood), ("tags", lambda: tags("abcdefgh"))):
            lines = ["\t".join(make()) + "\n" for _ in range(count)]
            (folder / f"{what}.{name}.tsv").write_text("".join(lines), "utf-8")
    (folder / "mood.yaml").write_text(CLASSIFY, "utf-8")
    (folder / "tags.yaml").write_text(TAG, "utf-8")
    return folder


def best(folder: Path) -> float:
    return float(read_metrics(folder)["training"]["best"]["accuracy"])


@pytest.mark.parametrize("shape", some_slow(SHAPES, list(SHAPES)[:2]))
def test_every_classifier_learns(corpora: Path, tmp_path: Path, shape: str) -> None:
    trained = train(load_recipe(corpora / "mood.yaml", SHAPES[shape]), tmp_path / "run")
    assert best(tmp_path / "run") > 95
    sure = load(tmp_path / "run").run(["w1 w2 great w3", "w4 dull w5", "fair w6 w7"], nbest=3)
    assert [output.text for output in sure] == ["good", "bad", "so so"]
    assert all(output.score > 0.7 for output in sure)
    attended = trained.model.run(["w1 w2 great w3"], attention=True)[0].attention
    assert (attended is not None) == ("attention" in shape)
    if attended is not None:
        assert attended[0, 0, 0].argmax() == 2 or shape != "attention"
        picture = tmp_path / "attention.png"
        attention_map(attended[0, 0], ["w1", "w2", "great", "w3"], ["good"], picture)
        assert picture.stat().st_size > 1000
    losses = [r["loss"] for r in read_log(tmp_path / "run" / "log.jsonl") if r["kind"] == "train"]
    assert losses[0] < 1.5  # of a label, not of a label and an end: three begin at ln 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", "cnn"])
def test_letters_tell_what_unknown_words_are(corpora: Path, tmp_path: Path, kind: str) -> None:
    given = [f"model.characters.kind={kind}"]
    train(load_recipe(corpora / "tags.yaml", given), tmp_path / "run")
    blind = load_recipe(corpora / "tags.yaml", ["model.characters=null"])
    train(blind, tmp_path / "blind")
    for folder, minimum, maximum in (("run", 95, 100), ("blind", 0, 60)):
        assert cli_status("evaluate", str(tmp_path / folder)) == 0
        metrics = read_metrics(tmp_path / folder)["test"]["metrics"]
        assert minimum <= metrics["unknown"]["value"] <= maximum
        assert metrics["unknown"]["details"]["positions"] > 100
    assert load(tmp_path / "run")("ggggness hhhhly") == "NOUN ADV"


def cli_status(*arguments: str) -> int:
    try:
        sys.argv = ["transduce", *arguments]
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)


def test_a_tagger_of_transformers_learns(corpora: Path, tmp_path: Path) -> None:
    encoder = "model.encoder={layers: 1, heads: 4, feed_forward: 32, positions: rotary}"
    train(
        load_recipe(corpora / "tags.yaml", [encoder, "train.lr=5e-3", "train.steps=60"]),
        tmp_path / "run",
    )
    assert best(tmp_path / "run") > 95


@pytest.mark.parametrize("name", ["mood", "tags"])
def test_resuming_goes_on_as_if_nothing_had_been(corpora: Path, tmp_path: Path, name: str) -> None:
    def run(folder: str, steps: int, resume: bool = False) -> None:
        settings = [f"train.steps={steps}", "train.log_every=1", "validation.every=7"]
        recipe = load_recipe(corpora / f"{name}.yaml", settings)
        train(recipe, tmp_path / folder, resume=resume)

    run("whole", 14)
    run("parts", 7)
    run("parts", 14, resume=True)
    whole, parts = (read_tensors(tmp_path / f / "model.safetensors")[0] for f in ("whole", "parts"))
    assert all(bool((whole[key] == parts[key]).all()) for key in whole)
    assert set(whole) == set(parts)


@pytest.mark.parametrize("name", ["mood", "tags"])
def test_streaming_and_memory_found_out_work_too(corpora: Path, tmp_path: Path, name: str) -> None:
    settings = [
        "data.streaming=true",
        "data.shuffle_buffer=200",
        "train.batch_tokens=auto",
        "train.steps=6",
    ]
    trained = train(load_recipe(corpora / f"{name}.yaml", settings), tmp_path / "run")
    assert trained.state.step == 6
    assert trained.state.tokens % 256 == 0


# ------------------------------------------------------------------------------------- the page


def write_files_of_the_page(folder: Path) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        name = re.match(r"# (\S+\.yaml)\n", block)
        assert name is not None
        (folder / name[1]).write_text(block, "utf-8")
    reviews = ["A film to love.\tpos\n", "Dull, dull, dull!\tneg\n", "I love it\tpos\n"]
    for name in ("train", "valid"):
        (folder / f"reviews.{name}.tsv").write_text("".join(reviews * 5), "utf-8")
    lines = ["# a comment", "1-2\tThedog\t" + "\t".join("_" * 8)]
    for number, word in enumerate(["The/DET", "dog/NOUN", "runs/VERB", "./PUNCT"], start=1):
        form, tag = word.split("/")
        lines.append(f"{number}\t{form}\t_\t{tag}\t" + "\t".join("_" * 6))
    (folder / "sentences.conllu").write_text("\n".join([*lines, "", ""]) * 5, "utf-8")


def test_the_recipes_and_commands_of_the_page_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_files_of_the_page(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    commands = re.findall(r"^transduce (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(commands) == 8
    printed = {}
    for command in commands:
        typed = shlex.split(command.partition(" > ")[0])
        assert cli_status(*typed) == 0, capfd.readouterr().err
        printed[command] = capfd.readouterr().out
    out = [printed[command] for command in commands]
    assert "reference \\ prediction" in out[1]
    assert re.fullmatch(r"1\t0\.\d+\tpos\n1\t0\.\d+\tneg\n", out[2])
    assert "accuracy on known words 100.00 %" in out[4]
    assert out[5] == "The/DET dog/NOUN runs/VERB ./PUNCT\n"
    assert out[6] == (tmp_path / "sentences.conllu").read_text("utf-8")
    assert "accuracy 100.00 %" in out[7]
    assert read_metrics(tmp_path / "runs" / "tagger")["sentences.conllu"]["items"] == 5
    metrics = json.loads((tmp_path / "runs/reviews/metrics.json").read_text())["test"]["metrics"]
    assert metrics["accuracy"]["details"]["confusion"] == [[10, 0], [0, 5]]
    assert metrics["calibration"]["details"]["bins"]


@pytest.mark.slow
def test_a_task_of_ones_own_is_as_short_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transduce.recipe.tasks import TASK_RULES
    from transduce.tasks import Model

    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 3
    namespace: dict[str, Any] = {}
    try:
        exec("\n".join(blocks), namespace)
        model = namespace["model"]
        text = re.search(r'model\("(\w+)"\)  # \'(.*)\'', blocks[-1])
        assert text is not None
        assert model(text[1]) == text[2]
        assert read_metrics(Path("runs/segment"))["training"]["best"]["exact"] > 90
        assert model.run(["", "adog"])[1].text == "a dog"
    finally:
        TASK_RULES.pop("segment", None)
        Model.tasks.pop("segment", None)
