"""The commands of lessons: the list, a run, a notebook, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Transduce, sentence
from transduce.lessons import all_lessons
from transduce.nn.attention import attention


def test_the_list(transduce: Transduce, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = transduce("lessons")
    assert shown.status == 0
    assert all(lesson.name in shown.out for lesson in all_lessons())
    assert all(lesson.claim in " ".join(shown.out.split()) for lesson in all_lessons())
    assert max(map(len, shown.lines[:-3])) <= 60


def test_run(transduce: Transduce, tmp_path: Path) -> None:
    shown = transduce("lessons", "run", "9", "--output", tmp_path, "--no-open")
    assert shown.status == 0
    assert shown.lines[0] == (
        "9. Back-propagation through time is back-propagation through a deep network"
    )
    assert f"figure: {tmp_path / 'back_propagation_through_time.svg'}" in shown.lines
    assert shown.lines[-1].startswith("The claim held")


def test_a_claim_that_does_not_hold(
    transduce: Transduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "masked_softmax", lambda scores, visible: scores)
    shown = transduce("lessons", "run", "convex-average", "--output", tmp_path, "--no-open")
    assert shown.status == 1
    assert shown.err.startswith("transduce: the claim did not hold here: ")
    assert "Traceback" not in shown.err


def test_an_unknown_lesson(transduce: Transduce) -> None:
    assert sentence(transduce("lessons", "run", "convex_averag")) == (
        "There is no lesson 'convex_averag'; did you mean convex_average?"
    )


def test_a_notebook(transduce: Transduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert transduce("lessons", "notebook", "1").lines == ["convex_average.ipynb"]
    made = json.loads(Path("convex_average.ipynb").read_text("utf-8"))
    assert "".join(made["cells"][0]["source"]).startswith("# 1. Attention is a convex average")
    assert "exists already" in sentence(transduce("lessons", "notebook", "1"))
    assert transduce("lessons", "notebook", "1", "--overwrite").status == 0
