"""The lessons: their files, and what the first cell of each says of it."""

from __future__ import annotations

import difflib
import json
import os
import re
import runpy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transduce.errors import TransduceError
from transduce.lessons.present import FULL, OUTPUT, SIZE
from transduce.storage import make_folder, write_file

HERE = Path(__file__).resolve().parent
# A wheel has the files within the package; a checkout has them in lessons/ at the top.
FOLDERS = (HERE / "files", HERE.parents[2] / "lessons")
FILE_NAME = re.compile(r"(\d\d)_([a-z0-9_]+)\.py")
TITLE = re.compile(r"# (\d+)\. (.+)")
CLAIM = re.compile(r"\*\*Claim\.\*\* (.+?)\n\n", re.DOTALL)
TIME = re.compile(r"\*\*Time\.\*\* (\d+) s; full size (\d+) s\.")


@dataclass(frozen=True)
class Lesson:
    """One claim and its experiment."""

    number: int
    name: str
    title: str
    claim: str
    """One sentence."""
    seconds: int
    """About how long it takes on two cores in its reduced size."""
    full_seconds: int
    path: Path

    @classmethod
    def read(cls, path: Path) -> Lesson:
        """Raises TransduceError if the first cell lacks a title, a claim or a time."""
        named = FILE_NAME.fullmatch(path.name)
        first = next(iter(cells(path.read_text("utf-8"))), None)
        text = first.text + "\n\n" if first is not None and first.kind == "markdown" else ""
        title, claim, time = (pattern.search(text) for pattern in (TITLE, CLAIM, TIME))
        if named is None or title is None or claim is None or time is None:
            raise TransduceError(
                f"{path} is not a lesson: its name should be like 07_interaction_distance.py, and "
                f"its first cell should be markdown with `# 7. Title`, `**Claim.** A sentence.` "
                f"and `**Time.** 2 s; full size 30 s.`, with empty lines between."
            )
        if int(named[1]) != int(title[1]):
            raise TransduceError(f"{path} has the number {title[1]} in its title: make them equal.")
        statement = " ".join(claim[1].split())
        seconds, full = int(time[1]), int(time[2])
        return cls(int(named[1]), named[2], title[2].strip(), statement, seconds, full, path)


def lessons_folder() -> Path:
    """The folder of the lessons' files. Raises TransduceError if this installation has none."""
    for folder in FOLDERS:
        if folder.is_dir():
            return folder
    raise TransduceError(
        "This installation has no lessons: install transduce again from its wheel or its checkout."
    )


def all_lessons() -> list[Lesson]:
    """Every lesson, in the order of their numbers."""
    return [Lesson.read(path) for path in sorted(lessons_folder().glob("[0-9][0-9]_*.py"))]


def find_lesson(name: str) -> Lesson:
    """A lesson by its name or its number; `_` and `-` are alike. Raises TransduceError."""
    lessons = all_lessons()
    wanted = name.strip().lower().removesuffix(".py").replace("-", "_")
    for lesson in lessons:
        number = str(lesson.number)
        if wanted in (lesson.name, lesson.path.stem, number, number.zfill(2)):
            return lesson
    names = [lesson.name for lesson in lessons]
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    near = near or [one for one in names if wanted and wanted in one]
    hint = f"did you mean {' or '.join(near)}?" if near else "`transduce lessons` lists them."
    raise TransduceError(f"There is no lesson {name!r}; {hint}")


# ----------------------------------------------------------------------------------------------
# Percent format, Python files with cells that begin with `# %%`, and Jupyter notebooks.

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


# ----------------------------------------------------------------------------------------------
# Run a lesson from top to bottom, with names of its own.


@dataclass(frozen=True)
class Finished:
    """A lesson that has run, and whose claim held."""

    lesson: Lesson
    figures: tuple[Path, ...]
    seconds: float
    names: dict[str, Any]
    """The variables of the lesson, as it left them."""


def run(lesson: Lesson, output: Path, *, full: bool = False) -> Finished:
    """Run a lesson: print its tables, and write its figures into a folder.

    The random numbers of the process continue afterwards as if nothing had run.

    Args:
        lesson: a lesson, from `find_lesson` or `all_lessons`.
        output: the folder for figures.
        full: the full size rather than the reduced one.

    Raises:
        AssertionError: if the claim does not hold.
    """
    import torch

    make_folder(output)
    before = {path: path.stat().st_mtime_ns for path in output.glob("*.svg")}
    start = time.perf_counter()
    settings = {SIZE: FULL if full else "reduced", OUTPUT: str(output)}
    with _environment(settings), torch.random.fork_rng():
        names = runpy.run_path(str(lesson.path))
    seconds = time.perf_counter() - start
    # The same figure may have been there from an earlier run.
    drawn = [p for p in output.glob("*.svg") if before.get(p) != p.stat().st_mtime_ns]
    return Finished(lesson, tuple(sorted(drawn)), seconds, names)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
