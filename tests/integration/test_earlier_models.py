"""Model folders of earlier versions still load, and answer as they did."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fixtures.make_models import MODELS, RECIPES, answers
from transduce import load
from transduce.errors import ModelError
from transduce.storage import read_tensor_metadata, read_tensors, write_tensors

PROMISE = (
    "a model folder of an earlier version must still load and answer as it did: mend the code, "
    "and never make the folder again to let this pass, unless the format version (FORMAT in "
    "tasks/folder.py) is raised deliberately"
)


CLOSE = 1e-4  # of a score: the Fourier transforms of different CPUs round differently


@pytest.mark.parametrize("kind", RECIPES)
def test_it_loads_and_answers_as_it_did(kind: str) -> None:
    folder = MODELS / kind
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    try:
        found = answers(kind, folder)
    except Exception as error:
        raise AssertionError(f"{kind}: {PROMISE}") from error
    for one, other in zip(found, expected, strict=True):
        for key in ("text", "tokens"):
            assert one[key] == other[key], f"{kind}: {PROMISE}"
        for key in one.keys() & {"score", "given"}:
            assert one[key] == pytest.approx(other[key], CLOSE, 1e-4), f"{kind}: {key}: {PROMISE}"


def test_there_is_one_of_each_kind_and_they_are_small() -> None:
    assert {path.name for path in MODELS.iterdir()} == set(RECIPES)
    assert sum(path.stat().st_size for path in MODELS.rglob("*") if path.is_file()) < 700_000


def test_each_says_its_format() -> None:
    reported = {
        read_tensor_metadata(MODELS / kind / "model.safetensors")["format"] for kind in RECIPES
    }
    assert reported == {"transduce 1"}


@pytest.mark.parametrize("newer", ["transduce 2", "another 1"])
def test_a_newer_format_is_reported(tmp_path: Path, newer: str) -> None:
    """Also where its recipe has keys that are not known here."""
    folder = tmp_path / "model"
    shutil.copytree(MODELS / "translate", folder)
    (folder / "model.sha256").unlink()
    tensors, metadata = read_tensors(folder / "model.safetensors")
    write_tensors(folder / "model.safetensors", tensors, {**metadata, "format": newer})
    with (folder / "recipe.yaml").open("a") as recipe:
        recipe.write("thought: deep\n")
    sentence = rf"has the format '{newer}', and this transduce reads formats up to 'transduce 1'"
    with pytest.raises(ModelError, match=sentence):
        load(folder)
