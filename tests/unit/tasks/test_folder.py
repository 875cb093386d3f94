"""A model folder: what of it is a run's, and what is somebody's own."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tiny_models import tiny
from transduce.checksums import SUMS, fits, is_ours, write_listed
from transduce.errors import ModelError, TransduceWarning
from transduce.interop.parity import REPORT
from transduce.recipe import RECIPE, dump_recipe
from transduce.tasks.folder import (
    CARD,
    CARD_BESIDE,
    RUN_FILES,
    WRITTEN,
    ModelDefinition,
    conflicting_file,
    discard_run,
    holds_run,
    read_metrics,
    update_metrics,
    write_definition,
)


def test_a_run_that_is_discarded_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    run = [name.replace("*", "test") for name in RUN_FILES]
    for name in (*run, "corpus.tsv", "my.yaml"):
        (tmp_path / name).write_text("x")
    (tmp_path / SUMS).unlink()
    write_listed(tmp_path / RECIPE, f"{WRITTEN}\n")
    write_listed(tmp_path / CARD, "a card")
    write_listed(tmp_path / CARD_BESIDE, "a card")
    write_listed(tmp_path / "report.html", "a page")
    for name in (f"onnx/{REPORT}", "state/training.safetensors", "corpora/train.tsv"):
        (tmp_path / name).parent.unlink(missing_ok=True)
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x")
    (tmp_path / "training.png").unlink()
    (tmp_path / "training.png").symlink_to(tmp_path / "corpora")
    discard_run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.tsv", "my.yaml", "corpora"}
    assert (tmp_path / "corpora" / "train.tsv").exists()


def test_a_run_that_is_discarded_leaves_what_a_person_wrote(tmp_path: Path) -> None:
    model = tiny()
    mine = f"# mine\n{dump_recipe(model.recipe)}"
    (tmp_path / RECIPE).write_text(mine)
    model.save(tmp_path)  # it says the same
    (tmp_path / CARD).write_text("# My project")
    write_listed(tmp_path / CARD_BESIDE, "a card")
    write_listed(tmp_path / "report.html", "a page")
    (tmp_path / CARD_BESIDE).write_text("a card, mended")
    discard_run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {RECIPE, CARD, CARD_BESIDE}
    assert (tmp_path / RECIPE).read_text() == mine


def frame(**parts: object) -> ModelDefinition:
    model = tiny(**parts)  # type: ignore[arg-type]
    return ModelDefinition(model.recipe, model.source_tokens, model.target_tokens)


def test_a_recipe_that_was_there_stays_to_the_byte(tmp_path: Path) -> None:
    mine = f"# mine\n{dump_recipe(frame().recipe)}  # all of it\n"
    (tmp_path / RECIPE).write_text(mine)
    for _ in range(2):
        write_definition(tmp_path, frame())
    assert (tmp_path / RECIPE).read_text() == mine
    assert fits(tmp_path / RECIPE)
    with pytest.raises(ModelError, match="your own recipe"):
        write_definition(tmp_path, frame(decode={"beam": 7}))
    assert (tmp_path / RECIPE).read_text() == mine


@pytest.mark.parametrize("text", ["", "just text", "data: [", "\0"])
def test_what_is_no_recipe_at_all_stays_too(tmp_path: Path, text: str) -> None:
    (tmp_path / RECIPE).write_text(text)
    with pytest.raises(ModelError, match="your own recipe"):
        write_definition(tmp_path, frame())
    assert (tmp_path / RECIPE).read_text() == text


def test_a_recipe_that_we_wrote_is_replaced(tmp_path: Path) -> None:
    write_definition(tmp_path, frame())
    write_definition(tmp_path, frame(decode={"beam": 7}))
    text = (tmp_path / RECIPE).read_text()
    assert text == f"{WRITTEN}\n{dump_recipe(frame(decode={'beam': 7}).recipe)}"
    (tmp_path / RECIPE).write_text(text.replace("beam: 7", "beam: 8"))  # now it is a person's
    with pytest.raises(ModelError, match="your own recipe, or was edited"):
        write_definition(tmp_path, frame())


def test_which_folders_hold_a_run(tmp_path: Path) -> None:
    for name in ("recipe.yaml", "README.md", "state/notes.txt", "train.tsv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    assert not holds_run(tmp_path)
    assert conflicting_file(tmp_path) == tmp_path / "state"
    (tmp_path / "state" / "training.previous.safetensors").touch()
    assert holds_run(tmp_path)
    assert conflicting_file(tmp_path) is None


def test_two_that_write_metrics_at_once_lose_nothing(tmp_path: Path) -> None:
    names = [f"split {number}" for number in range(24)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: update_metrics(tmp_path, name, {"items": 1}), names))
    assert set(read_metrics(tmp_path)) == set(names)
    assert is_ours(tmp_path / "metrics.json")
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.json", SUMS}


def test_metrics_that_somebody_changed_are_kept_and_reported(tmp_path: Path) -> None:
    update_metrics(tmp_path, "test", {"items": 1})
    (tmp_path / "metrics.json").write_text('{"test": {"items": 1}, "mine": 2}')
    with pytest.warns(TransduceWarning, match="was edited since transduce wrote it"):
        update_metrics(tmp_path, "valid", {"items": 3})
    assert read_metrics(tmp_path) == {"test": {"items": 1}, "mine": 2, "valid": {"items": 3}}
    (tmp_path / "metrics.json").write_text("not JSON")
    with pytest.warns(TransduceWarning, match="was not a JSON object"):
        update_metrics(tmp_path, "valid", {"items": 3})
    assert (tmp_path / "metrics.unreadable.json").read_text() == "not JSON"
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"valid": {"items": 3}}
