"""Which keys of a recipe may change in mid-run, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.errors import CheckpointError, TrainingError
from transduce.models.build import Vocabulary, build
from transduce.recipe import Recipe, dump_recipe
from transduce.training.optimizer import build_optimizer
from transduce.training.run_directory.checkpoint import TrainingState, check_changes, save_state

PART = {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 16}
VALUES: dict[str, Any] = {
    "name": "tiny",
    "seed": 1,
    "data": {
        "folder": "/data",
        "train": {"name": "copy", "split": "train"},
        "valid": {"name": "copy", "split": "valid"},
    },
    "model": {"width": 8, "encoder": PART, "decoder": PART},
    "train": {"steps": 100},
}


def changed(**dotted: Any) -> Recipe:
    """The recipe with keys set; __ stands for a dot."""
    values = Recipe.model_validate(VALUES).model_dump(mode="json")
    for key, value in dotted.items():
        inner = values
        *above, last = key.split("__")
        for part in above:
            inner = inner[part]
        inner[last] = value
    return Recipe.model_validate(values)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    recipe = changed()
    torch.manual_seed(1)
    network = build(recipe.model, Vocabulary(9, 9))
    optimizer = build_optimizer(network, recipe.train)
    save_state(folder, TrainingState(), network, optimizer, None, dump_recipe(recipe))
    return folder


def test_the_same_recipe_has_no_changes(folder: Path) -> None:
    assert check_changes(changed(), folder) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "other"),
        ("train__steps", 200),
        ("train__epochs", 3),
        ("train__minutes", 1.5),
        ("train__lr", 0.5),
        ("train__log_every", 7),
        ("train__device", "cpu"),
        ("validation__every", 5),
        ("validation__patience", 5),
        ("validation__limit", None),
        ("validation__beam", 2),
        ("decode__beam", 2),
        ("metrics", ["chrf"]),
        ("data__folder", "/moved"),
        ("data__test", {"name": "copy", "split": "test"}),
        ("data__workers", 3),
        ("data__shuffle_buffer", 5000),  # without a stream it means nothing
    ],
)
def test_what_may_change_is_reported(folder: Path, key: str, value: Any) -> None:
    (line,) = check_changes(changed(**{key: value}), folder)
    assert line.startswith(key.replace("__", ".") + " is now ")
    if isinstance(value, int | float | str):
        assert str(value) in line


def test_old_and_new_are_in_the_line(folder: Path) -> None:
    assert check_changes(changed(train__steps=200), folder) == ["train.steps is now 200 (was 100)"]
    assert len(check_changes(changed(train__steps=200, decode__beam=1), folder)) == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 2),
        ("model__width", 16),
        ("model__dropout", 0.2),
        ("model__encoder__layers", 2),
        ("model__decoder", {"kind": "recurrent"}),
        ("model__tie_embeddings", "none"),
        ("train__batch_tokens", 100),
        ("train__accumulate", 2),
        ("train__ema", 0.9),
        ("train__schedule", "linear"),
        ("train__warmup", 5),
        ("data__max_length", 30),
        ("data__train__name", "reverse"),
        ("data__tokens__both__size", 50),
        # The best value so far is of the old metric: the new one cannot be compared with it.
        ("validation__metric", "bleu"),
    ],
)
def test_what_may_not_change_is_refused_by_name(folder: Path, key: str, value: Any) -> None:
    with pytest.raises(TrainingError) as error:
        check_changes(changed(**{key: value}), folder)
    message = str(error.value)
    assert key.replace("__", ".") in message
    assert "\n" not in message
    if isinstance(value, int | float | str):
        assert str(value) in message


def test_a_forbidden_change_is_refused_beside_free_ones(folder: Path) -> None:
    with pytest.raises(TrainingError, match=r"model\.width: 8, the recipe now says 16"):
        check_changes(changed(train__steps=200, model__width=16), folder)


def test_the_pools_of_a_stream_stay_as_they_are(folder: Path, tmp_path: Path) -> None:
    """A position counts them."""
    recipe = changed(data__streaming=True, data__shuffle_buffer=200_000)
    network = build(recipe.model, Vocabulary(9, 9))
    optimizer = build_optimizer(network, recipe.train)
    save_state(tmp_path, TrainingState(), network, optimizer, None, dump_recipe(recipe))
    with pytest.raises(TrainingError, match=r"data\.shuffle_buffer: 200000, the recipe now says"):
        check_changes(changed(data__streaming=True), tmp_path)


def test_without_a_state_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="missing"):
        check_changes(changed(), tmp_path)
