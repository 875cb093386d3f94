"""The commands compare and ablate: tables, files, mistakes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from command_line import Transduce, sentence
from transduce import load


@pytest.fixture
def other(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "other"))


def test_compare_says_that_a_copy_is_no_better(
    transduce: Transduce, folder: Path, other: Path, tmp_path: Path
) -> None:
    page, numbers = tmp_path / "new" / "compare.html", tmp_path / "compare.json"
    typed = ("compare", folder, other, "--split", "valid", "--output")
    ended = transduce(*typed, page)
    assert ended.status == 0, ended.err
    assert re.search(r"^3 items of .*valid\.tsv", ended.out)
    assert re.search(
        r"^PER +other .* \+0\.00 \[\+0\.00, \+0\.00\] +1\.000$", ended.out, re.MULTILINE
    )
    assert "<script" not in page.read_text()
    moved = f"data.folder={folder}"
    assert transduce(*typed, numbers, "--resamples", "10", moved).status == 0
    values = json.loads(numbers.read_text())
    assert values["resamples"] == 10
    assert [model["name"] for model in values["models"]] == ["tiny", "other"]
    assert "exists already" in sentence(transduce(*typed, page))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([], "compare needs two models or more"),
        (["/no/model"], "there is no folder /no/model"),
        (["{folder}", "--output", "x.txt"], "x.txt: the name must end in .html, .json"),
        (["{folder}", "--split", "tset"], "there is no split tset"),
        (["{folder}", "--split", "valid", "--metrics", "blue"], "did you mean bleu?"),
        (["{folder}", "model.width=3", "--split", "valid"], "model.width cannot be changed"),
    ],
)
def test_compare_mistakes(transduce: Transduce, folder: Path, typed: list[str], said: str) -> None:
    given = [one.replace("{folder}", str(folder)) for one in typed]
    assert said in sentence(transduce("compare", folder, *given))


def test_ablate_and_prune(transduce: Transduce, folder: Path, tmp_path: Path) -> None:
    ended = transduce("ablate", folder, "--output", tmp_path / "heads.json")
    assert ended.status == 0, ended.err
    assert re.search(r"^loss of the whole model: \d\.\d{4} \(3 items\)", ended.out)
    values = json.loads((tmp_path / "heads.json").read_text())
    total = len(values["heads"])
    assert f"of {total}" in ended.out
    keep = len({head["part"] for head in values["heads"]})
    ended = transduce("ablate", folder, "--prune", keep, "--output", tmp_path / "small")
    assert ended.status == 0, ended.err
    assert "times as fast" in ended.out
    assert transduce("run", tmp_path / "small", "abc").status == 0
    assert (tmp_path / "small" / "ablation.html").is_file()
    reported = sentence(transduce("ablate", folder, "--prune", 0, "--output", tmp_path / "none"))
    assert f"the model has {total} heads" in reported


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--metric", "blue"], "there is no metric blue; did you mean bleu?"),
        (["--prune", "3"], "--prune saves a model: name its folder with --output"),
        (["--output", "x.doc"], "the name must end in .html"),
    ],
)
def test_ablate_mistakes(transduce: Transduce, folder: Path, typed: list[str], said: str) -> None:
    assert said in sentence(transduce("ablate", folder, *typed))


def test_ablate_measures_what_training_would_have_taken(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    """Pairs as long as data.max_length, and no longer ones."""
    longest = load(folder).recipe.data.max_length
    lines = [("a" * n, "A " * m) for n in (longest, longest + 1) for m in (longest, longest + 1)]
    for name, side in (("in.txt", 0), ("out.txt", 1)):
        (tmp_path / name).write_text("".join(f"{line[side]}\n" for line in lines))
    given = ("--source", tmp_path / "in.txt", "--target", tmp_path / "out.txt")
    ended = transduce("ablate", folder, *given)
    assert ended.status == 0, ended.err
    assert "(1 items)" in ended.out or "(1 item)" in ended.out


def test_ablate_reads_nothing_that_a_downloaded_recipe_names(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    theirs = shutil.copytree(folder, tmp_path / "theirs")
    (tmp_path / "private.tsv").write_text("ab\tA B\n")
    recipe = (theirs / "recipe.yaml").read_text()
    assert "file: valid.tsv" in recipe
    changed = recipe.replace("file: valid.tsv", f"file: {tmp_path / 'private.tsv'}")
    (theirs / "recipe.yaml").write_text(changed)
    ended = transduce("ablate", theirs)
    assert ended.status == 2
    assert "outside of the model folder" in ended.err
