"""What is a person's stays, what is better stays, and what is missing is noticed."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest

from lives import STEPS, Lives, check_same, command
from slow_params import some_slow
from transduce.checksums import SUMS, fits, is_ours, list_files
from transduce.storage import read_tensors, write_tensors

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")

STATE = Path("state/training.safetensors")
PREVIOUS = Path("state/training.previous.safetensors")


def reported(lives: Lives, *arguments: str, status: int = 0, **more: object) -> str:
    lives.start(*arguments, **more)  # type: ignore[arg-type]
    assert lives.end() == status, lives.reported
    assert "Traceback" not in lives.reported
    return " ".join(lives.reported.split())


def validations(folder: Path) -> list[int]:
    records = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [record["step"] for record in records if record["kind"] == "valid"]


@pytest.fixture
def project(task: Path, tmp_path: Path) -> Path:
    """A folder of somebody's own: a recipe with comments, a README, the data."""
    folder = tmp_path / "project"
    shutil.copytree(task, folder)
    text = (folder / "tiny.yaml").read_text()
    text = text.replace("steps: 400", "steps: 12").replace("every: 100", "every: 6")
    text = text.replace("warmup: 40", "warmup: 4")
    (folder / "tiny.yaml").unlink()
    (folder / "recipe.yaml").write_text(f"# my own recipe\n{text}")
    (folder / "README.md").write_text("# My project\n")
    return folder


@pytest.mark.parametrize("in_place", some_slow([False, True], [True]))
def test_a_recipe_and_a_readme_of_ones_own_stay(
    project: Path, lives: Lives, in_place: bool
) -> None:
    before = {path: path.read_bytes() for path in project.iterdir()}
    run = project if in_place else project / "runs" / "tiny"
    said = reported(lives, "train", str(project), "--output", str(run))
    said += reported(lives, "evaluate", str(run))
    assert {path: path.read_bytes() for path in before} == before
    assert (run / "model.safetensors").is_file()
    card = run / ("MODEL_CARD.md" if in_place else "README.md")
    assert "trained with transduce" in card.read_text()
    assert ("README.md was written or edited by you and is kept" in said) == in_place
    assert "warning: " not in said
    # A second run is asked for, and the recipe still is the person's.
    reported(lives, "train", str(run), "--overwrite")
    assert {path: path.read_bytes() for path in before} == before


def test_a_folder_with_a_recipe_is_not_trained_into(
    project: Path, lives: Lives, tmp_path: Path
) -> None:
    """Without --output, the run is where that of a recipe file would be."""
    work = tmp_path / "work"
    work.mkdir()
    said = reported(lives, "train", str(project), folder=str(work))
    assert "The model is in runs/tiny" in said
    assert (work / "runs" / "tiny" / "model.safetensors").is_file()
    assert not (project / SUMS).exists()


def test_a_card_that_was_edited_stays(undisturbed: Path, lives: Lives, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    assert is_ours(folder / "README.md")
    reported(lives, "evaluate", str(folder))
    assert "| test" in (folder / "README.md").read_text()
    assert not (folder / "MODEL_CARD.md").exists()
    (folder / "README.md").write_text("# Mine\n")
    said = reported(lives, "evaluate", str(folder))
    assert (folder / "README.md").read_text() == "# Mine\n"
    assert "was written or edited by you and is kept; the model card is" in said
    assert "| test" in (folder / "MODEL_CARD.md").read_text()


# ------------------------------------------------------------------------------------ resuming


@pytest.mark.slow
def test_a_better_model_in_the_folder_stays(task: Path, lives: Lives, tmp_path: Path) -> None:
    """Such as the average of an earlier end, which the state knows nothing of."""
    folder = tmp_path / "run"
    reported(lives, *command(task, folder, "train.steps=20"))
    weights = folder / "model.safetensors"
    tensors, metadata = read_tensors(weights)
    (loss,) = metadata["validation"].values()
    other = {name: tensor.add(1.0) for name, tensor in tensors.items()}
    write_tensors(weights, other, {**metadata, "validation": {"loss": loss / 100}})
    list_files(folder, weights)
    better = weights.read_bytes()
    said = reported(lives, *command(task, folder, "train.steps=60"))
    assert weights.read_bytes() == better
    assert "is kept: it has loss" in said
    # One that is worse, and one that is damaged, are replaced.
    write_tensors(weights, other, {**metadata, "validation": {"loss": loss * 100}})
    list_files(folder, weights)
    reported(lives, *command(task, folder, "train.steps=80"))
    assert fits(weights)
    assert read_tensors(weights)[1]["validation"]["loss"] < loss
    weights.write_bytes(better[:-5])
    reported(lives, *command(task, folder, "train.steps=120"))
    assert fits(weights)
    assert read_tensors(weights)[1]["validation"]["loss"] < loss


def test_killed_between_its_first_weights_and_its_first_state(
    task: Path, lives: Lives, tmp_path: Path
) -> None:
    """It starts again; but a model whose states somebody has removed is not trained over."""
    folder = tmp_path / "run"
    death = {"file": "model.safetensors", "place": "renamed", "turn": 1, "seed": 1}
    reported(lives, *command(task, folder, "train.steps=20"), status=-9, death=death)
    assert not (folder / STATE).exists()
    reported(lives, *command(task, folder, "train.steps=20"))
    assert validations(folder) == [10, 20]
    before = (folder / "model.safetensors").read_bytes()
    shutil.rmtree(folder / "state")
    for more in ([], ["--resume"]):
        said = reported(lives, *command(task, folder, "train.steps=20"), *more, status=2)
        assert "holds a trained model without a checkpoint" in said
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("there", ["nothing", "previous"])
def test_resume_goes_by_what_is_there(
    task: Path, undisturbed: Path, lives: Lives, tmp_path: Path, there: str
) -> None:
    """As a script does that is started again and again, always with --resume."""
    folder = tmp_path / "run"
    settings = ["train.steps=20"] if there == "nothing" else []
    if there == "previous":  # a kill between two renames
        shutil.copytree(undisturbed, folder)
        (folder / STATE).unlink()
    arguments = [one for one in command(task, folder, *settings) if one != "--resume"]
    said = reported(lives, *arguments, "--resume")
    if there == "previous":
        assert f"resuming from the checkpoint before it, of update {STEPS - 10}" in said
        check_same(folder, undisturbed)
    else:
        assert "There is no checkpoint" in said
        assert validations(folder) == [10, 20]


def test_states_are_saved_by_the_minute(task: Path, lives: Lives, tmp_path: Path) -> None:
    """Killed at updates that no validation saved, it is the same run to the bit."""
    often, rarely = "train.save_every=1e-5", "train.save_every=1000"
    whole, folder = tmp_path / "whole", tmp_path / "run"
    reported(lives, *command(task, whole, "train.steps=40", rarely))
    saved = []
    for turn, place in ((4, "middle"), (7, "written"), (9, "between"), (6, "renamed")):
        death = {"file": STATE.name, "place": place, "turn": turn, "seed": 3}
        reported(lives, *command(task, folder, "train.steps=40", often), status=-9, death=death)
        newest = folder / STATE if (folder / STATE).exists() else folder / PREVIOUS
        saved.append(read_tensors(newest)[1]["standing"]["step"])
    assert len([step for step in saved if step % 10]) >= 2, saved
    assert saved == sorted(set(saved))
    reported(lives, *command(task, folder, "train.steps=40", rarely))
    check_same(folder, whole)


# ------------------------------------------------------------------------------- what is missing


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_a_folder_that_goes_away_ends_its_run(
    task: Path, lives: Lives, tmp_path: Path, how: str
) -> None:
    """Noticed at the next line of the log, long before a validation."""
    folder = tmp_path / "run"
    quiet = ["train.steps=100000", "validation.patience=null", "validation.every=90000"]
    lives.start(*command(task, folder, *quiet))
    log = folder / "log.jsonl"
    deadline = time.monotonic() + 100
    while not (log.exists() and log.read_bytes().count(b"\n") >= 5):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    if how == "removed":
        while folder.exists():  # the run may write a file meanwhile
            shutil.rmtree(folder, ignore_errors=True)
    else:
        folder.rename(tmp_path / "elsewhere")
    began = time.monotonic()
    assert lives.end() == 2, lives.reported
    assert time.monotonic() - began < 30
    assert "Traceback" not in lives.reported
    assert f"the folder {folder} does not exist any more" in lives.reported.splitlines()[-1]
    assert not folder.exists()


def test_a_model_from_elsewhere_names_no_data(
    undisturbed: Path, lives: Lives, tmp_path: Path
) -> None:
    """One that was trained here is evaluated wherever it is moved to."""
    folder, table = tmp_path / "moved", tmp_path / "some.tsv"
    shutil.copytree(undisturbed, folder)
    reported(lives, "evaluate", str(folder))
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "nobody")}
    said = reported(lives, "evaluate", str(folder), status=2, environment=elsewhere)
    assert "you have not trained with it here" in said
    table.write_text("ab\tba\n")
    reported(lives, "evaluate", str(folder), "--source", str(table), environment=elsewhere)
