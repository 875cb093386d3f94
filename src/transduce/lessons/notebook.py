"""Percent format, Python files with cells that begin with `# %%`, and Jupyter notebooks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transduce.storage import make_folder, write_file

BORDER = re.compile(r"^# %%(?P<rest>.*)$")


@dataclass(frozen=True)
class Cell:
    """The text of a cell; that of markdown without its comment signs."""

    kind: Literal["code", "markdown"]
    text: str


def cells(text: str) -> list[Cell]:
    """The cells of a file in percent format; what stands before the first border is left out."""
    parts: list[tuple[Literal["code", "markdown"], list[str]]] = []
    for line in text.splitlines():
        if border := BORDER.match(line):
            parts.append(("markdown" if "[markdown]" in border["rest"] else "code", []))
        elif parts:
            parts[-1][1].append(line)
    found = [Cell(kind, _text(kind, lines)) for kind, lines in parts]
    return [cell for cell in found if cell.text]


def _text(kind: str, lines: list[str]) -> str:
    if kind == "markdown":
        lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
    return "\n".join(lines).strip("\n")


def to_notebook(text: str) -> dict[str, Any]:
    """A file in percent format as a Jupyter notebook (nbformat 4.5), without outputs."""
    return {
        "cells": [_notebook_cell(cell, number) for number, cell in enumerate(cells(text))],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _notebook_cell(cell: Cell, number: int) -> dict[str, Any]:
    common = {
        "cell_type": cell.kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": cell.text.splitlines(keepends=True),
    }
    if cell.kind == "markdown":
        return common
    return {**common, "execution_count": None, "outputs": []}


def write_notebook(source: Path, output: Path) -> None:
    """Write a file in percent format as a notebook."""
    made = json.dumps(to_notebook(source.read_text("utf-8")), indent=1, ensure_ascii=False)
    make_folder(output.parent)
    write_file(output, lambda part: part.write_text(made + "\n", "utf-8"))
