"""A model that no longer changes leaves to its file the matrices that search has packed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import transduce
from tiny_models import SOURCES, tiny
from transduce.errors import CheckpointError
from transduce.runtime.c_library import library
from transduce.runtime.unloaded import Unloaded, WeightFile
from transduce.storage import write_tensors
from transduce.storage.tensor_file import TensorFile
from transduce.tasks.transduce import Transducer

pytestmark = pytest.mark.skipif(library() is None, reason="needs the C library")
WEIGHTS = "model.safetensors"
FEED_FORWARD = "encoder.blocks.0.feed_forward.expand.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny(tie_embeddings="all").save(tmp_path / "model")
    return tmp_path / "model"


def loaded(folder: Path, precision: str) -> Transducer:
    model = transduce.load(folder, precision=precision)
    assert isinstance(model, Transducer)
    return model


def absent(model: Transducer) -> set[str]:
    """The parameters that are not in memory."""
    return {
        name
        for name, parameter in model.network.named_parameters()
        if isinstance(parameter, Unloaded) and parameter.read is not None
    }


def texts(model: Transducer) -> list[str]:
    return [output.text for output in model.run(SOURCES)]


def scores(model: Transducer, targets: list[str]) -> list[float]:
    return [one.log_probability for one in model.score(SOURCES, targets)]


@pytest.mark.parametrize("precision", ["int8", "float32", "bfloat16"])
def test_what_search_has_packed_is_not_in_memory_until_it_is_used(
    folder: Path, precision: str
) -> None:
    plain, model = loaded(folder, precision), loaded(folder, precision).freeze()
    expected = texts(plain)
    assert texts(model) == expected
    assert absent(plain) == set()
    matrices = {name for name, one in model.network.named_parameters() if one.dim() > 1}
    shared = {name for name in matrices if "embedding" in name or "head" in name or "front" in name}
    assert FEED_FORWARD in absent(model)
    assert absent(model) >= matrices - shared
    # What is left is still there: scores are of the network in full precision.
    assert scores(model, expected) == scores(plain, expected)
    assert FEED_FORWARD not in absent(model)
    assert texts(model) == expected
    for (name, one), other in zip(
        model.network.named_parameters(), plain.network.parameters(), strict=True
    ):
        assert torch.equal(one, other), name


def test_weights_that_differ_from_the_file_stay(folder: Path) -> None:
    model = loaded(folder, "int8")
    changed = model.network.get_parameter(FEED_FORWARD)
    with torch.no_grad():
        changed.add_(1.0)
    model.freeze().run(SOURCES)
    assert FEED_FORWARD not in absent(model)
    assert absent(model)
    assert model.network.get_parameter(FEED_FORWARD) is changed


def test_an_int8_export_is_read_as_it_was(folder: Path, tmp_path: Path) -> None:
    from transduce.interop.quantize import export

    export(loaded(folder, "auto"), tmp_path / "int8", "int8")
    plain, model = loaded(tmp_path / "int8", "auto"), loaded(tmp_path / "int8", "auto").freeze()
    expected = texts(plain)
    assert texts(model) == expected
    assert FEED_FORWARD in absent(model)
    assert scores(model, expected) == scores(plain, expected)


def test_another_file_of_its_name_changes_nothing(folder: Path) -> None:
    plain, model = loaded(folder, "int8"), loaded(folder, "int8").freeze()
    expected = texts(model)
    other = folder / "new"
    other.write_bytes(b"\0" * (folder / WEIGHTS).stat().st_size)
    other.replace(folder / WEIGHTS)
    assert absent(model)
    assert scores(model, expected) == scores(plain, expected)


@pytest.mark.parametrize("now", [b"", b"\x05\0\0\0\0\0\0\0[1,2]", b"x" * 40, b"\2\0\0\0\0\0\0\0{}"])
def test_a_file_that_is_no_longer_the_one_is_left_alone(folder: Path, now: bytes) -> None:
    plain, model = loaded(folder, "int8"), loaded(folder, "int8").freeze()
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).write_bytes(now)
    assert texts(model) == texts(plain)
    assert absent(model) == set()


@pytest.mark.parametrize("part", [0, 0.5, 1])
def test_a_file_that_was_written_over_is_refused(folder: Path, part: float) -> None:
    model = loaded(folder, "int8").freeze()
    expected = texts(model)
    (folder / WEIGHTS).write_bytes(b"\0" * int(part * (folder / WEIGHTS).stat().st_size))
    with pytest.raises(CheckpointError, match="written over in place while its model was in use"):
        scores(model, expected)
    assert texts(model) == expected


def test_weights_can_be_trained_after_all(folder: Path) -> None:
    plain, model = loaded(folder, "int8"), loaded(folder, "int8").freeze()
    scores(model, texts(model))  # which reads them in inference mode
    assert FEED_FORWARD not in absent(model)
    for one in (plain, model):
        one.network.requires_grad_(True)
        weight = one.network.get_parameter(FEED_FORWARD)
        (weight * weight).sum().backward()
        assert weight.grad is not None
        assert torch.equal(weight.grad, 2 * weight)
    assert torch.equal(
        *(one.network.get_parameter(FEED_FORWARD) for one in (plain, model))  # type: ignore[arg-type]
    )


def test_what_was_made_within_a_search_is_used_outside(tmp_path: Path) -> None:
    network = torch.nn.Linear(8, 8)
    expected = network.weight[1:]
    write_tensors(tmp_path / WEIGHTS, dict(network.named_parameters()), {})
    with torch.inference_mode():
        WeightFile(network, tmp_path / WEIGHTS).take(network.weight)
    assert isinstance(network.weight, Unloaded)
    assert torch.equal(network.weight[1:], expected)


def test_threads_that_need_a_weight_at_once_all_have_it(tmp_path: Path) -> None:
    network = torch.nn.Linear(256, 256)
    x_BD = torch.randn(2, 256)
    expected = network(x_BD)
    write_tensors(tmp_path / WEIGHTS, dict(network.named_parameters()), {})
    for _ in range(20):
        WeightFile(network, tmp_path / WEIGHTS).take(network.weight)
        assert isinstance(network.weight, Unloaded)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(network, [x_BD] * 8))
        assert all(torch.equal(one, expected) for one in found)


def test_tensors_of_an_open_file(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5), "b": torch.arange(4, dtype=torch.int8), "c": torch.ones(0)}
    tensors["d"] = torch.randn(2, 2).bfloat16()
    write_tensors(tmp_path / WEIGHTS, tensors, {})
    file = TensorFile(tmp_path / WEIGHTS)
    for name in "abd":
        assert torch.equal(file.read(name), tensors[name])
        assert file.read(name).dtype == tensors[name].dtype
    assert "c" not in file
    with pytest.raises(CheckpointError, match="cannot be read"):
        TensorFile(tmp_path / "none")


@pytest.mark.parametrize("copied", [deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_has_its_values(tmp_path: Path, copied: Callable[[Any], Any]) -> None:
    network = torch.nn.Linear(8, 8)
    write_tensors(tmp_path / WEIGHTS, dict(network.named_parameters()), {})
    values = network.weight.detach().clone()
    WeightFile(network, tmp_path / WEIGHTS).take(network.weight)
    found = copied(network)
    assert type(found.weight) is torch.nn.Parameter
    assert torch.equal(found.weight, values)
    with torch.no_grad():
        found.weight.add_(1.0)
    assert torch.equal(network.weight, values)
