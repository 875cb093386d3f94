"""Fine-tunes a Whisper model on the telephone prompts: all weights, and LoRA.

    transduce corpus get asterisk --from DIR
    python benchmarks/whisper_fine_tuning.py whisper-base --output OUT.json

Training, validation and test set and the metrics are those of the recipe `asterisk`, which trains
from scratch, so that the figures can stand beside each other. Scored before training too. The
recipes are written into --work, and may be used as they are: `transduce train full.yaml`. Before
training the model writes punctuation, capitals and digits, which the references do not have; texts
are therefore compared in lower case without punctuation, and digits still count as errors.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

RECIPE = """\
name: whisper-asterisk-{name}
data:
  train: {{name: asterisk, split: train}}
  valid: {{name: asterisk, split: valid}}
  test: {{name: asterisk, split: test}}
  max_length: 3000
audio: {{features: whisper, prompt: {{language: en, timestamps: false}}}}
train:
  start: {{from: {start}}}
{adapter}  steps: {steps}
  lr: {rate}
  warmup: {warmup}
  schedule: cosine
  label_smoothing: 0.0
  batch_tokens: {batch}
  log_every: 10
validation: {{every: {every}, limit: null, metric: cer}}
decode: {{beam: 1}}
metrics: [cer, wer]
"""
ADAPTER = "  adapter: {kind: lora, rank: 16, alpha: 32}\n"
WAYS = {"full": ("", 3e-5), "lora": (ADAPTER, 1e-3)}  # and the learning rate
FRAMES = 3000  # of 10 ms: a recording is padded to 30 s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a Whisper model that was imported")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/whisper-asterisk"))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--recordings", type=int, default=32, help="of a batch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-start", action="store_true", help="do not score it as it is")
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {"model": asked.model.name, "steps": asked.steps}
    values |= {"recordings_of_a_batch": asked.recordings, "seed": asked.seed}
    for name in asked.ways.split(","):
        values[name] = train(name, asked)
        write(asked.output, values)
    if not asked.without_start:
        values["start"] = score(asked.model, asked)
    write(asked.output, values)


def write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")


def train(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Train one way; its scores and how long that took."""
    from transduce.hardware import describe, pick_device
    from transduce.recipe import load_recipe
    from transduce.training import train as train_recipe

    adapter, rate = WAYS[name]
    path = asked.work / f"{name}.yaml"
    path.write_text(
        RECIPE.format(
            name=name,
            start=asked.model.resolve(),
            adapter=adapter,
            steps=asked.steps,
            rate=rate,
            warmup=max(1, asked.steps // 10),
            every=max(1, asked.steps // 3),
            batch=asked.recordings * FRAMES,
        ),
        "utf-8",
    )
    reported = [f"train.device={asked.device}", f"seed={asked.seed}"]
    start = time.perf_counter()
    train_recipe(load_recipe(path, reported), asked.work / name)
    seconds = time.perf_counter() - start
    found = score(asked.work / name, asked)
    found |= {"training_seconds": round(seconds, 1), "lr": rate}
    return found | {"hardware": describe(pick_device(asked.device))}


def score(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """The error rates on the test set, with their 95 % intervals."""
    from transduce import load
    from transduce.corpora.location import corpora_folder
    from transduce.evaluation.metrics import measure
    from transduce.hardware import pick_device

    table = corpora_folder() / "asterisk" / "test.tsv"
    header, *rows = [line.split("\t") for line in table.read_text("utf-8").splitlines()]
    path, text = header.index("path"), header.index("text")
    model = load(folder, str(pick_device(asked.device)))
    start = time.perf_counter()
    files = [table.parent / row[path] for row in rows]
    outputs = model.run(files, language="en", timestamps=False, beam=1, fallback=False)
    seconds = time.perf_counter() - start
    texts = [plain(output.text) for output in outputs]
    found = measure(["cer", "wer"], texts, [[row[text]] for row in rows])
    return {
        **{name: [one.value, one.low, one.high] for name, one in found.items()},
        "recordings": len(rows),
        "decoding_seconds": round(seconds, 1),
    }


def plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s']", " ", text.lower()).split())


if __name__ == "__main__":
    main()
