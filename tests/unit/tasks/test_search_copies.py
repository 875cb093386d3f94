"""Copies of a network for search: shared by models that were copied, never mixed up."""

from __future__ import annotations

from copy import copy, deepcopy
from pathlib import Path

import pytest
import torch

from transduce.errors import ModelError
from transduce.tasks.search_copies import SearchCopies
from transduce.tasks.transduce import Transducer, load

FOLDER = Path(__file__).parents[2] / "fixtures" / "models" / "translate"


@pytest.fixture
def model() -> Transducer:
    made = load(FOLDER, precision="int8")
    assert isinstance(made, Transducer)
    return made


def test_a_copied_model_shares_them_until_its_precision_changes(model: Transducer) -> None:
    twin = copy(model)
    assert twin._search_network is model._search_network
    before = model._search_network
    twin.compute_in("bfloat16")
    assert twin._search_network is not before
    assert model._search_network is before


def test_another_network_has_a_copy_of_its_own(model: Transducer) -> None:
    other = deepcopy(model.network)
    packed = model.copies.packed(model.network)
    assert model.copies.packed(other) is not packed


def test_weights_that_changed_are_packed_again(model: Transducer) -> None:
    before = model._search_network
    model._check_packed()
    assert model._search_network is before
    with torch.no_grad():
        next(model.network.parameters()).mul_(2)
    model._check_packed()
    assert model._search_network is not before


def test_an_unknown_precision_changes_nothing(model: Transducer) -> None:
    before = model.copies
    with pytest.raises(ModelError, match="precision is int4; it must be one of auto"):
        model.compute_in("int4")
    assert model.copies is before
    with pytest.raises(ModelError, match="precision is fp8"):
        SearchCopies("fp8")
