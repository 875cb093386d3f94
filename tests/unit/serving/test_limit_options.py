"""Each limit has an option of `transduce serve` and a row of the documentation."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("starlette", reason="needs the extra serve")

from transduce.cli.commands.options import expanded
from transduce.cli.commands.serve import LimitSettings
from transduce.serving.errors import TooLarge
from transduce.serving.limits import Limits, options, shown

DOCS = Path(__file__).parents[3] / "docs" / "guides" / "serving.md"


def test_the_table_of_the_docs_is_that_of_the_declaration() -> None:
    rows = [f"| `{one.flag}` | {one.help} | {shown(one.default)} |" for one in options()]
    text = DOCS.read_text("utf-8")
    found = re.findall(r"^\| `--(?:max|min|live)-.*$", text, re.MULTILINE)
    assert found == rows, "\n".join(["put this into docs/guides/serving.md:", *rows])


def test_every_limit_is_set_by_its_option() -> None:
    given: list[Limits] = []

    def command(name: str, limits: LimitSettings) -> None:
        assert name == "x"
        given.append(Limits(**limits))

    app = typer.Typer()
    app.command()(expanded(command))
    runner = CliRunner()
    for one in options():
        value = type(one.default)(one.default + 3)
        done = runner.invoke(app, [one.flag, str(value), "x"])
        assert done.exit_code == 0, done.output
        assert given.pop() == dataclasses.replace(Limits(), **{one.name: value})
        below = runner.invoke(app, [one.flag, str(one.minimum - 1), "x"])
        assert below.exit_code == 2
    assert runner.invoke(app, ["x"]).exit_code == 0
    assert given == [Limits()]


def test_a_value_at_the_limit_is_allowed_and_one_above_is_not() -> None:
    limits = Limits(texts=5, audio_seconds=1.5)
    limits.check("texts", 5, "there are 5 texts")
    with pytest.raises(TooLarge, match="there are 6 texts; the maximum is 5"):
        limits.check("texts", 6, "there are 6 texts")
    limits.check("audio_seconds", 1.5, "")
    with pytest.raises(TooLarge, match=r"the maximum is 1\.5"):
        limits.check("audio_seconds", 1.6, "it has 1.6 s")
    with pytest.raises(TooLarge, match="the maximum is 20,000"):
        limits.check("characters", 20_001, "")
