"""A model that no longer changes leaves to its file the matrices that search has packed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import transduce
from tiny_models import SOURCES, tiny
from transduce.tasks.transduce import Transducer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux drops mapped pages")
WEIGHTS = "model.safetensors"
FEED_FORWARD = "encoder.blocks.0.feed_forward.expand.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny(tie_embeddings="all").save(tmp_path / "model")
    return tmp_path / "model"


def in_file(model: Transducer, folder: Path) -> set[str]:
    """The parameters whose values are the bytes of the file."""
    ranges = []
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        if line.endswith(str(folder.resolve() / WEIGHTS)):
            low, high = line.split()[0].split("-")
            ranges.append(range(int(low, 16), int(high, 16)))
    return {
        name
        for name, parameter in model.network.named_parameters()
        if any(parameter.data_ptr() in one for one in ranges)
    }


def loaded(folder: Path, precision: str) -> Transducer:
    model = transduce.load(folder, precision=precision)
    assert isinstance(model, Transducer)
    return model


@pytest.mark.parametrize("precision", ["int8", "float32", "bfloat16"])
def test_what_search_has_packed_is_left_to_the_file(folder: Path, precision: str) -> None:
    plain, model = loaded(folder, precision), loaded(folder, precision).freeze()
    expected = [output.text for output in plain.run(SOURCES)]
    assert [output.text for output in model.run(SOURCES)] == expected
    assert in_file(plain, folder) == set()
    left = in_file(model, folder)
    matrices = {name for name, one in model.network.named_parameters() if one.dim() > 1}
    shared = {name for name in matrices if "embedding" in name or "head" in name or "front" in name}
    assert FEED_FORWARD in left
    assert left == (matrices if precision == "bfloat16" else matrices - shared)
    # What is left is still there: scores are of the network in full precision.
    scores = [one.log_probability for one in model.score(SOURCES, expected)]
    assert scores == [one.log_probability for one in plain.score(SOURCES, expected)]
    assert [output.text for output in model.run(SOURCES)] == expected


def test_weights_that_differ_from_the_file_stay(folder: Path) -> None:
    model = loaded(folder, "int8")
    changed = model.network.get_parameter(FEED_FORWARD)
    with torch.no_grad():
        changed.add_(1.0)
    values = changed.detach().clone()
    model.freeze().run(SOURCES)
    assert torch.equal(changed, values)
    assert FEED_FORWARD not in in_file(model, folder)


def test_a_file_that_is_replaced_changes_nothing(folder: Path) -> None:
    model = loaded(folder, "int8").freeze()
    expected = [output.text for output in model.run(SOURCES)]
    before = [one.log_probability for one in model.score(SOURCES, expected)]
    bytes_of_file = (folder / WEIGHTS).read_bytes()
    with torch.no_grad():  # a write to a weight is not one to the file
        weight = model.network.get_parameter(FEED_FORWARD)
        weight.mul_(2.0)
        assert (folder / WEIGHTS).read_bytes() == bytes_of_file
        weight.div_(2.0)
    other = folder / "new"
    other.write_bytes(b"\0" * len(bytes_of_file))
    other.replace(folder / WEIGHTS)
    assert [one.log_probability for one in model.score(SOURCES, expected)] == before
