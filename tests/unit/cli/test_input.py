"""Groups of sources under way side by side, and their outputs in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from transduce.cli import input as inputs
from transduce.cli.input import read_lines_of, read_requests, run_in_order
from transduce.decoding.output import Output
from transduce.errors import DataError


def requests(count: int, read: list[int]) -> Iterator[dict[str, Any]]:
    for number in range(count):
        read.append(number)
        yield {"number": number}


def test_what_was_typed_is_answered_before_the_next_line_is_read() -> None:
    read: list[int] = []
    outputs = run_in_order(lambda asked: [Output(str(asked), 0.0)], requests(3, read), at_once=1)
    for number in range(3):
        assert "number" in next(outputs).text
        assert read == list(range(number + 1))


def test_two_groups_are_under_way_and_outputs_stay_in_order() -> None:
    both = threading.Barrier(2)  # breaks unless two are there at the same time

    def run(asked: dict[str, Any]) -> list[Output]:
        both.wait(timeout=200)
        return [Output(f"{asked['number']} {part}", 0.0) for part in range(2)]

    outputs = run_in_order(run, requests(6, []), at_once=2)
    expected = [f"{number} {part}" for number in range(6) for part in range(2)]
    assert [output.text for output in outputs] == expected


def test_an_error_of_any_group_is_raised() -> None:
    def run(asked: dict[str, Any]) -> list[Output]:
        return [Output("", 1 / (3 - asked["number"]))]

    outputs = run_in_order(run, requests(6, []), at_once=2)
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
    assert said == f"transduce: {file} is used as text; to read the file: --input {file}"
    (read,) = read_requests(None, file, "", [], [])
    assert read["sources"] == ["a", "b"]
    assert not capsys.readouterr().err


# ------------------------------------------------------------------------------- pairs to score


def written(path: Path, count: int, text: str = "{}") -> Path:
    path.write_text("".join(text.format(n) + "\n" for n in range(count)))
    return path


@pytest.mark.parametrize("columns", [1, 2])
def test_pairs_come_in_groups_and_in_order(tmp_path: Path, columns: int) -> None:
    source = written(tmp_path / "source", 2500, "s{0}\tt{0}" if columns == 2 else "s{0}")
    target = None if columns == 2 else written(tmp_path / "target", 2500, "t{0}")
    groups = list(read_lines_of(source, target, at_once=1000))
    assert [len(sources) for sources, _ in groups] == [1000, 1000, 500]
    assert [text for sources, _ in groups for text in sources] == [f"s{n}" for n in range(2500)]
    assert [text for _, targets in groups for text in targets] == [f"t{n}" for n in range(2500)]


@pytest.mark.parametrize("columns", [1, 2])
def test_pairs_are_read_as_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    source = written(tmp_path / "source", 100_000, "{0}\t{0}" if columns == 2 else "{0}")
    target = None if columns == 2 else written(tmp_path / "target", 100_000)
    decoded: list[int] = []
    decode = inputs._decode

    def noted(lines: list[bytes], first: int, name: str) -> list[str]:
        decoded.append(len(lines))
        return decode(lines, first, name)

    monkeypatch.setattr(inputs, "_count", lambda file: 100_000)
    monkeypatch.setattr(inputs, "_decode", noted)
    groups = read_lines_of(source, target)
    for _ in range(3):
        next(groups)
    assert 3072 <= sum(decoded) / (1 if columns == 2 else 2) < 10_000


def test_files_that_do_not_match_are_reported_before_anything_is_scored(tmp_path: Path) -> None:
    source, target = written(tmp_path / "source", 3000), written(tmp_path / "target", 2999)
    for one, other, said in ((source, target, "3000.*2999"), (target, source, "2999.*3000")):
        with pytest.raises(DataError, match=f"has {said}"):
            next(read_lines_of(one, other))


@pytest.mark.parametrize(("of_source", "of_target"), [(3000, 2000), (2000, 2005)])
def test_pipes_that_do_not_match_are_reported_at_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_source: int, of_target: int
) -> None:
    source = written(tmp_path / "source", of_source)
    target = written(tmp_path / "target", of_target)
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    groups = read_lines_of(source, target)
    assert len(next(groups)[0]) == 1024
    with pytest.raises(DataError, match=f"has {of_source} lines.* has {of_target};"):
        list(groups)
