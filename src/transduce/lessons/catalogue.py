"""The lessons: their files, and what the first cell of each says of it."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from transduce.errors import TransduceError
from transduce.lessons.notebook import cells

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
