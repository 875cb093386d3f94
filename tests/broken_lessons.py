"""A lesson whose subject was broken on purpose: its own assertion must fail."""

from __future__ import annotations

from pathlib import Path

import pytest

import transduce.lessons
from transduce.lessons import find_lesson, run


def fails(name: str, folder: Path, match: str) -> None:
    """Run a lesson; its assertion with this message must fail. No figure is saved: that takes
    longer than most of the experiments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transduce.lessons, "show", lambda figure, name: None)
        with pytest.raises(AssertionError, match=match):
            run(find_lesson(name), folder)
