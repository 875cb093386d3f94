"""Groups of sources under way side by side, and their outputs in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from transduce.decoding.output import Output
from transduce.inputs import in_turn, read_requests


def requests(count: int, read: list[int]) -> Iterator[dict[str, Any]]:
    for number in range(count):
        read.append(number)
        yield {"number": number}


def test_what_was_typed_is_answered_before_the_next_line_is_read() -> None:
    read: list[int] = []
    outputs = in_turn(lambda asked: [Output(str(asked), 0.0)], requests(3, read), at_once=1)
    for number in range(3):
        assert "number" in next(outputs).text
        assert read == list(range(number + 1))


def test_two_groups_are_under_way_and_outputs_stay_in_order() -> None:
    both = threading.Barrier(2)  # breaks unless two are there at the same time

    def run(asked: dict[str, Any]) -> list[Output]:
        both.wait(timeout=30)
        return [Output(f"{asked['number']} {part}", 0.0) for part in range(2)]

    outputs = in_turn(run, requests(6, []), at_once=2)
    expected = [f"{number} {part}" for number in range(6) for part in range(2)]
    assert [output.text for output in outputs] == expected


def test_an_error_of_any_group_is_raised() -> None:
    def run(asked: dict[str, Any]) -> list[Output]:
        return [Output("", 1 / (3 - asked["number"]))]

    outputs = in_turn(run, requests(6, []), at_once=2)
    with pytest.raises(ZeroDivisionError):
        list(outputs)


def test_the_name_of_a_file_is_text_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("a\nb\n")
    (typed,) = read_requests([str(file), "no such file"], None, "", [], [])
    assert typed["sources"] == [str(file), "no such file"]
    (said,) = capsys.readouterr().err.splitlines()
    assert said == f"transduce: {file} is taken as text; to read the file: --input {file}"
    (read,) = read_requests(None, file, "", [], [])
    assert read["sources"] == ["a", "b"]
    assert not capsys.readouterr().err
