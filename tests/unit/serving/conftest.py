from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs httpx")

FIXTURES = Path(__file__).parents[2] / "fixtures" / "models"


@pytest.fixture
def fixture_models() -> dict[str, str]:
    """Trained models of tasks with text as input."""
    return {name: str(FIXTURES / name) for name in ("tag", "classify", "language_model")}
