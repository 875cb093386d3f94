"""A model that hears tones: trained for real, gone on with, judged, used on files of all sorts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from lives import Command, cache_in
from tones import RATE, tones
from tones import RECIPE as TONES
from transduce import load
from transduce.data.audio.intervals import parse_textgrid
from transduce.evaluation.evaluate import evaluate_folder
from transduce.recipe import load_recipe
from transduce.storage import read_tensors
from transduce.tasks import SpeechModel
from transduce.training import train
from transduce.training.log import read_log

BRIEF = ["train.steps=12", "validation.every=6", "validation.limit=3", "train.log_every=3"]
HARD = ["audio.speed_perturbation=[0.9, 1.0, 1.1]", "model.dropout=0.1", "train.schedule=constant"]


@pytest.fixture(scope="module")
def folder(tones_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tones") / "tones"
    shutil.copytree(tones_run, folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache_in(tmp_path_factory.mktemp("own"))))
        yield


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    return folder / "run"


def test_it_learns_to_hear(run: Path) -> None:
    log = read_log(run / "log.jsonl")
    losses = [row["loss"] for row in log if "lr" in row]
    assert losses[-1] < 0.3 * losses[0]
    first, *_, last = (row for row in log if row["kind"] == "valid")
    assert first["diagonal"] < 20 < last["diagonal"]
    assert 0 <= last["alarms"] < 10
    model = load(run)
    joint = evaluate_folder(model, run, split="test").metrics["cer"].value
    assert joint < 5
    alone = evaluate_folder(model, run, split="test", ctc_weight=0.0, beam=1).metrics["cer"].value
    assert alone < 30  # much depends on the weights that it begins with, and on rounding
    assert "sample_rate 4000" in (run / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    "shape",
    [
        [
            "model.encoder={kind: conformer, layers: 1, heads: 2, feed_forward: 32, kernel: 5, "
            "chunk: {ms: 80, trained: [40, 160]}}",
            "audio.normalize=global",
        ],
        pytest.param(
            [
                "model.encoder={kind: recurrent, cell: gru}",
                "audio.normalize=global",
                "train.ema=0.9",
            ],
            marks=pytest.mark.slow,  # runs of text resume with both each time
        ),
        pytest.param(
            [
                "model.encoder={layers: 1, heads: 2, feed_forward: 32}",
                "model.decoder={kind: recurrent}",
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["conformer", "recurrent", "transformer"],
)
def test_a_run_that_was_stopped_goes_on_as_if_not(
    folder: Path, tmp_path: Path, shape: list[str]
) -> None:
    settings = [*BRIEF, *HARD, *shape, "train.batch_tokens=1500"]
    train(load_recipe(folder / "tones.yaml", settings), tmp_path / "whole")
    train(load_recipe(folder / "tones.yaml", [*settings, "train.steps=6"]), tmp_path / "halves")
    train(load_recipe(folder / "tones.yaml", settings), tmp_path / "halves", resume=True)
    state = Path("state") / "training.safetensors"
    (whole, _), (halves, _) = (
        read_tensors(tmp_path / name / state) for name in ("whole", "halves")
    )
    assert whole.keys() == halves.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, halves[name]), name


def test_a_translation_beside_what_is_said(folder: Path, tmp_path: Path) -> None:
    """The decoder writes one text, CTC learns another, each in tokens of its own."""
    for split in ("train", "valid"):
        rows = [line.split("\t") for line in (folder / f"{split}.tsv").read_text().splitlines()[1:]]
        lines = ["path\tsaid\tupper\n"]
        lines += [f"{folder / path}\t{text}\t{text.upper()}\n" for path, text in rows]
        (tmp_path / f"{split}.tsv").write_text("".join(lines))
    corpora = [
        f"data.{split}={{file: {tmp_path}/{split}.tsv, audio: path, target: upper, "
        "transcript: said}"
        for split in ("train", "valid")
    ]
    apart = "data.tokens={source: {level: character}, target: {level: character}}"
    recipe = load_recipe(
        folder / "tones.yaml",
        [*BRIEF, *corpora, "data.test=", apart, "decode.ctc_weight=0", "train.steps=40"],
    )
    model = train(recipe, tmp_path / "run").model
    assert isinstance(model, SpeechModel)
    assert not model.has_same_ctc
    assert "a" in model.source_tokens.names()
    assert "A" in model.target_tokens.names()
    (output,) = model.run([str(folder / "sounds" / "test0.wav")], times=True)
    assert output.text == output.text.upper()
    assert output.words == []  # CTC knows other tokens
    assert set(output.parts) == {"attention", "length_penalty"}


def test_a_language_model_helps_to_write(
    command: Command, run: Path, folder: Path, tmp_path: Path
) -> None:
    words = [line.split("\t")[1] for line in (folder / "train.tsv").read_text().splitlines()[1:]]
    (tmp_path / "text.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "language.yaml").write_text(
        f"""
name: language
task: language_modeling
data:
  train: {{text: text.txt, lines: apart}}
  valid: {{text: text.txt, lines: apart}}
  tokens: {{both: {{file: {run / "target.tokens.json"}}}}}
model: {{width: 16, decoder: {{layers: 1, heads: 2, feed_forward: 32}}}}
train: {{steps: 20, batch_tokens: 500, device: cpu}}
"""
    )
    train(load_recipe(tmp_path / "language.yaml"), tmp_path / "language")
    audio = folder / "sounds" / "test0.wav"
    asked = ("--language-model", tmp_path / "language", "--lm-weight", "0.2", "--json")
    result = command("run", run, audio, *asked)
    assert result.returncode == 0, result.stderr
    output = json.loads(result.stdout)
    parts = output["parts"]
    joint = 0.7 * parts["attention"] + 0.3 * parts["ctc"] + 0.2 * parts["language_model"]
    assert output["score"] == pytest.approx(joint / parts["length_penalty"], abs=1e-3)


def test_the_model_says_how_sure_it_is(
    command: Command, run: Path, folder: Path, tmp_path: Path
) -> None:
    """Of audio that it has not learnt it writes something too, less surely, and warns."""
    model = load(run)
    assert isinstance(model, SpeechModel)
    assert model.calibration is not None
    rows = read_log(run / "log.jsonl")
    assert max(row["confidence"] for row in rows if row["kind"] == "valid") > 60
    known = [str(folder / "sounds" / f"test{number}.wav") for number in range(30)]
    outputs = model.run(known)
    assert sum(bool(output.warning) for output in outputs) <= 3
    draw = np.random.default_rng(1)
    time = np.arange(2 * RATE) / RATE
    strange = {
        "noise": 0.1 * draw.standard_normal(2 * RATE),
        "siren": 0.3 * np.sin(2 * np.pi * (900 + 200 * np.sin(9 * time)) * time),
        "chirps": 0.3 * np.sin(2 * np.pi * 400 * (time % 0.2) * (1 + 8 * (time % 0.2))),
    }
    for name, samples in strange.items():
        soundfile.write(tmp_path / f"{name}.wav", samples.astype(np.float32), RATE)
    names = [str(tmp_path / f"{name}.wav") for name in strange]
    unsure = model.run(names)
    sure = np.median([output.confidence for output in outputs])
    for name, output in zip(names, unsure, strict=True):
        assert output.confidence < sure / 2, (name, output.text, output.confidence)
        assert f"{name}: low confidence" in output.warning
    reported = command("run", run, known[0], *names)
    assert reported.returncode == 0
    assert reported.stderr.count("differs from the training data") == 3
    assert known[0] not in reported.stderr
    values = json.loads(command("run", run, names[0], "--json").stdout)
    assert values["confidence"] < sure / 2
    assert len(values["probabilities"]) == len(values["tokens"])
    assert "differs from the training data" in values["warning"]


def test_confidence_is_the_same_however_it_is_asked_for(run: Path, folder: Path) -> None:
    model = load(run)
    audio = [str(folder / "sounds" / "test0.wav")]
    (plain,), (timed,) = model.run(audio), model.run(audio, times=True)
    assert plain.confidence == pytest.approx(timed.confidence, abs=1e-4)
    assert plain.segments[0].confidence == plain.confidence
    assert len(timed.probabilities) == len(timed.tokens) == len(timed.ids) + 1
    assert all(0 <= value <= 1 for value in timed.probabilities)
    assert plain.probabilities == []


def test_samples_are_sources(run: Path, folder: Path) -> None:
    """As arrays and tensors, at any rate; they are heard as the file that holds them is."""
    model = load(run)
    path = folder / "sounds" / "test0.wav"
    samples, rate = soundfile.read(path, dtype="float32")
    whole = np.rint(samples * 32768).astype(np.int16)
    (expected,) = model.run([str(path)], times=True)
    for source in (samples, torch.from_numpy(samples), whole, np.stack([samples, samples], 1)):
        (output,) = model.run([source], rate=rate, times=True)
        assert (output.text, output.words) == (expected.text, expected.words)
        assert output.confidence == pytest.approx(expected.confidence, abs=1e-3)
        assert model(source, rate=rate) == expected.text
    assert model(samples.repeat(2), rate=2 * rate) == expected.text
    (from_file,) = model.score([str(path)], [expected.text])
    (from_array,) = model.score([samples], [expected.text], rate=rate)
    assert from_array.log_probability == pytest.approx(from_file.log_probability, abs=1e-3)
    assert "".join(model.stream(samples, rate=rate)) == model(samples, rate=rate, beam=1)
    quiet = (0.003 * np.random.default_rng(1).standard_normal(RATE)).astype(np.float32)
    talk = np.concatenate([quiet, tones("ab cde"), quiet, tones("eda c"), quiet])
    (output,) = model.run([talk], rate=RATE)
    assert len(output.segments) == 2  # longer than in training: cut at its pauses


def test_one_bad_file_among_many(command: Command, run: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_text("no audio")
    texts = [line.split("\t")[1] for line in (folder / "test.tsv").read_text().splitlines()[1:]]
    good = [folder / "sounds" / f"test{number}.wav" for number in range(3)]
    result = command("run", run, good[0], tmp_path / "bad.wav", *good[1:], tmp_path / "gone.wav")
    assert result.returncode == 1
    named = [line.split("\t") for line in result.stdout.splitlines()]
    assert [Path(name).name for name, _ in named] == [
        "test0.wav",
        "bad.wav",
        "test1.wav",
        "test2.wav",
        "gone.wav",
    ]
    lines = [text for _, text in named]
    assert [lines[0], lines[2], lines[3]].count("") == 0
    assert (lines[1], lines[4]) == ("", "")
    assert sum(line == text for line, text in zip([lines[0], *lines[2:4]], texts, strict=False)) > 1
    reported = result.stderr.splitlines()
    assert len(reported) == 2
    assert "bad.wav is not audio that can be read here" in reported[0]
    assert "there is no audio file" in reported[1]


def test_subtitles_and_a_textgrid_of_a_long_recording(
    command: Command, run: Path, tmp_path: Path
) -> None:
    quiet = (0.003 * np.random.default_rng(1).standard_normal(RATE)).astype(np.float32)
    parts = [quiet, tones("ab cde"), quiet, tones("eda c"), quiet, tones("bb"), quiet]
    soundfile.write(tmp_path / "talk.flac", np.concatenate(parts), RATE)
    result = command("run", run, tmp_path / "talk.flac", "--format", "srt")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("-->") == 3
    both = (tmp_path / "talk.flac", f"{tmp_path / 'talk.flac'}#t=0,3")
    result = command("run", run, *both, "--format", "vtt")
    assert result.returncode == 2
    assert "give --output DIR" in result.stderr
    result = command("run", run, both[0], "--format", "textgrid", "--output", tmp_path / "grids")
    assert result.returncode == 0, result.stderr
    again = ("run", run, both[0], "--format", "textgrid", "--output", tmp_path / "grids")
    result = command(*again)
    assert result.returncode == 2
    assert "talk.TextGrid exists already and would be replaced" in result.stderr
    assert command(*again, "--overwrite").returncode == 0
    grid = parse_textgrid((tmp_path / "grids" / "talk.TextGrid").read_text("utf-8"), "talk")
    words = [one for one in grid.tiers[1].intervals if one.text]
    text = command("run", run, tmp_path / "talk.flac").stdout.strip()
    assert " ".join(one.text for one in words) == text
    starts = np.cumsum([0, *(len(part) / RATE for part in parts)])
    said = [one for one in grid.tiers[0].intervals if one.text]
    for number, one in enumerate(said):
        assert starts[2 * number + 1] - 0.2 < one.start < one.end < starts[2 * number + 2] + 0.2


def test_formats_of_sound_are_not_for_text(command: Command, run: Path, folder: Path) -> None:
    result = command("run", run, folder / "sounds" / "test0.wav", "--format", "mp3")
    assert result.returncode == 2
    assert "for this model it must be text, json, srt, vtt, textgrid" in result.stderr


@pytest.mark.slow
def test_single_words_that_are_concatenated_teach_to_read_sequences(tmp_path: Path) -> None:
    """As of a model of spoken digits that is to read telephone numbers."""
    words = [a + b for a in "abcde" for b in "abcde" if a != b]
    draw = np.random.default_rng(1)
    texts = {
        "train": words * 12,
        "valid": words,
        "test": [" ".join(draw.choice(words, 4)) for _ in range(30)],
    }
    for split, said in texts.items():
        lines = ["path\ttext"]
        for number, text in enumerate(said):
            wave = np.concatenate([tones(word, number) for word in text.split()])
            soundfile.write(tmp_path / f"{split}{number}.wav", wave, RATE)
            lines.append(f"{split}{number}.wav\t{text}")
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    (tmp_path / "tones.yaml").write_text(TONES, "utf-8")
    errors = {}
    for name, given in (("alone", "null"), ("concatenated", "{pause: [0.0, 0.2]}")):
        recipe = load_recipe(tmp_path / "tones.yaml", [f"data.concatenate={given}"])
        model = train(recipe, tmp_path / name).model
        found = evaluate_folder(model, tmp_path / name, split="test")
        errors[name] = found.metrics["wer"].value
    assert errors["alone"] > 50
    assert errors["concatenated"] < 15


@pytest.mark.slow
def test_guided_attention_is_diagonal_before_it_would_be(folder: Path, tmp_path: Path) -> None:
    """By the measure of the warning that attention does not move along the audio."""
    brief = ["train.steps=100", "train.warmup=20", "validation.every=100", "validation.limit=3"]
    found = {}
    for weight in (0.0, 1.0):
        given = [*brief, f"train.guided_attention={weight}"]
        train(load_recipe(folder / "tones.yaml", given), tmp_path / f"{weight}")
        rows = read_log(tmp_path / f"{weight}" / "log.jsonl")
        found[weight] = [row["diagonal"] for row in rows if row["kind"] == "valid"][-1]
    assert found[0.0] < 20
    assert found[1.0] > 60
