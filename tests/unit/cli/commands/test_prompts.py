"""The command prompts: a table, a page, mistakes."""

from __future__ import annotations

from pathlib import Path

from command_line import Transduce, sentence


def test_prompts_of_a_file(
    transduce: Transduce, speaker: Path, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompts").write_text("tea\n\nuncle\n")
    page = tmp_path / "new" / "page.html"
    ended = transduce("prompts", speaker, tmp_path / "prompts", "--length", 3, "--output", page)
    assert (ended.status, ended.err) == (0, "")
    assert "(nothing)" in ended.out
    assert f"The page is {page}" in ended.out.replace("\n", "")
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    page.write_text("mine")
    again = ("prompts", speaker, tmp_path / "prompts", "--length", 3, "--output", page)
    assert f"{page} exists already and would be replaced" in sentence(transduce(*again))
    assert page.read_text("utf-8") == "mine"
    assert transduce(*again, "--overwrite").status == 0
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    said = sentence(transduce("prompts", folder, tmp_path / "prompts"))
    assert "prompts need a language model" in said
    (tmp_path / "empty").write_text("")
    assert "there is no prompt" in sentence(transduce("prompts", speaker, tmp_path / "empty"))
    strange = transduce("prompts", speaker, tmp_path / "prompts", "--top-k", 3)
    assert "set sample as well" in sentence(strange)
