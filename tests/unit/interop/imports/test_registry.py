"""What every import has in common."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tiny_models import tiny
from transduce.errors import ModelError
from transduce.interop.imports import registry
from transduce.tasks.model import Model


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_refused(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fake:
        NAME = "a toolkit"

        def recognises(self, source: Path) -> bool:
            return True

        def read(self, source: Path) -> Model:
            model = tiny()
            next(iter(model.network.parameters())).data.view(-1)[3] = value
            return model

    monkeypatch.setattr(registry, "find_format", lambda _: Fake())
    (tmp_path / "given").mkdir()
    with pytest.raises(ModelError, match="has NaN or infinite weights"):
        registry.import_model(tmp_path / "given", tmp_path / "model")
    assert not (tmp_path / "model").exists()
