"""Corpora whose files lie beside this checkout; elsewhere tests of them skip.

TRANSDUCE_TEST_CORPORA names another folder that holds them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
CORPORA = Path(os.environ.get("TRANSDUCE_TEST_CORPORA") or BESIDE)


def corpus(name: str) -> Path:
    """The folder of a corpus; skips the test, with the reason, where it is not there."""
    folder = CORPORA / name
    if not folder.is_dir():
        pytest.skip(f"needs the corpus {name} in {CORPORA}, which is not there")
    return folder
