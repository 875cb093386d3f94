"""The command demo: each demo has its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from transduce.cli.commands.demo import Demo, demo
from transduce.cli.demo import listen as of_speech
from transduce.cli.demo import pronounce as of_words


def test_each_demo_has_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, Path, int]] = []
    for module, name in ((of_speech, "listen"), (of_words, "pronounce")):
        monkeypatch.setattr(
            module, name, lambda folder, seed, name=name: called.append((name, folder, seed))
        )
    demo(Demo.SPEECH, None, 1)
    demo(Demo.WORDS, None, 2)
    demo(Demo.SPEECH, Path("mine"), 3)
    assert called == [
        ("listen", Path("runs/demo-speech"), 1),
        ("pronounce", Path("runs/demo"), 2),
        ("listen", Path("mine"), 3),
    ]
