"""What nobody means well: each ends in one sentence, soon, and prints no escape sequence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from command_line import Transduce, sentence
from fuzz_world import RECIPES
from tiny_models import tiny
from transduce.checksums import SUMS
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError, RecipeError, TokensError
from transduce.inspection.model_card import write_card
from transduce.recipe import parse_recipe
from transduce.recipe.read import MAX_BYTES
from transduce.tasks.transduce import load

DATA = "data:\n  train: {file: a.tsv}\n  valid: {file: a.tsv}\n"
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{one}: &{one} [{', '.join([f'*{other}'] * 9)}]\n"
    for other, one in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    tiny().save(folder)
    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe that fits, and its corpus."""
    (tmp_path / "a.tsv").write_text("tea\tcup\nuncle\tiroh\n", "utf-8")
    (tmp_path / "r.yaml").write_text(RECIPES["tsv"], "utf-8")
    return tmp_path / "r.yaml"


# -------------------------------------------------------------------------------------- recipes


def test_aliases_that_stand_for_billions(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="it has more than 10,000 values after expanding aliases"):
        parse_recipe(LAUGHS + DATA, "r", tmp_path)
    with pytest.raises(RecipeError, match="after expanding aliases"):
        parse_recipe(DATA, "r", tmp_path, ["model={" + LAUGHS.replace("\n", ", ")[:-2] + "}"])
    shared = "data:\n  train: &c {file: a.tsv}\n  valid: *c\n"
    assert parse_recipe(shared, "r", tmp_path) == parse_recipe(DATA, "r", tmp_path)


def test_a_downloaded_recipe_of_aliases(tmp_path: Path) -> None:
    tiny().save(tmp_path)
    (tmp_path / "recipe.yaml").write_text(LAUGHS, "utf-8")
    with pytest.raises(
        ModelError, match=r"cannot be used: recipe\.yaml: it has more than 10,000 values"
    ):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x: " + "[" * 100 + "]" * 100, "nested too deeply"),
        ("x: " + "[" * 100_000, "nested endlessly"),
        ("x: &a [*a]", "nested endlessly"),
        ("name: a\nname: b\n", "the key name occurs twice"),
        ("seed: " + "9" * 5000, "seed is '999"),
        ("seed: 99999999999999999999", "seed is 1e+20, which does not fit in 64 bits"),
        ("seed: !!timestamp 20", "seed is '20'; it must be a whole number"),
        ("train: {steps: 1e99}", "train.steps is 1e+99, which does not fit in 64 bits"),
        ('name: "a\\ud800"', "name contains NUL or a lone surrogate"),
        ('"a\\ud800": 1', "a key with NUL or a lone surrogate"),
        ("x: " + "a" * MAX_BYTES, "is larger than 256 KB"),
    ],
)
def test_recipes_that_cannot_be(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RecipeError) as found:
        parse_recipe(f"{DATA}{text}\n", "r", tmp_path)
    assert said in str(found.value)
    assert len(str(found.value)) < 1000


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ('data.folder="a\\0b"', "data.folder contains NUL"),
        ("data.train={of: [{of: [{file: a.tsv}]}]}", "has a list of corpora inside another"),
        ("data.train=[[{file: a.tsv}]]", "data.train has a list of corpora inside another"),
        ("train.device=meta", "the device meta cannot be used here; try auto"),
        (f"seed={'9' * 5000}", "seed is '999"),
        ("train.steps=1e99", "train.steps is 1e+99, which does not fit in 64 bits"),
        ("model.encoder.layers=100000", "parameters"),
        ("model.width=100000000", "GB of memory, and only"),
        (
            "audio={mel_bands: 1001}",
            "audio.mel_bands is 1001; it must be a whole number of at least",
        ),
    ],
)
def test_overrides_that_cannot_be(
    transduce: Transduce, recipe: Path, override: str, said: str
) -> None:
    assert said in sentence(transduce("check", recipe, override))
    given = ("train", recipe, override, "--output", recipe.parent / "run")
    assert said in sentence(transduce(*given))


def test_a_file_without_end(transduce: Transduce) -> None:
    assert "the line has more than 64 MB" in sentence(transduce("check", "/dev/zero"))


# ------------------------------------------------------------------------------------------ data


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"source": ' + "9" * 5000 + ', "target": "a"}', "this is not valid JSON"),
        ("[" * 100_000, "this is not valid JSON"),
        ('{"a\\ud800\\u001b[2J": "b"}', "there are: a\\ud800\\x1b[2J"),
    ],
)
def test_lines_of_json(transduce: Transduce, recipe: Path, line: str, said: str) -> None:
    (recipe.parent / "a.jsonl").write_text(line + "\n", "utf-8")
    given = ("train", recipe, "data.train.file=a.jsonl", "--output", recipe.parent / "run")
    assert said in sentence(transduce(*given))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[" * 100_000, "in.jsonl is not valid JSON: brackets in brackets without end"),
        ('{"source": ' + "9" * 5000 + "}", "in.jsonl:1: not valid JSON"),
    ],
)
def test_lines_of_json_to_run(
    transduce: Transduce, model: Path, tmp_path: Path, line: str, said: str
) -> None:
    (tmp_path / "in.jsonl").write_text(line + "\n", "utf-8")
    ended = transduce("run", model, "--input", tmp_path / "in.jsonl")
    assert said in sentence(ended)


def test_two_columns_of_one_name(transduce: Transduce, recipe: Path) -> None:
    columns = [pyarrow.array(["a"])] * 3
    table = pyarrow.Table.from_arrays(columns, ["source", "source", "target"])
    pyarrow.parquet.write_table(table, recipe.parent / "a.parquet")
    given = ("train", recipe, "data.train.file=a.parquet", "--output", recipe.parent / "run")
    assert "there are several columns source" in sentence(transduce(*given))


# ---------------------------------------------------------------------------------------- models


@pytest.mark.parametrize(
    "metrics",
    [[1], {"training": 5}, {"test": None}, {"test": {"metrics": {"bleu": 3}}}, "[" * 9999],
)
def test_a_strange_metrics_file_loses_no_card(tmp_path: Path, metrics: object) -> None:
    model = tiny()
    text = metrics if isinstance(metrics, str) else json.dumps(metrics)
    (tmp_path / "metrics.json").write_text(text, "utf-8")
    write_card(model, tmp_path)
    assert "Not measured yet" in (tmp_path / "README.md").read_text("utf-8")


def test_a_tokens_file_with_a_hostile_expression(tmp_path: Path) -> None:
    parts = json.loads(tiny().source_tokens.to_json())
    expression = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}
    parts["normalizer"] = {"type": "Sequence", "normalizers": [expression]}
    (tmp_path / "tokens.json").write_text(json.dumps(parts), "utf-8")
    with pytest.raises(TokensError, match=r"expression '\(a\+\)\+\$', which transduce does not"):
        Tokens.load(tmp_path / "tokens.json")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("layers: 2", "layers: 1500", "model.encoder.layers is 1500; the maximum is 1000"),
        ("layers: 2", "layers: 20000000", "the weights do not match the recipe"),
        ("width: 16", "width: 100000000", "the weights do not match the recipe"),
    ],
)
def test_a_downloaded_recipe_of_a_giant(
    transduce: Transduce, tmp_path: Path, old: str, new: str, said: str
) -> None:
    tiny().save(tmp_path)
    text = (tmp_path / "recipe.yaml").read_text("utf-8")
    assert old in text
    (tmp_path / "recipe.yaml").write_text(text.replace(old, new), "utf-8")
    (tmp_path / SUMS).unlink()  # whoever makes such a folder makes no sums that give it away
    assert said in sentence(transduce("run", tmp_path, "tea"))


# --------------------------------------------------------------------------------------- console


def test_long_sources_have_a_sentence(transduce: Transduce, model: Path) -> None:
    ended = transduce("run", model, "--beam", 1, stdin=b"tea\n" + b"e" * 1_000_000 + b"\n")
    assert ended.status == 0
    assert (
        "source 2: the source has 1,000,000 letters; this model was trained on at most" in ended.err
    )
    assert len(ended.lines) == 2


def test_escape_sequences_in_errors(transduce: Transduce) -> None:
    ended = transduce("run", "\x1b]0;owned\x07\x1b[2J")
    assert sentence(ended).startswith("there is no folder \\x1b]0;owned\\x07\\x1b[2J")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["recipes"], ["--help"], ["--version"]])
def test_standard_output_on_a_full_disk(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "transduce", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.stderr == "transduce: standard output cannot be written: No space left on device\n"
    assert ended.returncode == 2


# -------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize(
    ("option", "value"),
    [("--beam", 10**9), ("--nbest", 10**6), ("--min-length", 10**9), ("--max-length", 10**9)],
)
def test_no_search_without_end(transduce: Transduce, model: Path, option: str, value: int) -> None:
    said = sentence(transduce("run", model, "tea", option, value))
    assert re.search(
        rf"{option[2:].replace('-', '_')} is {value}; it must be at most 10+,000", said
    )


@pytest.mark.parametrize("option", ["--prefix", "--include", "--exclude"])
def test_a_constraint_of_thousands_of_letters(
    transduce: Transduce, model: Path, option: str
) -> None:
    said = sentence(transduce("run", model, "tea", option, "e" * 1001))
    assert re.search(r"has 1,001 tokens; the maximum is 1,000", said)


def test_coverage_while_it_trains(transduce: Transduce, recipe: Path) -> None:
    """Of a network in training each look makes another copy: the one searched is watched."""
    ended = transduce(
        "train", recipe, "decode.coverage_penalty=2", "--output", recipe.parent / "run"
    )
    assert ended.status == 0, ended.err
