"""Write the list of docs/lessons/README.md: python tools/make_lessons.py [--check]"""

from __future__ import annotations

import sys
from pathlib import Path

from transduce.lessons import all_lessons

PAGE = Path(__file__).resolve().parents[1] / "docs" / "lessons" / "README.md"
MARK = "<!-- made by make_lessons.py -->\n"


def page(text: str) -> str:
    """The page with its list replaced."""
    before, _, after = text.split(MARK)
    lines = ["| | lesson | claim | seconds: reduced, full size |\n", "| --- | --- | --- | --- |\n"]
    for lesson in all_lessons():
        link = f"[{lesson.name}](../../lessons/{lesson.path.name})"
        times = f"{lesson.seconds}, {lesson.full_seconds}"
        lines.append(f"| {lesson.number} | {link} | {lesson.claim} | {times} |\n")
    return MARK.join([before, "".join(lines), after])


if __name__ == "__main__":
    old = PAGE.read_text("utf-8")
    new = page(old)
    if "--check" in sys.argv:
        sys.exit(
            old != new and "docs/lessons/README.md is out of date: run python tools/make_lessons.py"
        )
    PAGE.write_text(new, "utf-8")
