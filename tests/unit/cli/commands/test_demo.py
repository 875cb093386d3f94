"""The command demo: each demo has its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from transduce.cli import demos
from transduce.cli.commands.demo import Demo, demo


def test_each_demo_has_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, Path, int]] = []
    for name in ("listen", "pronounce"):
        monkeypatch.setattr(
            demos, name, lambda folder, seed, name=name: called.append((name, folder, seed))
        )
    demo(Demo.SPEECH, None, 1)
    demo(Demo.WORDS, None, 2)
    demo(Demo.SPEECH, Path("mine"), 3)
    assert called == [
        ("listen", Path("runs/demo-speech"), 1),
        ("pronounce", Path("runs/demo"), 2),
        ("listen", Path("mine"), 3),
    ]
