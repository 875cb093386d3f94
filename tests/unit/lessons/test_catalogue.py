"""Lessons are found by number or name; a file that is none says what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from transduce.errors import TransduceError
from transduce.lessons import Lesson, all_lessons, catalogue, find_lesson

GOOD = """# %% [markdown]
# # 7. How far
#
# **Claim.** Over two
# lines.
#
# **Time.** 2 s; full size 30 s.
"""


def test_what_the_first_cell_says(tmp_path: Path) -> None:
    path = tmp_path / "07_how_far.py"
    path.write_text(GOOD)
    assert Lesson.read(path) == Lesson(7, "how_far", "How far", "Over two lines.", 2, 30, path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("how_far.py", GOOD),
        ("07_how_far.py", GOOD.replace("**Claim.**", "Claim:")),
        ("07_how_far.py", GOOD.replace("**Time.** 2 s", "**Time.** soon")),
        ("07_how_far.py", GOOD.replace("[markdown]", "")),
        ("07_how_far.py", "print(1)\n"),
    ],
)
def test_a_file_that_is_no_lesson(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TransduceError, match="is not a lesson: its name should be like"):
        Lesson.read(path)


def test_a_number_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "08_how_far.py"
    path.write_text(GOOD)
    with pytest.raises(TransduceError, match="has the number 7 in its title"):
        Lesson.read(path)


@pytest.mark.parametrize("name", ["2", "02", "scaled_scores", "Scaled-Scores", "02_scaled_scores"])
def test_found_by_name_and_number(name: str) -> None:
    assert find_lesson(name).number == 2


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("scaled_scors", "did you mean scaled_scores or six_scores?"),
        ("rotation", "did you mean shift_is_rotation?"),
        ("99", "`transduce lessons` lists them."),
        ("", "`transduce lessons` lists them."),
    ],
)
def test_unknown_names(name: str, hint: str) -> None:
    with pytest.raises(TransduceError) as error:
        find_lesson(name)
    assert str(error.value).endswith(hint)


def test_an_installation_without_lessons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(catalogue, "FOLDERS", (tmp_path / "none",))
    with pytest.raises(TransduceError, match="no lessons: install transduce again"):
        all_lessons()
