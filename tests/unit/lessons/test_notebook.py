"""Percent format to cells and to a notebook."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from transduce.lessons import all_lessons, cells, to_notebook, write_notebook
from transduce.lessons.catalogue import Cell

TEXT = """\
# not in any cell

# %% [markdown]
# # Title
#
# A line, and #hash.

# %%
x = 1  # a comment

# %% a name
# only a comment
"""


def test_cells() -> None:
    assert cells(TEXT) == [
        Cell("markdown", "# Title\n\nA line, and #hash."),
        Cell("code", "x = 1  # a comment"),
        Cell("code", "# only a comment"),
    ]


def test_a_notebook_runs_as_the_file_does(tmp_path: Path) -> None:
    source, output = tmp_path / "a.py", tmp_path / "new" / "a.ipynb"
    source.write_text(TEXT)
    write_notebook(source, output)
    made = json.loads(output.read_text("utf-8"))
    assert [cell["cell_type"] for cell in made["cells"]] == ["markdown", "code", "code"]
    names: dict[str, int] = {}
    for cell in made["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["x"] == 1


def test_every_lesson_is_a_valid_notebook() -> None:
    nbformat = pytest.importorskip("nbformat")
    for lesson in all_lessons():
        made = to_notebook(lesson.path.read_text("utf-8"))
        nbformat.validate(nbformat.from_dict(made))
        for cell in made["cells"]:
            if cell["cell_type"] == "code":
                compile("".join(cell["source"]), lesson.name, "exec")
