"""What fuzzing starts from: small models, corpora of every format, recordings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import soundfile
import torch

from language import language_model
from tiny_models import tiny
from tiny_sounds import audio_model, noise
from transduce import recipe
from transduce.data.tokens.tokenizer import Tokens
from transduce.recipe import Recipe
from transduce.tasks.transduce import create

PAIRS = [("iroh made tea", "tea"), ("zuko", "uncle"), ("a cup", "of tea"), ("é 茶", "ab")] * 3
SHAPE = "{layers: 1, heads: 2, feed_forward: 16}"
PART = "model: {width: 8, encoder: " + SHAPE + ", decoder: " + SHAPE + "}\n"
RUN = "train: {steps: 2, batch_tokens: 64, device: cpu}\nvalidation: {every: 2, limit: 2}\n"
TOKENS = "  tokens: {both: {level: character}}\n"

RECIPES = {
    "tsv": "name: fuzz\ndata:\n  train: {file: a.tsv}\n  valid: {file: a.tsv}\n"
    f"{TOKENS}{PART}{RUN}",
    "jsonl": f"data:\n  train: {{file: a.jsonl}}\n  valid: {{file: a.jsonl}}\n{TOKENS}{PART}{RUN}",
    "parquet": "data:\n  train: {file: a.parquet}\n  valid: {file: a.tsv}\n"
    f"{TOKENS}{PART}{RUN}",
    "text": "data:\n  train: {source: a.txt, target: b.txt}\n"
    "  valid: {source: a.txt, target: b.txt}\n"
    f"  tokens: {{both: {{level: subword, size: 40}}}}\n{PART}{RUN}",
    "conllu": "task: tag\ndata:\n  train: {file: a.conllu}\n  valid: {file: a.conllu}\n"
    f"model: {{width: 8, encoder: {SHAPE}}}\n{RUN}",
    "speech": "data:\n  train: {file: speech.tsv, audio: path}\n"
    f"  valid: {{file: speech.tsv, audio: path}}\n{TOKENS}"
    "audio: {sample_rate: 4000, mel_bands: 16, channels: 4}\n"
    f"model: {{width: 8, tie_embeddings: none, ctc_weight: 0.3, "
    f"encoder: {SHAPE}, decoder: {SHAPE}}}\n"
    "train: {steps: 2, batch_tokens: 600, device: cpu}\nvalidation: {every: 2, limit: 2}\n"
    "metrics: [cer]\n",
    "language": "task: language_modeling\ndata:\n  train: {text: a.txt}\n  valid: {text: b.txt}\n"
    f"{TOKENS}  max_length: 16\nmodel: {{width: 8, decoder: {SHAPE}}}\n{RUN}",
}
CORPORA = ("a.tsv", "a.jsonl", "a.parquet", "a.txt", "b.txt", "a.conllu", "speech.tsv")
SOUNDS = ("a.wav", "a.flac", "a.ogg", "a.mp3")
MODELS = ("writer", "speaker", "tagger", "listener")
CONLLU = (
    "# text = a dog\n1\ta\ta\tDET\t_\t_\t2\tdet\t_\t_\n2\tdog\tdog\tNOUN\t_\t_\t0\troot\t_\t_\n\n"
)


def make_world(folder: Path) -> None:
    """All files, in a folder: recipes as NAME.yaml, models as folders, corpora and sounds."""
    for name, text in RECIPES.items():
        (folder / f"{name}.yaml").write_text(text, "utf-8")
    (folder / "a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), "utf-8")
    (folder / "a.txt").write_text("".join(f"{a}\n" for a, _ in PAIRS), "utf-8")
    (folder / "b.txt").write_text("".join(f"{b}\n" for _, b in PAIRS), "utf-8")
    lines = [json.dumps({"source": a, "target": b}) for a, b in PAIRS]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    columns = {"source": [a for a, _ in PAIRS], "target": [b for _, b in PAIRS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "a.parquet")
    (folder / "a.conllu").write_text(CONLLU * 4, "utf-8")
    wave = noise(0.5)
    for name in SOUNDS:
        rate = 16_000 if name == "a.mp3" else 4000 if name != "a.ogg" else 8000
        soundfile.write(folder / name, np.tile(wave, rate // 4000), rate)
    rows = "".join(f"{name}\tab c\n" for name in SOUNDS)
    (folder / "speech.tsv").write_text(f"path\ttext\n{rows}", "utf-8")
    tiny(decode={"beam": 2, "max_ratio": 0.5, "max_extra": 3}).save(folder / "writer")
    speaker = language_model()
    speaker.network.float()
    speaker.save(folder / "speaker")
    _tagger(folder / "tagger")
    audio_model(encoder="transformer").save(folder / "listener")


def _tagger(folder: Path) -> None:
    settings = Recipe.model_validate(
        {
            "task": "tag",
            "data": {"train": {"file": "a.conllu"}, "valid": {"file": "a.conllu"}},
            "model": {"width": 8, "encoder": {"kind": "recurrent"}, "characters": {"width": 4}},
        }
    )
    torch.manual_seed(1)
    words = Tokens.train(recipe.Tokens(level="word"), ["a dog runs"])
    create(settings, words, Tokens.train(recipe.Tokens(level="symbol"), ["DET NOUN"])).save(folder)
