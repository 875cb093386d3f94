"""Every lesson runs in its reduced size and draws; what is broken on purpose fails its claim."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from transduce.lessons import Lesson, all_lessons, cells, run

LESSONS = all_lessons()
SLOW = 2  # seconds


def parameter(lesson: Lesson) -> object:
    marks = [pytest.mark.slow] if lesson.seconds > SLOW else []
    return pytest.param(lesson, id=lesson.name, marks=marks)


@pytest.mark.parametrize("lesson", [parameter(lesson) for lesson in LESSONS])
def test_the_claim_holds(
    lesson: Lesson, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = run(lesson, tmp_path)
    assert [path.stem for path in finished.figures][:1] == [lesson.name]
    for figure in finished.figures:
        drawn = figure.read_text("utf-8")
        assert "<svg" in drawn
        assert drawn.count("<path") > 20, "an empty figure"
    assert "----" in capsys.readouterr().out, "a lesson prints a table"


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_a_lesson_says_and_asserts_its_claim(lesson: Lesson) -> None:
    text = lesson.path.read_text("utf-8")
    assert "\nassert " in text or "\n    assert " in text
    markdown = [cell.text for cell in cells(text) if cell.kind == "markdown"]
    assert any("$" in cell for cell in markdown), "the formula"
    parts = ["What to see", "What would prove it wrong", "Where it is only half true", "To try"]
    said = [re.search(rf"^\*\*{part}\.\*\* (.+)", "\n".join(markdown), re.M) for part in parts]
    assert all(said), dict(zip(parts, said, strict=True))
    assert lesson.claim.endswith(".")
    assert lesson.full_seconds <= 120


def test_numbers_count_up() -> None:
    numbers = [lesson.number for lesson in LESSONS]
    assert numbers == sorted(set(numbers))
    assert len({lesson.name for lesson in LESSONS}) == len(LESSONS)


def test_the_page_lists_them() -> None:
    script = Path(__file__).parents[3] / "tools" / "make_lessons.py"
    page = runpy.run_path(str(script))
    text = (script.parents[1] / "docs" / "lessons" / "README.md").read_text("utf-8")
    assert page["page"](text) == text, "run python tools/make_lessons.py"


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[3] / "docs" / "lessons" / "README.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    exec(block, {})
    assert [path.name for path in Path("figures").iterdir()] == ["convex_average.svg"]
