"""The Python of docs/guides/live-speech.md runs."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from fixtures.make_models import MODELS, in_noise
from transduce.recipe import parse_recipe

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "live-speech.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "asterisk-live").symlink_to(MODELS / "live")
    monkeypatch.chdir(tmp_path)
    samples = in_noise("abcd ab", random.Random(4))
    # The page feeds 16,000 samples a second; each of these stands for four.
    spoken = samples.repeat(4)
    names = {"blocks": [spoken[:9000], spoken[9000:]], "next_block": lambda session: samples}
    for block in blocks("python")[:2]:
        exec(block, names)
    assert capsys.readouterr().out.splitlines()[-1] == "final abcd ab"


def test_its_recipe_is_one() -> None:
    data = "data: {train: {file: a.tsv, audio: path}, valid: {file: b.tsv, audio: path}}\n"
    for block in blocks("yaml"):
        parse_recipe(data + block, "page", Path())
