"""Ways to train that a recipe can ask for, each for real and short."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch

from transduce.checksums import SUMS
from transduce.errors import DataError, TrainingError
from transduce.evaluation.evaluate import evaluate_folder
from transduce.recipe import Columns, Data, Model, Recipe, Tokens, TokensOfSides, Train, load_recipe
from transduce.storage import read_tensors
from transduce.tasks.transduce import load
from transduce.training import train
from transduce.training.log import read_log
from transduce.training.run_directory.checkpoint import STATE

SHORT = ["train.steps=40", "validation.every=20", "validation.limit=5", "train.log_every=10"]
SHORT += ["model.encoder.layers=1", "model.decoder.layers=1"]


def losses(folder: Path) -> list[float]:
    return [r["loss"] for r in read_log(folder / "log.jsonl") if r["kind"] == "train"]


def test_a_streamed_corpus_teaches_too_and_resumes_exactly(
    task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two compressed files, one drawn more often, with pairs that are skipped."""
    rows = ["ab" * 300 + "\tx", "\tno source", *(task / "train.tsv").read_text().splitlines()[:150]]
    for name, some in (("a", rows[:90]), ("b", rows[90:])):
        (tmp_path / f"{name}.tsv.gz").write_bytes(gzip.compress("\n".join(some).encode()))
    corpora = (
        f"data.train=[{{file: {tmp_path}/a.tsv.gz, weight: 2}}, {{file: {tmp_path}/b.tsv.gz}}]"
    )
    more = [*SHORT, corpora, "data.streaming=true", "data.shuffle_buffer=60"]
    train(load_recipe(task / "tiny.yaml", more), tmp_path / "run")
    reported = losses(tmp_path / "run")
    assert reported[-1] < reported[0]
    said = capsys.readouterr()
    # The first file is read at least once in an epoch, as it is drawn more often.
    (sentence,) = [line for line in said.err.splitlines() if "an empty source skipped" in line]
    assert "warning: in an epoch of the stream, " in sentence
    train(load_recipe(task / "tiny.yaml", [*more, "train.steps=23"]), tmp_path / "halved")
    train(load_recipe(task / "tiny.yaml", more), tmp_path / "halved", resume=True)
    (one, standing), (other, resumed) = (
        read_tensors(tmp_path / name / STATE) for name in ("run", "halved")
    )
    assert standing["standing"]["position"] == resumed["standing"]["position"]
    assert standing["standing"]["position"]["epoch"] >= 1
    weights = [name for name in one if name.startswith("weights/")]
    assert all(torch.equal(one[name], other[name]) for name in weights)


def test_a_recipe_made_in_python_is_kept_as_one_of_a_file(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its preset counts, and what it is evaluated on is found from anywhere."""
    monkeypatch.chdir(task)
    recipe = Recipe(
        data=Data(
            train=Columns(file="train.tsv"),
            valid=Columns(file="valid.tsv", limit=5),
            test=Columns(file="test.tsv", limit=5),
            tokens=TokensOfSides(both=Tokens(level="character")),
        ),
        model=Model(preset="transformer-tiny", width=32),
        train=Train(steps=2, batch_tokens=256),
        metrics=["exact"],
    )
    train(recipe, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    model = load(tmp_path / "run")
    assert (model.recipe.model.width, model.recipe.model.parts["encoder"].layers) == (32, 2)
    assert model.recipe.data.folder == str(task)
    assert len(evaluate_folder(model, tmp_path / "run").items) == 5


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
    brief = [*SHORT, "train.steps=15", "train.log_every=5", "validation.every=15"]  # an epoch
    same = load_recipe(task / "tiny.yaml", brief)
    other = load_recipe(task / "tiny.yaml", [*brief, named])
    train(same, tmp_path / "tsv")
    train(other, tmp_path / "other")
    assert losses(tmp_path / "tsv") == losses(tmp_path / "other")


def test_patience_ends_a_run_that_gets_no_better(task: Path, tmp_path: Path) -> None:
    settings = ["train.steps=400", "validation.every=5", "validation.limit=5", "train.lr=1e-9"]
    patience = ["validation.metric=exact", "validation.patience=2"]
    trained = train(load_recipe(task / "tiny.yaml", [*settings, *patience]), tmp_path / "run")
    assert trained.state.step == 15  # a first value, and two that were no better


def test_a_loss_that_is_no_number_is_reported(task: Path, tmp_path: Path) -> None:
    wild = ["train.lr=1e18", "train.clip_norm=0", "train.warmup=0", "train.schedule=constant"]
    with pytest.raises(
        TrainingError, match=r"NaN or infinite 10 times in a row, up to update \d+.*train\.lr="
    ):
        train(load_recipe(task / "tiny.yaml", [*SHORT, *wild]), tmp_path / "run")


def test_a_new_start_learns_its_own_tokens(task: Path, tmp_path: Path) -> None:
    """What a run left that ended before its first state is not taken for the new recipe's."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / SUMS).touch()
    for side in ("source", "target"):
        (folder / f"{side}.tokens.json").write_text("tokens of another recipe")
    trained = train(load_recipe(task / "tiny.yaml", [*SHORT, "train.steps=2"]), folder)
    assert trained.model.source_tokens.level == "character"


def test_a_run_is_overwritten_only_by_one_that_can_start(task: Path, tmp_path: Path) -> None:
    few = [*SHORT, "train.steps=2"]
    train(load_recipe(task / "tiny.yaml", few), tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    wrong = load_recipe(task / "tiny.yaml", [*few, "data.train={file: nowhere.tsv}"])
    with pytest.raises(DataError, match="nowhere"):
        train(wrong, tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_a_resumed_run_writes_its_changed_recipe_down(task: Path, tmp_path: Path) -> None:
    """So that `transduce train FOLDER --resume` goes on with it, not with the one before."""
    train(load_recipe(task / "tiny.yaml", [*SHORT, "train.steps=2"]), tmp_path / "run")
    longer = load_recipe(task / "tiny.yaml", [*SHORT, "train.steps=4"])
    train(longer, tmp_path / "run", resume=True)
    assert load_recipe(tmp_path / "run" / "recipe.yaml", []).train.steps == 4


def test_a_run_that_has_ended_and_one_that_ends_too_soon_say_so(
    task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*SHORT, "train.steps=2", "train.warmup=2"]
    train(load_recipe(task / "tiny.yaml", asked), tmp_path / "run")
    assert "before the warm-up of 2 is over" in capsys.readouterr().err
    train(load_recipe(task / "tiny.yaml", asked), tmp_path / "run", resume=True)
    reported = capsys.readouterr().err
    assert "is finished, at update 2: to train it longer" in reported
    assert "resume it with a larger train.steps" in reported
    assert "the rate rises" not in reported
    train(load_recipe(task / "tiny.yaml", [*asked, "train.warmup=1"]), tmp_path / "other")
    assert "the rate rises" not in capsys.readouterr().err


def test_what_the_state_before_the_newest_had_kept_stays(task: Path, tmp_path: Path) -> None:
    settings = ["train.steps=8", "validation.every=2", "train.average={of: last, count: 2}"]
    train(load_recipe(task / "tiny.yaml", [*SHORT, *settings]), tmp_path / "run")
    kept = sorted(path.name for path in (tmp_path / "run" / "state").glob("kept-*"))
    assert kept == [f"kept-{step}.safetensors" for step in (4, 6, 8)]


def test_a_missing_file_is_reported_before_anything_is_made(task: Path, tmp_path: Path) -> None:
    recipe = load_recipe(task / "tiny.yaml", ["data.test={file: nowhere.tsv}"])
    with pytest.raises(DataError, match=r"nowhere\.tsv"):
        train(recipe, tmp_path / "run")
    assert not list(tmp_path.glob("run/*.safetensors"))


def test_regularisers_teach_and_go_on_where_they_were(task: Path, tmp_path: Path) -> None:
    """Two passes that must agree, and subwords taken apart: stopped or not, the same losses."""
    asked = [
        *SHORT,
        "train.steps=20",
        "train.log_every=5",
        "validation.every=10",
        "train.schedule=constant",
        "train.r_drop=1.0",
        "model.dropout=0.1",
        "data.tokens={both: {size: 60, bpe_dropout: 0.3}}",
    ]
    recipe = load_recipe(task / "tiny.yaml", asked)
    train(recipe, tmp_path / "whole")
    train(load_recipe(task / "tiny.yaml", [*asked, "train.steps=10"]), tmp_path / "parts")
    train(recipe, tmp_path / "parts", resume=True)
    reported = losses(tmp_path / "whole")
    assert reported[-1] < reported[0]
    assert losses(tmp_path / "parts") == reported
    plain = load_recipe(task / "tiny.yaml", [*asked, "data.tokens={both: {size: 60}}"])
    train(plain, tmp_path / "plain")
    assert losses(tmp_path / "plain") != reported


def test_mixed_corpora_resume_to_the_letter(
    task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (task / "train.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "small.tsv").write_text("".join(lines[:10]))
    (tmp_path / "large.tsv").write_text("".join(lines[10:80]))
    mixed = (
        f"data.train=[{{file: {tmp_path}/small.tsv, weight: 2}}, {{file: {tmp_path}/large.tsv}}]"
    )
    few = ["train.log_every=1", "validation.every=6", "validation.limit=2", mixed]

    def recipe(steps: int) -> Recipe:
        asked = [*few, f"train.steps={steps}", "data.temperature=3", "train.batch_tokens=64"]
        return load_recipe(task / "tiny.yaml", asked)

    train(recipe(12), tmp_path / "whole")
    reported = capsys.readouterr().err
    assert "small.tsv: 10 pairs, 12.5% of all, drawn 51.1% of the time" in reported
    train(recipe(5), tmp_path / "parts")
    train(recipe(12), tmp_path / "parts", resume=True)
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    with pytest.raises(TrainingError, match=r"data\.temperature: 3\.0, the recipe now says 1\.0"):
        train(load_recipe(task / "tiny.yaml", few), tmp_path / "parts", resume=True)


@pytest.mark.slow
def test_muon_and_checkpointed_activations_resume_to_the_letter(task: Path, tmp_path: Path) -> None:
    def recipe(steps: int, checkpointed: bool = True) -> Recipe:
        asked = [f"train.steps={steps}", "train.log_every=1", "validation.every=6"]
        asked += ["train.optimizer=muon", "model.dropout=0.1", "validation.limit=1"]
        asked += [f"train.checkpoint_activations={str(checkpointed).lower()}"]
        return load_recipe(task / "tiny.yaml", asked)

    train(recipe(6), tmp_path / "whole")
    train(recipe(3), tmp_path / "parts")
    train(recipe(6), tmp_path / "parts", resume=True)
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    train(recipe(6, checkpointed=False), tmp_path / "plain")
    assert losses(tmp_path / "whole") == losses(tmp_path / "plain")
