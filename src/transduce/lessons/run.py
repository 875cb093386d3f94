"""Run a lesson from top to bottom, with names of its own."""

from __future__ import annotations

import os
import runpy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.lessons.catalogue import Lesson
from transduce.lessons.present import FULL, OUTPUT, SIZE
from transduce.storage import make_folder


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
