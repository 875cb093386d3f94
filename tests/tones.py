"""Sound that a tiny model learns in seconds: each letter is a tone, a space a pause."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

RATE = 4000
LETTERS = {"a": 300, "b": 500, "c": 800, "d": 1200, "e": 1700}
TONE = 0.12  # seconds
PAUSE = 0.1
COUNTS = {"train": 240, "valid": 30, "test": 30}

RECIPE = """
name: tones
data:
  train: {file: train.tsv, audio: path, target: text}
  valid: {file: valid.tsv, audio: path, target: text}
  test: {file: test.tsv, audio: path, target: text}
  tokens: {both: {level: character}}
  max_length: 300
audio:
  sample_rate: 4000
  mel_bands: 16
  channels: 8
  spec_augment: {time_masks: 1, time_mask_frames: 4, frequency_masks: 1, frequency_mask_bands: 2}
model:
  width: 32
  dropout: 0.0
  tie_embeddings: none
  ctc_weight: 0.3
  encoder: {kind: conformer, layers: 1, heads: 2, feed_forward: 64, kernel: 7}
  decoder: {layers: 1, heads: 2, feed_forward: 64}
train: {steps: 300, batch_tokens: 3000, lr: 5e-3, schedule: cosine, warmup: 30,
  label_smoothing: 0.0, log_every: 20, device: cpu}
validation: {every: 100, limit: 30, metric: cer}
decode: {beam: 3, ctc_weight: 0.3, max_ratio: 1.0}
metrics: [cer, wer]
"""


def tones(text: str, seed: int = 1) -> NDArray[np.float32]:
    """What a text sounds like, a little noise under it."""
    noise = np.random.default_rng(seed)
    parts = [np.zeros(int(PAUSE * RATE))]
    for letter in text:
        seconds = PAUSE if letter == " " else TONE
        time = np.arange(int(seconds * RATE)) / RATE
        wave = np.sin(2 * np.pi * LETTERS.get(letter, 0) * time)
        parts += [0.3 * wave * np.hanning(len(time)), np.zeros(int(0.03 * RATE))]
    parts.append(np.zeros(int(PAUSE * RATE)))
    samples = np.concatenate(parts)
    return (samples + 0.003 * noise.standard_normal(len(samples))).astype(np.float32)


def write_run(folder: Path) -> None:
    """Sounds, and a model in run/ that has learned to hear them."""
    from transduce.recipe import load_recipe
    from transduce.training import train

    write_tones(folder, COUNTS)
    train(load_recipe(folder / "tones.yaml"), folder / "run")


def write_tones(folder: Path, counts: dict[str, int]) -> Path:
    """Manifests with their sounds, and tones.yaml; no text is in two of them."""
    words = ["".join(w) for n in (1, 2, 3) for w in itertools.product(LETTERS, repeat=n)]
    draw = random.Random(3)
    texts: dict[str, None] = {}
    while len(texts) < sum(counts.values()):
        texts[" ".join(draw.choice(words) for _ in range(draw.choice((1, 2, 2))))] = None
    remaining = iter(texts)
    (folder / "sounds").mkdir(parents=True, exist_ok=True)
    for split, count in counts.items():
        lines = ["path\ttext\n"]
        for number, text in zip(range(count), remaining, strict=False):
            name = f"sounds/{split}{number}.wav"
            soundfile.write(folder / name, tones(text, number), RATE)
            lines.append(f"{name}\t{text}\n")
        (folder / f"{split}.tsv").write_text("".join(lines), "utf-8")
    (folder / "tones.yaml").write_text(RECIPE, "utf-8")
    return folder
