"""Sizes, tables and figures of lessons."""

from __future__ import annotations

from pathlib import Path

import pytest

from transduce.lessons import panels, show, size, table


def test_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRANSDUCE_LESSONS_SIZE", raising=False)
    assert size(1, 2) == 1
    monkeypatch.setenv("TRANSDUCE_LESSONS_SIZE", "full")
    assert size(1, 2) == 2


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a", 12345, 0.123456, 1e-9), ("long name", 1, 10.0, 0.0)]
    table(["name", "count", "share", "error"], rows)
    assert capsys.readouterr().out.splitlines() == [
        "name        count   share     error",
        "---------  ------  ------  --------",
        "a          12,345  0.1235  1.00e-09",
        "long name       1      10         0",
    ]


def test_a_figure_goes_to_the_output_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRANSDUCE_LESSONS_OUTPUT", str(tmp_path / "new"))
    figure, axes = panels(2, 2)
    assert len(axes) == 4
    axes[0].plot([1, 2])
    path = show(figure, "drawn")
    assert path == tmp_path / "new" / "drawn.svg"
    first = path.read_bytes()
    assert b"<svg" in first
    assert b"<dc:date>" not in first, "the same lesson draws the same file"
