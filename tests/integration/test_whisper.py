"""Whisper-shaped models are trained: from nothing, and on top of a prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import tiny_whisper
from lives import cache_in
from tones import write_tones
from transduce import load
from transduce.data.audio.corpus import encode_recordings
from transduce.data.batches.batch import batch_of_rows
from transduce.errors import DataError
from transduce.evaluation.evaluate import evaluate_folder
from transduce.recipe import load_recipe, parse_recipe, with_overrides
from transduce.recipe.audio import Audio
from transduce.tasks import SpeechModel
from transduce.training import train
from transduce.training.fine_tuning.start import take_over
from transduce.training.log import read_log

SCRATCH = [
    "audio={features: whisper, mel_bands: 24, spec_augment: null}",
    "model.encoder={kind: transformer, layers: 1, heads: 2, feed_forward: 64, activation: gelu}",
    "model.decoder.activation=gelu",
    "train.steps=25",
    "train.warmup=5",
    "train.log_every=5",
    "validation={every: 25, limit: 2, metric: loss}",
]


def test_whisper_features_are_trained_from_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_in(tmp_path / "cache")))
    write_tones(tmp_path, {"train": 40, "valid": 3, "test": 2})
    recipe = load_recipe(tmp_path / "tones.yaml", SCRATCH)
    train(recipe, tmp_path / "run")
    log = read_log(tmp_path / "run" / "log.jsonl")
    losses = [row["loss"] for row in log if "lr" in row]
    assert losses[-1] < 0.9 * losses[0]
    model = load(tmp_path / "run")
    assert isinstance(model, SpeechModel)
    (output,) = model.run([next((tmp_path / "sounds").iterdir())], times=True)
    assert len(output.segments) == 1


def test_the_loss_is_of_the_text_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt is given: the loss is what `score` says of the text after it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_in(tmp_path / "cache")))
    texts = ["the tea", "for uncle Iroh"]
    lines = ["path\ttext"]
    for number, (wave, text) in enumerate(zip(tiny_whisper.noises(2), texts, strict=True)):
        soundfile.write(tmp_path / f"{number}.wav", wave, tiny_whisper.RATE)
        lines.append(f"{number}.wav\t{text}")
    (tmp_path / "all.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    model = tiny_whisper.our_model(language="de")
    data = with_overrides(
        model.recipe,
        [f"data.train={{file: {tmp_path}/all.tsv, audio: path, target: text}}"],
        ("data.train",),
    ).data
    tokens = model.target_tokens
    parts = (data.train, data, model.recordings.settings, tokens, tokens, tmp_path / "cache")
    corpus, _ = encode_recordings(*parts)
    assert tokens.pieces(corpus.target(0).tolist())[:3] == [
        "<|de|>",
        "<|transcribe|>",
        "<|notimestamps|>",
    ]
    assert corpus.lengths[0].tolist() == [200, 200]  # what the network computes, with the padding
    with torch.no_grad():
        loss = model.network.batch_loss(batch_of_rows(corpus, np.arange(2), ends=True))
    files = [tmp_path / f"{number}.wav" for number in range(2)]
    scores = model.score(files, texts)
    assert float(loss.total) == pytest.approx(-sum(s.log_probability for s in scores), rel=1e-4)
    assert int(loss.tokens) == sum(len(score.tokens) for score in scores)
    audio = model.recordings.settings.model_copy(
        update={"prompt": model.recordings.settings.prompt.model_copy(update={"language": None})}
    )
    assert isinstance(audio, Audio)
    with pytest.raises(DataError, match=r"set audio\.prompt\.language"):
        encode_recordings(data.train, data, audio, *parts[3:])
    with pytest.raises(DataError):  # no target fits so few positions
        encode_recordings(*parts, capacity=4)


FINE = """
name: fine
data:
  train: {file: a.tsv, audio: path, target: text}
  valid: {file: b.tsv, audio: path, target: text}
audio: {features: whisper, prompt: {language: de, timestamps: false}}
train: {start: {from: whisper}}
"""


def test_a_recipe_may_change_the_language_alone(tmp_path: Path) -> None:
    """All else of the prompt is the start model's."""
    start = tiny_whisper.our_model().recipe
    audio = take_over(parse_recipe(FINE, "fine.yaml", tmp_path, []), start).audio
    assert audio is not None
    assert start.audio is not None
    assert start.audio.prompt is not None
    changed = {"language": "de", "timestamps": False}
    assert audio.prompt == start.audio.prompt.model_copy(update=changed)
    assert audio.pad_to == start.audio.pad_to


def test_evaluate(tmp_path: Path) -> None:
    """References that are the model's own outputs have no error, with timestamps and without."""
    files = []
    for number, wave in enumerate(tiny_whisper.noises(2)):
        files.append(tmp_path / f"{number}.wav")
        soundfile.write(files[-1], wave, tiny_whisper.RATE)
    for timestamps in (True, False):
        model = tiny_whisper.our_model(language="de", timestamps=timestamps)
        outputs = model.run(files, beam=1)
        rows = [f"{file.name}\t{one.text}" for file, one in zip(files, outputs, strict=True)]
        table = tmp_path / "test.tsv"
        table.write_text("\n".join(("path\ttext", *rows)) + "\n", "utf-8")
        found = evaluate_folder(model, tmp_path, files=(table, None), beam=1, write=False)
        assert found.metrics["wer"].value == 0.0
