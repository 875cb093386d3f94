"""The command recipes: all listed, one printed, every key told."""

from __future__ import annotations

import pytest

from command_line import Transduce
from transduce import recipe


def test_recipes_lists_and_prints(transduce: Transduce) -> None:
    listed = transduce("recipes").out
    assert all(name in listed for name in recipe.shipped())
    assert transduce("recipes", "pronounce").out == recipe.shipped()["pronounce"]


@pytest.mark.parametrize("width", ["60", "80", "200"])
def test_keys_wrap(transduce: Transduce, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    shown = transduce("recipes", "--keys").lines
    assert max(map(len, shown)) <= min(int(width), 100)
    assert not any(line != line.rstrip() for line in shown)
    assert "data.train, data.valid, data.test" in " ".join(shown)
