"""Labels of recordings; and several corpora of recordings in one model, told apart by tags.

Tones stand for speech. In the second language the letters have the tones in the opposite order, so
what a recording says depends on its language alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from lives import Command, cache_in
from tones import COUNTS, LETTERS, RATE, tones, write_tones
from transduce import load
from transduce.evaluation.evaluate import evaluate_folder
from transduce.recipe import load_recipe
from transduce.tasks import AudioClassifier, SpeechModel
from transduce.training import train

OTHER = dict(zip(LETTERS, reversed(LETTERS), strict=True))  # a letter of the second language


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache_in(tmp_path_factory.mktemp("own"))))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Manifests with a label, and with a language: x as it sounds, y the other way round."""
    folder = write_tones(tmp_path_factory.mktemp("tones"), COUNTS)
    for split in COUNTS:
        rows = [line.split("\t") for line in (folder / f"{split}.tsv").read_text().splitlines()[1:]]
        labels = ["path\tlabel\n"]
        columns = {"x": ["path\ttext\tlanguage\n"], "y": ["path\ttext\tlanguage\n"]}
        for path, text in rows:
            labels.append(f"{path}\t{'high e' if 'e' in text else 'low'}\n")
            columns["x"].append(f"{path}\t{text}\tx\n")
            other = "".join(OTHER.get(letter, letter) for letter in text)
            columns["y"].append(f"{path}\t{other}\ty\n")
        (folder / f"{split}-labels.tsv").write_text("".join(labels))
        for language, lines in columns.items():
            (folder / f"{split}-{language}.tsv").write_text("".join(lines))
        both = [*columns["x"], *columns["y"][1:]]
        (folder / f"{split}-both.tsv").write_text("".join(both))
    return folder


@pytest.fixture(scope="module")
def label_network(folder: Path) -> Path:
    (folder / "labels.yaml").write_text(
        """
name: labels
task: classify
data:
  train: {file: train-labels.tsv, audio: path, target: label}
  valid: {file: valid-labels.tsv, audio: path, target: label}
  test: {file: test-labels.tsv, audio: path, target: label}
  max_length: 300
audio: {sample_rate: 4000, mel_bands: 16, channels: 8, spec_augment: null}
model:
  width: 32
  dropout: 0.0
  pooling: attention
  encoder: {kind: conformer, layers: 1, heads: 2, feed_forward: 64, kernel: 7}
train: {steps: 150, batch_tokens: 2000, lr: 5e-3, schedule: cosine, warmup: 20, device: cpu}
validation: {every: 75, metric: accuracy}
""",
        "utf-8",
    )
    train(load_recipe(folder / "labels.yaml"), folder / "labels")
    return folder / "labels"


def test_recordings_get_their_labels(label_network: Path, folder: Path) -> None:
    model = load(label_network)
    assert isinstance(model, AudioClassifier)
    evaluation = evaluate_folder(model, label_network, split="test")
    assert evaluation.metrics["accuracy"].value > 85  # the more frequent label has 62 %
    audio = folder / "sounds" / "test0.wav"
    (output,) = model.run([audio], nbest=2, attention=True)
    assert output.text in ("high e", "low")
    assert output.confidence == output.score == output.probabilities[0]
    assert [one.text for one in output.alternatives] != [output.text] * 2
    assert sum(one.score for one in output.alternatives) == pytest.approx(1.0, abs=1e-4)
    assert output.attention is not None
    assert output.attention.sum() == pytest.approx(1.0, abs=1e-4)
    samples, rate = soundfile.read(audio, dtype="float32")
    (again,) = model.run([samples], rate=rate)
    assert again.score == pytest.approx(output.score, abs=1e-3)
    assert model(samples, rate=rate) == output.text


def test_labels_by_the_command_line(
    command: Command, label_network: Path, folder: Path, tmp_path: Path
) -> None:
    quiet = (0.003 * np.random.default_rng(1).standard_normal(RATE)).astype(np.float32)
    long = np.concatenate([quiet, tones("ee cde"), quiet, tones("eda c"), quiet, tones("ebe e")])
    soundfile.write(tmp_path / "long.wav", long, RATE)
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    (tmp_path / "bad.wav").write_text("no audio")
    sounds = [folder / "sounds" / "test0.wav", *(tmp_path / f"{n}.wav" for n in ("long", "silent"))]
    result = command("run", label_network, *sounds, tmp_path / "bad.wav", "--json")
    assert result.returncode == 1  # one could not be used
    first, long_one, silent, bad = map(json.loads, result.stdout.splitlines())
    assert first["text"] in ("high e", "low")
    assert first["confidence"] == pytest.approx(first["score"], abs=1e-4)
    assert long_one["text"] == "high e"
    assert (silent["text"], bad["text"]) == ("", "")
    assert "silent" in silent["warning"]
    assert "bad.wav is not audio" in result.stderr
    assert command("check", folder / "labels.yaml").returncode == 0
    assert "sample_rate 4000" in (label_network / "README.md").read_text("utf-8")


def corpora(split: str) -> str:
    """A list of two corpora, each with its language as a tag."""
    each = [f"{{file: {split}-{tag}.tsv, audio: path, tag: {tag}}}" for tag in "xy"]
    return f"data.{split}=[{', '.join(each)}]"


@pytest.fixture(scope="module")
def tagged(folder: Path) -> Path:
    lists = [corpora(split) for split in COUNTS]
    steps = [
        "train.steps=450",
        "train.batch_tokens=3000",
        "validation.every=450",
        "validation.limit=60",
    ]
    recipe = load_recipe(folder / "tones.yaml", [*lists, *steps, "data.folder=" + str(folder)])
    train(recipe, folder / "tagged")
    return folder / "tagged"


@pytest.mark.slow  # tags of sounds are read in tests/unit/data/audio too
def test_several_languages_in_one_model(tagged: Path, folder: Path) -> None:
    """The same recordings are read in both languages, each as its tag says."""
    model = load(tagged)
    assert isinstance(model, SpeechModel)
    evaluation = evaluate_folder(model, tagged, split="test")
    assert set(evaluation.groups) == {"x", "y"}
    assert evaluation.metrics["cer"].value < 20  # without tags, one of the two is all wrong
    sounds = [str(folder / "sounds" / f"test{number}.wav") for number in range(10)]
    heard = {tag: [o.text for o in model.run(sounds, tags=[tag])] for tag in "xy"}
    turned = ["".join(OTHER.get(letter, letter) for letter in text) for text in heard["y"]]
    assert sum(x == y for x, y in zip(heard["x"], turned, strict=True)) >= 5
    mixed = [f"<{'xy'[number % 2]}> {audio}" for number, audio in enumerate(sounds)]
    assert [o.text for o in model.run(mixed)] == [
        heard["xy"[number % 2]][number] for number in range(10)
    ]
    (timed,) = model.run(sounds[:1], tags=["y"], times=True)
    assert timed.text == heard["y"][0]
    scores = {tag: model.score(sounds[:1], [heard["y"][0]], tags=[tag])[0] for tag in "xy"}
    assert scores["y"].log_probability > scores["x"].log_probability + 1
    samples, rate = soundfile.read(sounds[0], dtype="float32")
    assert model(samples, rate=rate, tags=["y"]) == heard["y"][0]
    assert model(sounds[0], tags=["x"]) == heard["x"][0]  # nothing is left of the tag before


@pytest.mark.slow
def test_tags_by_the_command_line(command: Command, tagged: Path, folder: Path) -> None:
    audio = folder / "sounds" / "test0.wav"
    model = load(tagged)
    result = command("run", tagged, audio, "--tag", "y")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == model(audio, tags=["y"])
    assert "has no tag z" in command("run", tagged, audio, "--tag", "z").stderr


def test_tags_in_a_column(folder: Path, tmp_path: Path) -> None:
    columns = [
        f"data.{split}={{file: {split}-both.tsv, audio: path, tags: language, limit: 300}}"
        for split in COUNTS
    ]
    brief = ["train.steps=4", "validation.every=4", "validation.limit=4"]
    recipe = load_recipe(folder / "tones.yaml", [*columns, *brief, "data.folder=" + str(folder)])
    model = train(recipe, tmp_path / "run").model
    assert list(model.source_tokens.tags) == ["x", "y"]
    names = [name for name, _ in load(tmp_path / "run").network.named_parameters()]
    assert "front.tags.weight" in names
