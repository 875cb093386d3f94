"""Corpora of real sound, where they lie beside this checkout; elsewhere tests of them skip."""

from __future__ import annotations

from pathlib import Path

import pytest

CORPORA = Path(__file__).resolve().parents[2] / "shared" / "data"


def corpus(name: str) -> Path:
    """The folder of a corpus; skips the test, with the reason, where it is not there."""
    folder = CORPORA / name
    if not folder.is_dir():
        pytest.skip(f"needs the corpus {name} in {CORPORA}, which is not there")
    return folder
