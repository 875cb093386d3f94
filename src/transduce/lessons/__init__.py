"""The lectures' claims as experiments: finds, runs and converts the files of lessons/.

A lesson is a Python file in percent format, which opens as a notebook. It imports from here what
every lesson needs: `size`, `table`, `panels`, `show` and, to train a small network, `fit`.
"""

from __future__ import annotations

from transduce.lessons.catalogue import Lesson, all_lessons, find_lesson
from transduce.lessons.fit import fit
from transduce.lessons.notebook import cells, to_notebook, write_notebook
from transduce.lessons.present import COLORS, panels, show, size, table
from transduce.lessons.run import Finished, run

__all__ = [
    "COLORS",
    "Finished",
    "Lesson",
    "all_lessons",
    "cells",
    "find_lesson",
    "fit",
    "panels",
    "run",
    "show",
    "size",
    "table",
    "to_notebook",
    "write_notebook",
]
