"""`make mutants` breaks files that are there, and asks tests that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants import PACKAGE, ROOT, TESTS, sample


@pytest.mark.parametrize("file", TESTS)
def test_files_and_their_tests_are_there(file: str) -> None:
    assert (ROOT / PACKAGE / file).is_file()
    for test in TESTS[file]:
        path, _, name = test.partition("::")
        place = Path(__file__).parents[1] / path
        assert place.is_file(), f"{path} was moved: its mutants would all survive"
        assert not name or f"def {name}(" in place.read_text("utf-8")


def test_a_sample_is_the_same_each_time_and_of_every_file() -> None:
    drawn = sample(60, 1, [])
    assert drawn == sample(60, 1, [])
    assert {mutant.file for mutant in drawn} == set(TESTS)
    for mutant in drawn:
        text = (ROOT / PACKAGE / mutant.file).read_bytes()
        assert mutant.applied(text) != text
