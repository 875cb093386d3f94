"""The lectures' claims as experiments: finds, runs and converts the files of lessons/.

A lesson is a Python file in percent format, which opens as a notebook. It imports from here what
every lesson needs: `size`, `table`, `panels`, `show` and, to train a small network, `fit`.
"""

from __future__ import annotations

from transduce.lessons.catalogue import (
    Finished,
    Lesson,
    all_lessons,
    cells,
    find_lesson,
    run,
    to_notebook,
    write_notebook,
)
from transduce.lessons.present import COLORS, fit, live, panels, show, size, table

__all__ = [
    "COLORS",
    "Finished",
    "Lesson",
    "all_lessons",
    "cells",
    "find_lesson",
    "fit",
    "live",
    "panels",
    "run",
    "show",
    "size",
    "table",
    "to_notebook",
    "write_notebook",
]
