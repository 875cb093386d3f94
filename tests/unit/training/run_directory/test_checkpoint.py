"""A run that is saved and put back goes on as if it had never stopped."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transduce import recipe
from transduce.data.batches.bucketing import Position
from transduce.errors import CheckpointError
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from transduce.storage import write_tensors
from transduce.training.log_window import LogWindow, Outcome, UpdateResult
from transduce.training.nan_guard import NanGuard
from transduce.training.optimizer import MovingAverage, build_optimizer
from transduce.training.run_directory.checkpoint import (
    PREVIOUS,
    STATE,
    TrainingState,
    has_state,
    load_state,
    recover_state,
    save_state,
    saved_recipe,
)

SOURCE, LENGTHS = torch.tensor([[5, 6, 3], [7, 3, 0]]), torch.tensor([3, 2])
TARGET = torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]])


def passed(*numbers: float) -> UpdateResult:
    return UpdateResult(*(torch.tensor(number, dtype=torch.float64) for number in numbers))


STANDING = TrainingState(
    step=7,
    position=Position(2, 0, 31),
    seconds=12.5,
    best=0.75,
    best_step=5,
    worse=1,
    kept=[(3, 0.5), (5, 0.75)],
    window=LogWindow(
        seen=[Outcome(8.5, 2.25, 9, 7.5), Outcome(math.inf, 1.0, 4, 3.0)],
        waiting=[[7.5, 1.5, 6.5, 6]],
        padding=0.5,
        seconds=1.5,
        batches=3,
        split=1,
        left_out=2,
    ),
    guard=NanGuard(0.25, 17, 3, 5, 2.5, 2.625, 0.125, 6),
    tokens=2048,
)


class Run:
    """A network in training, as small as can be."""

    def __init__(self, seed: int = 1, width: int = 8, layers: int = 1, ema: bool = True) -> None:
        torch.manual_seed(seed)
        part = {"layers": layers, "heads": 2, "feed_forward": 16}
        model = {
            "width": width,
            "dropout": 0.3,
            "encoder": part,
            "decoder": part,
            "tie_embeddings": "all",
        }
        self.network: EncoderDecoder = build(recipe.Model.model_validate(model), Vocabulary(9, 9))
        self.optimizer = build_optimizer(self.network, recipe.Train())
        self.average = MovingAverage(self.network, 0.9) if ema else None
        self.step = 0

    def update(self) -> float:
        self.step += 1
        loss = self.network.loss(SOURCE, LENGTHS, TARGET).total
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.set_step(self.step)
            self.average.move()
        return loss.item()

    def save(self, folder: Path, state: TrainingState = STANDING) -> None:
        save_state(folder, state, self.network, self.optimizer, self.average, "the: recipe\n")

    def load(self, folder: Path) -> TrainingState:
        return load_state(folder, self.network, self.optimizer, self.average)


def same_tensors(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[n], other[n]) for n in one)


def check_equal(ours: Run, theirs: Run) -> None:
    assert same_tensors(
        dict(ours.network.named_parameters()), dict(theirs.network.named_parameters())
    )
    for p, q in zip(ours.network.parameters(), theirs.network.parameters(), strict=True):
        assert same_tensors(ours.optimizer.state[p], theirs.optimizer.state[q])
    if ours.average is not None and theirs.average is not None:
        assert same_tensors(ours.average.weights, theirs.average.weights)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    run = Run()
    for _ in range(3):
        run.update()
    run.save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("ema", [True, False])
def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path: Path, ema: bool) -> None:
    """Dropout included: every random generator stands where it stood."""
    run = Run(ema=ema)
    for _ in range(3):
        run.update()
    run.save(tmp_path)
    losses = [run.update() for _ in range(3)]

    again = Run(seed=99, ema=ema)
    again.update()  # moments of its own, to be replaced
    again.load(tmp_path)
    again.step = 3
    assert [again.update() for _ in range(3)] == losses
    check_equal(again, run)


def test_everything_is_put_back(tmp_path: Path) -> None:
    run = Run()
    run.update()
    run.save(tmp_path)
    again = Run(seed=2)
    again.load(tmp_path)
    check_equal(again, run)
    weight = next(iter(again.network.parameters()))
    assert set(again.optimizer.state[weight]) == {"step", "exp_avg", "exp_avg_sq"}
    assert float(again.optimizer.state[weight]["step"]) == 1


def test_every_random_generator_is_put_back(tmp_path: Path) -> None:
    run = Run()
    random.gauss(0, 1)  # leaves half a pair behind, which is state too
    np.random.standard_normal()
    run.save(tmp_path)

    def draws() -> list[float]:
        return [
            random.random(),
            random.gauss(0, 1),
            float(np.random.random()),
            float(np.random.standard_normal()),
            float(torch.rand(())),
            float(torch.randn(())),
        ]

    expected = draws()
    assert draws() != expected
    run.load(tmp_path)
    assert draws() == expected


def test_the_standing_comes_back(tmp_path: Path) -> None:
    run = Run()
    for state in (STANDING, TrainingState(), TrainingState(best=float("inf"))):
        run.save(tmp_path, state)
        back = run.load(tmp_path)
        assert back == state
        assert isinstance(back.position, Position)
        assert all(isinstance(entry, tuple) for entry in back.kept)


def test_numbers_still_on_the_device_come_back_as_numbers(tmp_path: Path) -> None:
    window = LogWindow()
    window.add(passed(8.5, 2.0, 7.5, 9))
    run = Run()
    run.save(tmp_path, TrainingState(window=window))
    back = run.load(tmp_path).window
    assert isinstance(window.waiting[0], torch.Tensor)  # saving changes nothing
    assert back.waiting == [[8.5, 2.0, 7.5, 9]]
    back.add(passed(1.5, 4.0, 0.5, 3))
    assert back.look() == [Outcome(8.5, 2.0, 9, 7.5), Outcome(1.5, 4.0, 3, 0.5)]
    assert back.look() == []


def test_the_recipe_travels_with_the_state(saved: Path) -> None:
    assert saved_recipe(saved) == "the: recipe\n"


def test_there_is_no_pickle_in_it(saved: Path) -> None:
    from safetensors.torch import load_file

    names = load_file(saved / STATE)
    assert {name.split("/")[0] for name in names} >= {"weights", "optimizer", "average", "random"}
    assert [p.name for p in (saved / "state").iterdir()] == ["training.safetensors"]


# ---------------------------------------------------------------------- the state before it


@pytest.fixture
def saved_twice(tmp_path: Path) -> Path:
    run = Run()
    for step in (1, 2):
        run.update()
        run.save(tmp_path, TrainingState(step=step))
    return tmp_path


def test_the_state_before_the_newest_is_kept(saved_twice: Path) -> None:
    assert recover_state(saved_twice) is None
    assert Run().load(saved_twice).step == 2
    names = [path.name for path in (saved_twice / "state").iterdir()]
    assert sorted(names) == ["training.previous.safetensors", "training.safetensors"]


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_state_gives_way_to_the_one_before_it(saved_twice: Path, damage: str) -> None:
    newest = saved_twice / STATE
    whole = bytearray(newest.read_bytes())
    whole[-1] ^= 0x01
    newest.write_bytes(whole)
    if damage == "missing":
        newest.unlink()
    assert has_state(saved_twice)
    reported = recover_state(saved_twice)
    assert reported is not None
    assert str(newest) in reported
    assert "from the checkpoint before it, of update 1" in reported
    assert "restore" not in reported
    assert Run().load(saved_twice).step == 1
    assert not (saved_twice / PREVIOUS).exists(), "a damaged state would become the previous one"
    assert recover_state(saved_twice) is None


def test_without_any_whole_state_nothing_is_touched(saved_twice: Path) -> None:
    for name in (STATE, PREVIOUS):
        (saved_twice / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged"):
        recover_state(saved_twice)
    assert (saved_twice / PREVIOUS).exists()
    assert not has_state(saved_twice / "elsewhere")


# --------------------------------------------------------------------------- what is refused


def refused(run: Run, folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        run.load(folder)
    text = str(error.value)
    assert "\n" not in text
    assert str(folder / STATE) in text
    return text


@pytest.mark.parametrize(
    "other",
    [{"width": 16}, {"layers": 2}, {"ema": True}],
    ids=["wider", "deeper", "with an average"],
)
def test_a_state_of_another_shape_does_not_fit(tmp_path: Path, other: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"ema": False}
    Run(**plain).save(tmp_path)
    assert "does not fit" in refused(Run(**{**plain, **other}), tmp_path)


def test_a_state_of_more_layers_does_not_fit_either(tmp_path: Path) -> None:
    """Every name of the smaller network is in it; the rest must not be dropped in silence."""
    Run(layers=2).save(tmp_path)
    assert "blocks.1" in refused(Run(layers=1), tmp_path)


def test_nothing_is_stretched_to_fit(saved: Path) -> None:
    from safetensors import safe_open

    run = Run()
    with safe_open(saved / STATE, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = {"standing": {}, "random": {}, "recipe": ""}
    tensors["weights/head.bias"] = torch.zeros(1)
    write_tensors(saved / STATE, tensors, metadata)
    assert "head.bias" in refused(run, saved)


def test_a_state_that_is_missing_or_something_else(tmp_path: Path) -> None:
    assert "missing" in refused(Run(), tmp_path)
    (tmp_path / "state").mkdir()
    write_tensors(tmp_path / STATE, {"a": torch.zeros(2)}, {})
    refused(Run(), tmp_path)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        saved_recipe(tmp_path)


def test_a_damaged_state_is_refused(saved: Path) -> None:
    whole = (saved / STATE).read_bytes()
    header = int.from_bytes(whole[:8], "little")
    generator = random.Random(1)
    run = Run()
    metadata = whole.index(b"numpy") + 40  # a digit of a random generator
    in_tensors = [generator.randrange(8 + header, len(whole)) for _ in range(20)]
    for place in [3, 100, metadata, 8 + header, len(whole) - 1, *in_tensors]:
        damaged = bytearray(whole)
        damaged[place] ^= 0x01
        (saved / STATE).write_bytes(damaged)
        assert "damaged" in refused(run, saved)
    for length in (0, 100, header, len(whole) // 2, len(whole) - 1):
        (saved / STATE).write_bytes(whole[:length])
        assert "truncated" in refused(run, saved)
    (saved / STATE).write_bytes(whole)
    run.load(saved)


def test_where_it_cannot_be_saved_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file") as error:
        Run().save(tmp_path / "file")
    assert "\n" not in str(error.value)
