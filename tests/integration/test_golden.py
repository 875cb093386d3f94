"""Golden losses: the first 25 of a few small recipes must not change without a commit that says so.

To renew them: python tests/integration/test_golden.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from transduce.recipe import load_recipe
from transduce.training import train
from transduce.training.log import read_log

GOLDEN = Path(__file__).parent / "golden_losses.json"
COMMON = [
    "train.steps=25",
    "train.batch_tokens=256",
    "train.log_every=1",
    "train.warmup=10",
    "train.label_smoothing=0.1",
    "validation.every=25",
    "validation.limit=5",
    "train.device=cpu",
    "train.precision=float32",
    "model.dropout=0.0",  # builds of torch draw masks from different generators
]
RECIPES: dict[str, tuple[str, list[str]]] = {
    "transformer": ("reverse", ["model.width=32"]),
    "post-norm": (
        "copy",
        [
            "model.width=32",
            "model.encoder={kind: transformer, layers: 1, heads: 2, feed_forward: 64, "
            "norm_position: post, activation: gelu, positions: learned}",
            "model.decoder={kind: transformer, layers: 1, heads: 2, feed_forward: 64, "
            "norm_position: post, activation: swiglu, norm: rms, positions: rotary}",
        ],
    ),
    "gru-attention": ("reverse", ["model.preset=gru-attention", "model.width=32"]),
    "convolutional": ("reverse", ["model.preset=convolutional-small", "model.width=32"]),
    "location-aware": (
        "copy",
        [
            "model.width=32",
            "model.encoder={kind: convolutional, layers: 2, kernel: 5, positions: learned}",
            "model.decoder={kind: recurrent, cell: gru, attention: location-aware, context: both}",
        ],
    ),
    "peephole-attention": ("copy", ["model.preset=peephole-attention", "model.width=32"]),
}


def first_losses(name: str, folder: Path) -> list[float]:
    recipe, settings = RECIPES[name]
    train(load_recipe(recipe, [*COMMON, *settings]), folder / name)
    log = read_log(folder / name / "log.jsonl")
    return [round(record["objective"], 6) for record in log if record["kind"] == "train"]


@pytest.mark.parametrize("name", RECIPES)
def test_losses_have_not_changed(name: str, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))[name]
    # Processors round differently, and training carries it on: what changes by more is a change.
    assert first_losses(name, tmp_path) == pytest.approx(golden, rel=2e-3)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        renewed = {name: first_losses(name, Path(folder)) for name in RECIPES}
    GOLDEN.write_text(json.dumps(renewed, indent=1) + "\n", "utf-8")
