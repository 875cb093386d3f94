"""Decoding settings: what is no number to decode with is refused, by name."""

from __future__ import annotations

from typing import Any

import pytest

from transduce.decoding.settings import Settings
from transduce.decoding_settings import SETTINGS
from transduce.errors import ModelError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 1e308),
        ("temperature", 1e-320),
        ("temperature", 10**400),
        ("temperature", 0),
        ("top_p", 1e-320),
        ("top_p", 1.1),
        ("patience", 1e300),
        ("patience", 1e-300),
        ("diversity", 1e300),
        ("lm_weight", 1e39),
        ("rerank_weight", -1e39),
        ("rerank_weight", 1e39),
        ("coverage_penalty", 1e39),
        ("chunk_ms", 1e39),
        ("beam", 10**400),
        ("beam", 2.5),
        ("length_penalty", float("nan")),
    ],
)
def test_what_leaves_no_number_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ModelError) as error:
        Settings(**{"sample": name in ("temperature", "top_p"), name: value})
    assert str(error.value).startswith(f"{name} is ")
    assert len(str(error.value)) < 120


SEARCH = {name: setting for name, setting in SETTINGS.items() if setting.search}


def beside(name: str) -> dict[str, Any]:
    """What a value of a setting needs."""
    return {"sample": True} if name in ("temperature", "top_k", "top_p") else {}


@pytest.mark.parametrize("name", [one for one in SEARCH if SEARCH[one].maximum is not None])
def test_the_largest_value_is_allowed(name: str) -> None:
    largest = SEARCH[name].maximum
    assert largest is not None
    assert getattr(Settings(**{name: largest, **beside(name)}), name) == largest
    with pytest.raises(ModelError, match=f"{name} is .*; it must be at most"):
        Settings(**{name: largest + 1, **beside(name)})


@pytest.mark.parametrize("name", [one for one in SEARCH if SEARCH[one].minimum is not None])
def test_the_smallest_value_is_allowed(name: str) -> None:
    smallest = SEARCH[name].minimum
    assert smallest is not None
    assert getattr(Settings(**{name: smallest, **beside(name)}), name) == smallest
    with pytest.raises(ModelError, match=f"{name} is .*; it must be {smallest:,} or more"):
        Settings(**{name: smallest - 1, **beside(name)})


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_the_least_value_is_allowed(name: str) -> None:
    assert getattr(Settings(sample=True, **{name: 1e-6}), name) == 1e-6  # type: ignore[arg-type]
