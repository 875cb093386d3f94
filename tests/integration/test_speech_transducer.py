"""A transducer of tones: trained for real, judged, used from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lives import Command
from tones import write_tones
from transduce import load
from transduce.evaluation.evaluate import evaluate_folder
from transduce.recipe import load_recipe
from transduce.training import train

OVERRIDES = [
    "model.transducer={}",
    "model.decoder={kind: recurrent, cell: lstm, attention: none}",
    "model.encoder.chunk={ms: 320, trained: [80, 640]}",
    "audio.normalize=global",
    "decode.ctc_weight=0",
]


@pytest.mark.slow
def test_a_transducer_learns_to_hear(tmp_path: Path) -> None:
    sounds = write_tones(tmp_path / "sounds", {"train": 240, "valid": 30, "test": 30})
    recipe = load_recipe(sounds / "tones.yaml", OVERRIDES)
    train(recipe, tmp_path / "run")
    model = load(tmp_path / "run")
    for beam in (1, 4):
        found = evaluate_folder(model, tmp_path / "run", split="test", beam=beam)
        assert found.metrics["cer"].value < 20


@pytest.mark.slow
def test_the_command_line(tmp_path: Path, command: Command) -> None:
    sounds = write_tones(tmp_path / "sounds", {"train": 12, "valid": 2, "test": 3})
    brief = ["train.steps=2", "train.batch_tokens=300", *OVERRIDES]
    train(load_recipe(sounds / "tones.yaml", brief), tmp_path / "run")
    run, sound = str(tmp_path / "run"), str(sounds / "sounds/test0.wav")
    (line,) = command("run", run, sound, "--format", "json").stdout.splitlines()
    assert json.loads(line)["parts"].keys() == {"transducer", "length_penalty"}
    for arguments, sentence in (
        (("run", run, sound, "--prefix", "a"), "prefix is not for a transducer"),
        (("look", run, sound), "no attention to the audio to look at"),
        (("export", run, "--to", "onnx"), "only models with text sources can be exported"),
    ):
        refused = command(*arguments)
        assert refused.returncode
        assert sentence in refused.stderr
