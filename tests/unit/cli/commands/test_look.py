"""The command look: a page, a figure, two models, mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Transduce, sentence


def test_a_page_in_the_working_directory(
    transduce: Transduce, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = transduce("look", folder, "cab")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("Wrote look.html (")
    assert "open it in a browser" in ended.out
    page = tmp_path / "look.html"
    assert "Content-Security-Policy" in page.read_text("utf-8")
    page.write_text("mine")
    assert "look.html exists already" in sentence(transduce("look", folder, "cab"))
    assert page.read_text("utf-8") == "mine"
    again = transduce("look", folder, "cab", "--against", folder, "--beam", 1, "--overwrite")
    assert again.status == 0
    assert page.read_text("utf-8").count('"how":"greedy search"') == 2


def test_a_figure_and_a_target(transduce: Transduce, folder: Path, tmp_path: Path) -> None:
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        figure = tmp_path / f"look{suffix}"
        ended = transduce("look", folder, "cab", "--output", figure)
        assert (ended.status, ended.err) == (0, "")
        assert figure.read_bytes().startswith(start)
    page = tmp_path / "new" / "folder" / "given.html"
    assert transduce("look", folder, "cab", "--target", "B", "--output", page).status == 0
    assert '"how":"target given"' in page.read_text("utf-8")


def test_mistakes_are_reported_in_a_sentence(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    page = tmp_path / "look.html"
    wrong = transduce("look", folder, "cab", "--output", tmp_path / "look.gif")
    assert "look.gif cannot be written; its name must end in .html" in sentence(wrong)
    assert "the input is empty" in sentence(transduce("look", folder, " ", "--output", page))
    long = sentence(transduce("look", folder, "tea " * 999, "--output", page))
    assert "it was truncated; give a shorter input" in long
    assert "x.wav" in sentence(transduce("look", tmp_path / "x.wav", "cab", "--output", page))
    assert not page.exists()
