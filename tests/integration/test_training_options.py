"""Ways to train that a recipe can ask for, each for real and short."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from transduce.cookbook import load_recipe
from transduce.errors import DataError, TrainingError
from transduce.training import train
from transduce.training.progress import read_log

SHORT = ["train.steps=40", "validation.every=20", "validation.limit=5", "train.log_every=10"]


def losses(folder: Path) -> list[float]:
    return [r["loss"] for r in read_log(folder / "log.jsonl") if r["kind"] == "train"]


def test_a_streamed_corpus_teaches_too(task: Path, tmp_path: Path) -> None:
    recipe = load_recipe(task / "tiny.yaml", [*SHORT, "data.streaming=true", "data.pool=100"])
    train(recipe, tmp_path / "run")
    told = losses(tmp_path / "run")
    assert told[-1] < told[0]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_columns_of_other_formats(task: Path, tmp_path: Path, kind: str) -> None:
    pairs = [line.split("\t") for line in (task / "train.tsv").read_text().splitlines()]
    if kind == "jsonl":
        lines = [json.dumps({"from": s, "to": t}) for s, t in pairs]
        (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    else:
        sources, targets = zip(*pairs, strict=True)
        table = pyarrow.table({"from": list(sources), "to": list(targets)})
        pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    named = f"data.train={{file: {tmp_path}/train.{kind}, source: from, target: to}}"
    same = load_recipe(task / "tiny.yaml", SHORT)
    other = load_recipe(task / "tiny.yaml", [*SHORT, named])
    train(same, tmp_path / "tsv")
    train(other, tmp_path / "other")
    assert losses(tmp_path / "tsv") == losses(tmp_path / "other")


def test_patience_ends_a_run_that_gets_no_better(task: Path, tmp_path: Path) -> None:
    settings = ["train.steps=400", "validation.every=5", "validation.limit=5", "train.lr=1e-9"]
    patience = ["validation.metric=exact", "validation.patience=2"]
    trained = train(load_recipe(task / "tiny.yaml", [*settings, *patience]), tmp_path / "run")
    assert trained.standing.step == 15  # a first value, and two that were no better
    assert trained.standing.best_step == 5


def test_a_loss_that_is_no_number_is_told(task: Path, tmp_path: Path) -> None:
    wild = ["train.lr=1e30", "train.clip=0", "train.warmup=0", "train.schedule=constant"]
    with pytest.raises(
        TrainingError, match=r"not a finite number 10 times in a row, up to update \d+.*train\.lr="
    ):
        train(load_recipe(task / "tiny.yaml", [*SHORT, *wild]), tmp_path / "run")


def test_a_missing_file_is_told_before_anything_is_made(task: Path, tmp_path: Path) -> None:
    recipe = load_recipe(task / "tiny.yaml", ["data.test={file: nowhere.tsv}"])
    with pytest.raises(DataError, match=r"nowhere\.tsv"):
        train(recipe, tmp_path / "run")
    assert not list(tmp_path.glob("run/*.safetensors"))
