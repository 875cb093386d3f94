"""A recipe of a few words written backwards, and a search for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from transduce.recipe import parse_recipe
from transduce.tuning.space import named
from transduce.tuning.study import Study, begin_study
from tuning_study import RECIPE, WORDS, Make


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """The recipe, with overrides."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, words in (("train", WORDS[:9]), ("valid", WORDS[9:])):
        lines = "".join(f"{word}\t{word[::-1]}\n" for word in words)
        (tmp_path / f"{name}.tsv").write_text(lines, "utf-8")
    return lambda *overrides: parse_recipe(RECIPE, "backwards", tmp_path, overrides)


@pytest.fixture
def study(make: Make, tmp_path: Path) -> Study:
    recipe = make()
    return begin_study(tmp_path / "tune", recipe, named(recipe, ["train.lr=1e-4..1"], []), {})
