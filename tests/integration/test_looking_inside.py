"""The page on looking inside: its code, from top to bottom, and what it says of a real model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "looking-inside.md"


@pytest.mark.slow
def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) == 10
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    shown = capsys.readouterr().out
    assert "a b c d d c b a (2, 5, 5)" in shown
    assert "decoder.blocks.1.cross_attention         attention  (2, 'target', 'source')" in shown
    assert names["rolled"].source.shape == (5, 5)
    assert "Content-Security-Policy" in (tmp_path / "look.html").read_text("utf-8")

    # The model reverses: what it has learnt shows in attribution and alignment alike.
    why = names["why"].source[:4, :4]
    assert why[0].argmax() == 3
    assert why[3].argmax() == 0
    found, gold = names["found"], names["gold"]
    assert names["alignment_error_rate"](found.links, gold) < 0.3
    assert names["by_gold"].best.error_rate <= names["alignment_error_rate"](found.links, gold)
