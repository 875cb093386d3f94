"""The pages of lessons: each cell of a lesson, run, with what it prints and the figures it draws.

    python tools/website/lessons.py NAME FOLDER [--full]

runs one lesson in this process and writes its page and figures into FOLDER. Each lesson has a
process of its own, so that none sees what another one left.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transduce.lessons import Lesson


def known_lessons() -> list[Lesson]:
    """Every lesson of this checkout; none where it has none."""
    try:
        from transduce.lessons import all_lessons
    except ImportError:
        return []
    return all_lessons()


def in_own_process(name: str, folder: Path, *, full: bool) -> None:
    """Write a lesson's page. Raises RuntimeError with the last line that it said, if it failed."""
    command = [sys.executable, str(Path(__file__)), name, str(folder)]
    done = subprocess.run(
        [*command, "--full"] if full else command, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:]
        raise RuntimeError(f"The lesson {name} failed: {' '.join(last)}")


def write_page(name: str, folder: Path, *, full: bool) -> None:
    """Run a lesson in this process; write NAME.md and its figures into the folder."""
    from transduce.lessons import cells, find_lesson
    from transduce.lessons.present import FULL, OUTPUT, SIZE

    lesson = find_lesson(name)
    figures = folder / "figures"
    os.environ |= {SIZE: FULL if full else "reduced", OUTPUT: str(figures)}
    module = types.ModuleType("lesson")
    module.__file__ = str(lesson.path)
    sys.modules["lesson"] = module
    parts = []
    for cell in cells(lesson.path.read_text("utf-8")):
        if cell.kind == "markdown":
            parts.append(cell.text)
            continue
        before = set(figures.glob("*"))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(cell.text, str(lesson.path), "exec"), vars(module))
        parts.append(f"```python\n{cell.text}\n```")
        if said := printed.getvalue().rstrip():
            parts.append(f"``` {{.text .printed}}\n{said}\n```")
        for path in sorted(set(figures.glob("*")) - before):
            if path.suffix == ".html":
                parts.append(embedded(f"figures/{path.name}", f"{lesson.title}: the model, live"))
            else:
                parts.append(f"![{lesson.title}](figures/{path.name}){{.drawn}}")
    parts.append(_footer(lesson, full=full))
    (folder / f"{lesson.name}.md").write_text("\n\n".join(parts) + "\n", "utf-8")


def embedded(address: str, title: str) -> str:
    """A page with a model inside, in a page of the site."""
    return (
        f'<iframe class="live" src="{address}" title="{title}" loading="lazy"></iframe>\n\n'
        f"[Open it alone]({address})"
    )


def _footer(lesson: Lesson, *, full: bool) -> str:
    size = "its full size" if full else "a reduced size"
    return (
        f"---\n\nThis page was run in {size}. The same on your machine: "
        f"`transduce lessons run {lesson.name}`; in its full size: add `--full`; as a notebook: "
        f"`transduce lessons notebook {lesson.name}`."
    )


if __name__ == "__main__":
    write_page(sys.argv[1], Path(sys.argv[2]), full="--full" in sys.argv)
