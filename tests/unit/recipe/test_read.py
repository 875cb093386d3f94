"""Reading recipes: every mistake is told with its place and its mending; writing loses nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce import recipe
from transduce.errors import RecipeError
from transduce.recipe import (
    Recipe,
    RecurrentEncoder,
    TransformerDecoder,
    TransformerEncoder,
    dump_recipe,
    load_recipe,
    parse_recipe,
    sections,
    shipped,
)
from transduce.recipe.keys import dotted_keys
from transduce.recipe.presets import PRESETS

DATA = """data:
  train: {source: a, target: b}
  valid: {source: a, target: b}
"""
TOOLS = Path(__file__).parents[3] / "tools"
# Words of pydantic and of Python that no reader of a recipe should have to know.
JARGON = re.compile(
    r"Value error|union_tag|[Ii]nput should|dictionary|instance of|Extra inputs|None"
)


def read(text: str = DATA, *overrides: str) -> Recipe:
    return parse_recipe(text, "my.yaml", Path("/data"), overrides)


def complaint(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        read(text, *overrides)
    said = str(caught.value)
    assert not JARGON.search(said), said
    return said


# ------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trian: {lr: 1}\n", "my.yaml:4: unknown key trian; did you mean train?"),
        ("train:\n  lrr: 3\n", "my.yaml:5: unknown key train.lrr; did you mean train.lr?"),
        (
            "model:\n  encoder:\n    layer: 3\n",
            "my.yaml:6: unknown key model.encoder.layer; did you mean model.encoder.layers?",
        ),
        (
            "  tokens:\n    both: {levl: word}\n",
            "my.yaml:5: unknown key data.tokens.both.levl; did",
        ),
        (
            "train: {average: {cuont: 3}}\n",
            "train.average.cuont; did you mean train.average.count?",
        ),
        # The right key at the wrong place
        (
            "model:\n  layers: 3\n",
            "my.yaml:5: unknown key model.layers; did you mean model.encoder.layers or "
            "model.decoder.layers?",
        ),
        ("dropout: 0.3\n", "my.yaml:4: unknown key dropout; did you mean model.dropout?"),
        # As another toolkit calls it
        ("train: {learning_rate: 3}\n", "unknown key train.learning_rate; did you mean train.lr?"),
        (
            "train: {batch_size: 3}\n",
            "unknown key train.batch_size; did you mean train.batch_tokens?",
        ),
        ("quux: 1\n", "my.yaml:4: unknown key quux; `transduce recipes --keys` lists them all"),
        ("on: 1\n", "my.yaml:4: unknown key on"),
        ("? [a, b]\n: 1\n", "my.yaml:4: a key must be a plain word"),
        # A name that is pydantic's tag inside
        ("model: {transformer: 3}\n", "my.yaml:4: unknown key model.transformer"),
        ("train: 5\n", "my.yaml:4: train is 5, but it is a section with keys: steps, epochs"),
        ("train: [1]\n", "my.yaml:4: train is [1], but it is a section with keys: steps, epochs"),
        ("train:\n", "my.yaml:4: train is empty; give it keys, or leave it out"),
        ("model: {encoder: recurrent}\n", "did you mean model.encoder.kind: recurrent?"),
        (
            "model: {encoder: {kind: transfomer}}\n",
            "my.yaml:4: model.encoder.kind is transfomer; it must be transformer or conformer or "
            "recurrent or convolutional or pooled; did you mean transformer?",
        ),
        ("model: {decoder: {kind: }}\n", "model.decoder.kind is null; it must be transformer or"),
        (
            "model:\n  encoder:\n    kind: recurrent\n    heads: 3\n",
            "my.yaml:7: model.encoder.heads is a key of kind transformer, but model.encoder is of "
            "kind recurrent; leave it out, or set model.encoder.kind: transformer",
        ),
        ("model: {decoder: {cell: gru}}\n", "or set model.decoder.kind: recurrent"),
        (
            "model: {preset: transformer-tny}\n",
            "model.preset is transformer-tny, which is not a preset; did you mean ",
        ),
        (
            "model: {preset: zzz}\n",
            "my.yaml:4: model.preset is zzz, which is not a preset; there are transformer-tiny,",
        ),
        (
            "metrics:\n- bleu\n- chfr\n",
            "my.yaml:6: item 2 of metrics is chfr; it must be bleu, chrf,",
        ),
        ("name: a\nname: b\n", "my.yaml:5: the key name occurs twice; keep one of them"),
        ("train:\n  lr: 1\n  lr: 2\n", "my.yaml:6: the key train.lr occurs twice"),
        (
            "train:\n\tlr: 1\n",
            "my.yaml:5: this is not valid YAML: there is a tab here; indent with",
        ),
        ("train: {lr: 1\n", "my.yaml:5: this is not valid YAML: expected ',' or '}'"),
        ("name: 'a\n", "this is not valid YAML: found unexpected end of stream"),
        ('name: "\x00"\n', "my.yaml:4: this is not valid YAML: special characters"),
        ("name: !!python/name:os.system x\n", "my.yaml:4: this is not valid YAML: could not"),
        ("---\nname: a\n", "my.yaml:4: this is not valid YAML: found another document"),
        ("train: &a\n  b: *a\n", "my.yaml:4: the values are nested endlessly"),
    ],
)
def test_one_mistake_is_one_line(text: str, said: str) -> None:
    found = complaint(DATA + text)
    assert said in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "my.yaml is empty; start from"),
        ("# nothing\n", "my.yaml is empty; start from"),
        ("- a\n- b\n", "my.yaml holds a list; a recipe has keys"),
        ("5\n", "my.yaml holds a single value; a recipe has keys"),
        ("name: x\n", "my.yaml: the key data is missing: corpora and tokenization"),
        (
            "data:\n  train: {name: copy, split: train}\n",
            "my.yaml:1: the key data.valid is missing",
        ),
        ("data:\n", "my.yaml:1: data is empty"),
        ("[" * 2000, "my.yaml: the values are nested endlessly"),
    ],
)
def test_a_file_that_is_no_recipe(text: str, said: str) -> None:
    assert said in complaint(text)


@pytest.mark.parametrize(
    ("corpus", "said"),
    [
        (
            "a.txt",
            ["data.train is a.txt, but it is a section with keys: source, target, tag"],
        ),
        ("", ["data.train is empty"]),
        ("{}", ["data.train.source is missing", "data.train.target is missing"]),
        ("{source: a}", ["the key data.train.target is missing"]),
        # The missing keys are there, misspelt: that is told once.
        (
            "{src: a, tgt: b}",
            ["did you mean data.train.source?", "did you mean data.train.target?"],
        ),
        ("{file: a.tsv, sorce: 1}", ["did you mean data.train.source?"]),
        (
            "{name: copy, split: trian}",
            ["data.train.split is trian; it must be train, valid, test, test-2017, test-coco"],
        ),
        (
            "{name: copy, split: train, source: a}",
            ["data.train.source does not go with data.train.name and data.train.split; a"],
        ),
    ],
)
def test_a_corpus_that_is_none(corpus: str, said: list[str]) -> None:
    text = f"data:\n  valid: {{name: copy, split: valid}}\n  train: {corpus}\n"
    lines = complaint(text).splitlines()
    assert len(lines) == len(said)
    for line, part in zip(lines, said, strict=True):
        assert line.startswith("my.yaml:3: ")
        assert part in line


def test_all_mistakes_are_told_in_the_order_of_the_file() -> None:
    text = (
        "nmae: x\ntrain: {lr: -1, stps: 3}\nmodel:\n  preset: foo\n  tie_embeddings: both\n"
        "name: a\nname: b\n"
    )
    lines = complaint(DATA + text, "validation.beam=0").splitlines()
    places = [line.split(": ")[0] for line in lines]
    assert places == [f"my.yaml:{n}" for n in (4, 5, 5, 7, 8, 10)] + ["on the command line"]


def test_a_long_value_is_cut() -> None:
    assert len(complaint(DATA, f"train.steps={'x' * 500}")) < 200


# ------------------------------------------------------------------------------------ overrides


def test_numbers_as_people_write_them() -> None:
    train = read(DATA, "train.lr=3e-4", "train.steps=1e4", "train.warmup=1_000").train
    assert (train.lr, train.steps, train.warmup) == (3e-4, 10_000, 1000)
    assert read(DATA + "train: {lr: 3e-4, clip_norm: 1E+1}\n").train.lr == 3e-4


def test_text_that_yaml_would_take_for_something_else() -> None:
    assert read(DATA, "name=2024-01-01").name == "2024-01-01"
    assert read(DATA, "name=1:30").name == "1:30"
    assert read(DATA, "name={").name == "{"
    assert read(DATA, "name=a=b").name == "a=b"


def test_values_of_every_shape() -> None:
    recipe = read(
        DATA + "train: {minutes: 3, warmup: 7}\n",
        "train.minutes=null",
        "metrics=[bleu, wer]",
        "data.train={name: copy, split: train}",
        "train.average={of: best, count: 3}",
        "train.betas=[0.8, 0.9]",
        " seed = 4",
    )
    assert recipe.train.minutes is None
    assert recipe.train.warmup == 7
    assert recipe.metrics == ["bleu", "wer"]
    assert recipe.data.train.limit is None
    assert recipe.train.average is not None
    assert recipe.train.average.of == "best"
    assert recipe.train.betas == (0.8, 0.9)
    assert recipe.seed == 4


@pytest.mark.parametrize("override", ["train.lr", "=3", "train..lr=3", ".lr=3", "3e-4"])
def test_an_override_needs_key_and_value(override: str) -> None:
    assert complaint(DATA, override) == (
        f"the override {override!r} is not of the form train.lr=3e-4"
    )


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.l=3", "unknown key train.l; did you mean train.lr?"),
        ("trian.lr=3", "unknown key trian; did you mean train?"),
        ("train=5", "train is 5, but it is a section with keys"),
        ("train={lr: 3, stps: 4}", "unknown key train.stps; did you mean train.steps?"),
        ("metrics.0=bleu", "it must be a list of"),
        (
            "model.preset=gru-atention",
            "which is not a preset; did you mean gru-attention",
        ),
    ],
)
def test_a_wrong_override(override: str, said: str) -> None:
    found = complaint(DATA, override)
    assert found.startswith("on the command line: ")
    assert said in found


# -------------------------------------------------------------------------------------- presets


def test_keys_go_over_the_preset() -> None:
    text = DATA + "model:\n  preset: transformer-tiny\n  encoder: {layers: 5}\n"
    model = read(text, "model.decoder.layers=1").model
    assert isinstance(model.encoder, TransformerEncoder)
    assert (model.width, model.encoder.layers, model.decoder.layers) == (128, 5, 1)
    assert model.encoder.heads == 4
    assert model.preset is None


def test_another_kind_leaves_nothing_of_the_preset() -> None:
    text = DATA + "model: {preset: transformer-tiny}\n"
    model = read(text, "model.encoder.kind=recurrent", "model.encoder.cell=gru").model
    assert model.encoder == RecurrentEncoder(cell="gru")
    assert isinstance(model.decoder, TransformerDecoder)
    assert "model.encoder.kind: recurrent" in complaint(text, "model.encoder.cell=gru")
    said = complaint(text, "model.encoder.kind=recurrent", "model.encoder.heads=4")
    assert "model.encoder is of kind recurrent" in said


@pytest.mark.parametrize("order", [1, -1])
def test_a_preset_on_the_command_line_goes_over_the_file(order: int) -> None:
    expand_preset = dump_recipe(read(DATA, "model.preset=transformer-tiny", "model.dropout=0.3"))
    overrides = ["model.preset=gru-attention", "model.width=64", "model.encoder.layers=2"]
    model = read(expand_preset, *overrides[::order]).model
    assert isinstance(model.encoder, RecurrentEncoder)
    assert (model.width, model.encoder.layers, model.encoder.cell) == (64, 2, "gru")
    assert model.dropout == 0.3


# ---------------------------------------------------------------------------------------- paths


def test_paths_start_at_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    (tmp_path / "my.yaml").write_text(DATA)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for given_, found in {
        "null": tmp_path,
        "corpora": tmp_path / "corpora",
        "../x": tmp_path.parent / "x",
        "/data": Path("/data"),
        "~/data": Path("/home/someone/data"),
    }.items():
        recipe = load_recipe("../my.yaml", [f"data.folder={given_ if given_ != 'null' else ''}"])
        assert recipe.data.folder == str(found)
    assert "no such user" in complaint(DATA, "data.folder=~nobody-of-this-name/x")


def test_paths_of_shipped_recipes_start_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("pronounce", ["data.folder=corpora"])
    assert recipe.data.folder == str(tmp_path / "corpora")


def test_the_name_of_a_shipped_recipe_is_that_recipe_whatever_lies_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    own = "name: mine\n" + DATA
    (tmp_path / "copy").write_text(own, encoding="utf-8")
    (tmp_path / "pronounce").mkdir()
    (tmp_path / "pronounce" / "recipe.yaml").write_text(own, encoding="utf-8")
    assert load_recipe("cmudict").name == "cmudict"
    assert not capsys.readouterr().err
    for name in ("copy", "pronounce"):
        assert load_recipe(name).name == name
        said = f"{name} is the recipe that comes with transduce; ./{name} is what lies here"
        assert capsys.readouterr().err == f"transduce: {said}\n"
        for path in (f"./{name}", Path(name), tmp_path / name):
            assert load_recipe(path).name == "mine"
        assert not capsys.readouterr().err
    assert load_recipe("./pronounce").data.folder == str(tmp_path / "pronounce")


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_is_valid_and_says_what_it_is(name: str) -> None:
    assert load_recipe(name).name == name
    first = shipped()[name].splitlines()[0]
    assert first.startswith("# ")
    assert len(first) <= 100


@pytest.mark.parametrize("written", [False, True])
def test_with_and_without_libyaml_a_recipe_is_the_same(
    monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """Its values, and where its mistakes are: PyYAML is not always built with libyaml."""
    texts = [text.replace("?", "") for text in list(shipped().values())[::8]]
    if written:
        texts = [dump_recipe(parse_recipe(text, "my.yaml", Path())) for text in texts]
    texts += [f"{text}layers:\n  - &a {{x: 1}}\n  - *a\n" for text in texts]

    def read(text: str) -> Recipe | str:
        try:
            return parse_recipe(text, "my.yaml", Path())
        except RecipeError as error:
            return str(error)

    found = [read(text) for text in texts]
    assert sum(isinstance(one, str) for one in found) == len(texts) // 2
    monkeypatch.setattr("yaml.__with_libyaml__", False)
    assert [read(text) for text in texts] == found


def test_a_file_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my-recipe.yaml").write_text(DATA)
    for given_, said in {
        "pronouce": "no shipped recipe of that name; did you mean pronounce?",
        "my-recipe": "did you mean my-recipe.yaml?",
        "qqqqq": "; `transduce recipes` lists the shipped ones",
    }.items():
        with pytest.raises(RecipeError, match=re.escape(said)):
            load_recipe(given_)
    with pytest.raises(RecipeError, match="is a folder without a run in it"):
        load_recipe(tmp_path)
    Path("latin.yaml").write_bytes("name: é\n".encode("latin-1"))
    with pytest.raises(RecipeError, match=r"latin\.yaml is not UTF-8"):
        load_recipe("latin.yaml")
    Path("windows.yaml").write_bytes(b"\xef\xbb\xbf" + DATA.replace("\n", "\r\n").encode())
    assert load_recipe("windows.yaml").name == "model"


# ----------------------------------------------------------------------------------- round trip


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_survives_the_disk(preset: str) -> None:
    recipe = read(DATA, f"model.preset={preset}")
    assert read(dump_recipe(recipe)) == recipe


def test_a_preset_is_the_same_by_name_and_spelt_out() -> None:
    # So that a run can be resumed with the file that it was started with.
    recipe = read(DATA, "model.preset=gru-attention")
    assert recipe.model_dump() == read(dump_recipe(recipe)).model_dump()


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).filter(
    lambda text: bool(text.strip(" .")) and "/" not in text and "\\" not in text
)


@settings(max_examples=40, deadline=None)
@given(
    name=NAMES
    | st.sampled_from(["1e5", "3", "yes", "null", "2024-01-01", "1:30", "0x1F", "~", "="]),
    lr=st.floats(1e-12, 1e3),
    folder=st.none() | st.sampled_from(["/x", "y z", "ü"]),
    files=st.lists(NAMES, min_size=1, max_size=3),
    minutes=st.none() | st.floats(1e-3, 1e9),
)
def test_writing_and_reading_is_nothing(
    name: str, lr: float, folder: str | None, files: list[str], minutes: float | None
) -> None:
    values = read().model_dump()
    values["name"] = name
    values["train"] |= {"lr": lr, "minutes": minutes}
    values["data"] |= {"folder": folder, "train": {"source": files, "target": files}}
    once = read(dump_recipe(Recipe.model_validate(values)))
    assert (once.name, once.train.lr, once.train.minutes) == (name, lr, minutes)
    assert read(dump_recipe(once)) == once


# ----------------------------------------------------------------------------------------- keys


def test_every_key_is_explained() -> None:
    for section in sections():
        assert section.about
        for key in section.keys:
            assert key.about, f"{section.places}.{key.name} has no description"
            assert key.takes
            assert key.required or key.default or "a section" in key.takes


def test_no_part_is_reported_twice() -> None:
    known = [section.keys for section in sections()]
    assert len(known) == len(set(known))
    assert {"model.encoder.heads", "data.test.split", "train.average.of", "name"} <= set(
        dotted_keys()
    )


def test_the_listed_defaults_are_the_real_ones() -> None:
    written: dict[str, object] = read().model_dump(mode="json")
    for section in sections():
        for place in section.places:
            if place not in ("", "data", "train", "validation", "decode"):
                continue
            part = written[place] if place else written
            assert isinstance(part, dict)
            for key in section.keys:
                if key.default and key.name != "folder":
                    assert key.default == recipe.keys.show(part[key.name])


def test_the_page_of_keys_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, TOOLS / "make_recipes.py", "--check"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert made.returncode == 0, made.stderr


def test_the_example_of_the_page_is_valid() -> None:
    page = (TOOLS.parent / "docs" / "reference" / "recipes.md").read_text("utf-8")
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert examples
    for example in examples:
        read(example)


@pytest.mark.parametrize("name", ["mine.tsv", "mine.csv.gz", "mine.trn", "mine.jsonl"])
def test_data_in_place_of_a_recipe(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a\tb\n" * 100_000, encoding="utf-8")  # also a large one
    with pytest.raises(RecipeError, match=r"is data, not a recipe; `transduce train") as found:
        load_recipe(tmp_path / name)
    assert f"transduce new {tmp_path / name} > my.yaml" in str(found.value)
    (tmp_path / "my.yaml").write_text("data:\t{}\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"there is a tab|not valid YAML|data"):
        load_recipe(tmp_path / "my.yaml")
