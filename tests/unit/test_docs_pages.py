"""The pages of docs/: links, navigation, commands and keys that exist, the API reference."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from transduce.cli.main import commands as of_command_line
from transduce.evaluation.metrics import HIGHER_IS_BETTER
from transduce.recipe import parse_recipe
from transduce.recipe.keys import dotted_keys
from transduce.recipe.presets import PRESETS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
api, built, links, navigation = (
    importlib.import_module(f"website.{name}") for name in ("api", "built", "links", "navigation")
)
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*DOCS, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
OWN = Path(__file__)
PAGE_NAME = re.compile(r"(?<![\w./])docs/[\w/-]+\.md\b")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECTIONS = ("data", "audio", "model", "train", "validation", "decode")
# Kinds of blocks: run by a test of the page, read here, or the configuration of another program.
KINDS = {
    "toml",
    "",
    "python",
    "yaml",
    "sh",
    "bash",
    "json",
    "dockerfile",
    "ini",
    "nginx",
    "text",
    "js",
}


def named(pages: list[Path]) -> Any:
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.stem)


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text("utf-8"))


# ---------------------------------------------------------------------------------------- links


def test_no_link_is_dead() -> None:
    assert links.dead_links(PAGES) == []


def test_every_page_that_the_code_names_exists() -> None:
    """In help, error messages and docstrings of the package, in scripts and in tests."""
    named: dict[str, Path] = {}
    for folder in ("src", "tests", "tools", "benchmarks", "lessons"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".yaml", ".html", ".js", ".c", ".h"} and path != OWN:
                for page in PAGE_NAME.findall(path.read_text("utf-8")):
                    named[page] = path
    assert len(named) > 10
    assert [f"{path}: {page}" for page, path in named.items() if not (ROOT / page).exists()] == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# A title\n\n## What is `it`, worth?\n\n## Twice\n\n## Twice\n")
    page.write_text(
        "[a](other.md) [b](other.md#what-is-it-worth) [c](other.md#twice-1) [d](#mine)\n"
        "`[code](no.md)` [e](https://example.org/no.md)\n\n```\n[code](no.md)\n```\n## Mine\n"
    )
    assert links.dead_links([page]) == []
    page.write_text("\n[a](no.md)\n[b](other.md#no) [c](other.md#twice-2) ![d](no.png)")
    found = links.dead_links([page])
    assert [complaint.split(":")[1] for complaint in found] == ["2", "3", "3", "3"]
    assert "there is no no.md" in found[0]
    assert "other.md has no heading #no" in found[1]


def test_links_are_rewritten_outside_of_code() -> None:
    text = "[a](docs/a.md#b) `[c](docs/c.md)` [d](https://d.org)"
    assert links.rewritten(text, lambda target: target.removeprefix("docs/")) == (
        "[a](a.md#b) `[c](docs/c.md)` [d](https://d.org)"
    )


# ----------------------------------------------------------------------------------- navigation


def test_every_page_is_in_the_contents() -> None:
    """Those of a single benchmark are in results.md."""
    listed = {ROOT / "docs" / "README.md"}
    for page in (ROOT / "docs" / "README.md", ROOT / "docs" / "reference" / "results.md"):
        targets = [target for _, target in links.links(page.read_text("utf-8"))]
        listed |= {(page.parent / target.partition("#")[0]).resolve() for target in targets}
    assert set(DOCS) - listed == set()


def test_every_page_is_in_the_navigation() -> None:
    names = [navigation.place(page.relative_to(ROOT)) for page in DOCS]
    listed = navigation.listed(navigation.navigation(names))
    assert sorted(listed) == sorted({*names, navigation.HOME})
    # Those of this checkout have a place of their own, not among the rest.
    rest = [entry for entry in navigation.navigation(names) if navigation.REST in entry]
    assert rest == []


def test_a_page_that_is_new_or_missing() -> None:
    tree = navigation.navigation(["guides/speech.md", "guides/new.md", "api/a.md", "api/b.md"])
    assert navigation.for_mkdocs(tree) == [
        {"Home": "index.md"},
        {"Guides": [{"Speech": "guides/speech.md"}]},
        {"API": ["api/a.md", "api/b.md"]},
        {"More": "guides/new.md"},
    ]


# --------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize("package", api.packages())
def test_every_public_name_has_a_docstring_and_is_in_the_reference(package: str) -> None:
    names = api.public_names(package)
    assert names
    page = api.page(package)
    assert [one.name for one in names if one.docstring == ""] == []
    for one in names:
        assert f"\n::: {package}.{one.name}\n" in page


def test_the_reference_has_what_users_import() -> None:
    assert {"transduce", "transduce.nn", "transduce.models", "transduce.tasks"} <= set(
        api.packages()
    )
    assert "\n::: transduce.nn.MultiHeadAttention\n" in api.page("transduce.nn")
    assert {one.name for one in api.public_names("transduce.errors")} >= {"RecipeError"}


# ----------------------------------------------------------------------------- what blocks contain


@named(PAGES)
def test_every_block_is_of_a_kind_that_tests_know(page: Path) -> None:
    for kind, text in blocks(page):
        assert kind in KINDS, (kind, text)
        if kind == "python":
            ast.parse(text)
        if kind == "yaml":
            assert isinstance(yaml.safe_load(text), dict)


@named([page for page in PAGES if page.stem != "CHANGELOG"])  # it has commands of the past
def test_the_commands_of_a_page_exist(page: Path) -> None:
    command = command_line()
    for line in commands(page):
        words = shlex.split(line, comments=True)[1:]
        words = words[: next((i for i, word in enumerate(words) if word in (">", "<", "|")), None)]
        part: Any = command
        while words and words[0] in getattr(part, "commands", {}):
            part = part.commands[words.pop(0)]
        assert part is not command or not words or words[0].startswith("-"), f"{line}: no command"
        known = {name for one in part.params for name in (*one.opts, *one.secondary_opts)}
        known |= {"-h", "--help"}
        for word in words:
            if re.match(r"--?[a-z]", word):
                assert word.split("=")[0] in known, f"{page.name}: {line}: no option {word}"


@functools.cache
def command_line() -> Any:
    return typer.main.get_command(of_command_line())


def commands(page: Path) -> Iterator[str]:
    """Lines of blocks and inline code that begin with `transduce`."""
    for kind, text in blocks(page):
        if kind in ("", "sh", "bash"):
            joined = text.replace("\\\n", " ")
            yield from re.findall(r"^(?:\$ )?(transduce [a-z-].*)$", joined, re.MULTILINE)
    inline = BLOCK.sub("", page.read_text("utf-8"))
    for code in re.findall(r"`(transduce [a-z-][^`]*)`", inline):
        yield " ".join(code.split())


NEW = [page for page in DOCS if page.parent.name == "coming-from"]
NEW += [
    ROOT / "docs" / f"{name}.md" for name in ("reference/troubleshooting", "guides/translation")
]


@named(NEW)
def test_the_keys_of_a_page_exist(page: Path) -> None:
    """Keys of the right column (or of any text): `train.lr`, `train: {lr: ...}`."""
    known = {*dotted_keys(), *SECTIONS, "model.lens"}
    text = BLOCK.sub("", page.read_text("utf-8"))
    cells = re.findall(r"^\|[^|]*\|(.*)\|$", text, re.MULTILINE)
    text = "\n".join(cells) if page.parent.name == "coming-from" else text
    found = re.findall(rf"`((?:{'|'.join(SECTIONS)})(?:\.[a-z_]+)+)[`:=]", text)
    assert found
    for key in found:
        assert key in known, f"{page.name}: {key} is no key"
    for preset in re.findall(r"`((?:transformer|lstm|gru)-[a-z-]+)`", text):
        assert preset in PRESETS, preset


def test_every_metric_is_explained() -> None:
    text = (ROOT / "docs" / "guides" / "evaluation.md").read_text("utf-8")
    table = text.split("## Metrics")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \| (higher|lower) \|", table, re.MULTILINE)
    explained = {name: better for names, better in rows for name in re.findall("`(.*?)`", names)}
    expected = {name: "higher" if up else "lower" for name, up in HIGHER_IS_BETTER.items()}
    del expected["loss"]  # of training
    assert explained == expected


@pytest.mark.parametrize("name", ["first-hour", "translation", "classification", "tagging"])
def test_the_recipe_of_a_page_is_valid(name: str) -> None:
    recipes = [
        text for kind, text in blocks(ROOT / "docs" / "guides" / f"{name}.md") if kind == "yaml"
    ]
    for text in recipes:
        title = re.match(r"# (\S+)\.yaml\n", text)
        assert title is not None
        assert parse_recipe(text, "page", Path("/data")).name == title[1]


def test_the_blocks_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Python, with a small model in place of the demo's; its recipe. Commands: see above."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(ROOT / "tests" / "fixtures" / "models" / "translate")
    monkeypatch.chdir(tmp_path)
    found = blocks(ROOT / "README.md")
    (script,) = (text for kind, text in found if kind == "python")
    names: dict[str, Any] = {}
    exec(compile(script, "README.md", "exec"), names)
    assert len(names["outputs"]) == 2
    assert names["outputs"][0].attention.ndim == 4
    (recipe,) = (text for kind, text in found if kind == "yaml")
    assert parse_recipe(recipe, "README.md", tmp_path).train.steps == 20000


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    pages = (ROOT / "docs" / "reference" / "results").glob("*.md")
    results = "\n".join(page.read_text("utf-8") for page in pages)
    text = (ROOT / "README.md").read_text("utf-8").split("## Results")[1]
    measured = re.findall(r"(\d+\.\d+) ± (\d+\.\d+)", results)
    rounded = {f"{float(mean):.1f} ± {float(spread):.1f}" for mean, spread in measured}
    quality = re.findall(r"\d+\.\d ± \d\.\d", text)
    assert len(quality) == 6
    assert set(quality) <= rounded
    speed = [*_speeds("real", "base"), *_speeds("synthetic", "base"), _ratio("greedy, 64")]
    for sentence in speed:
        assert sentence in " ".join(text.split()), sentence
    others = re.sub(r"\d+\.\d ± \d\.\d|UD 2\.16|Apache-2\.0", "", " ".join(text.split()))
    for sentence in speed:
        others = others.replace(sentence, "")
    assert not re.findall(r"\d+\.\d|\d,\d{3}", others)  # no other figure, without its spread


def test_the_figures_of_what_was_tried_are_on_the_pages_that_it_links_to() -> None:
    page = ROOT / "docs" / "reference" / "tried.md"
    rows = re.findall(r"^\| .* \| (.*) \| (\[.*\)) \|$", page.read_text("utf-8"), re.MULTILINE)
    assert len(rows) > 20
    for result, link in rows:
        ((_, target),) = links.links(link)
        figures = (page.parent / target.partition("#")[0]).read_text("utf-8")
        for number in re.findall(r"\d[\d,]*\.\d+|\d+,\d{3}", result):
            whole = rf"(?<![\d.,]){re.escape(number)}(?!\d)"
            assert re.search(whole, figures), f"{number} is not in {target}"


def test_the_readme_has_the_records_of_three_seeds() -> None:
    results = ROOT / "benchmarks" / "results" / "to_quality_cuda.json"
    records = json.loads(results.read_text("utf-8"))["records"]
    reached = [one for one in records if one["reached"] and len(one["runs"]) >= 3]
    fastest = {
        one["race"]: min(of["seconds"] for of in reached if of["race"] == one["race"])
        for one in reached
    }
    text = (ROOT / "README.md").read_text("utf-8")
    (told,) = re.findall(r"From the command to the score.*?\n\n", text, re.DOTALL)
    seconds = [int(number) for number in re.findall(r"(\d+) s\b", told)]
    assert sorted(seconds) == sorted(round(one) for one in fastest.values())


def _rows(name: str, **of: str) -> dict[str, list[dict[str, Any]]]:
    sections = json.loads((ROOT / "benchmarks" / "results" / name).read_text("utf-8"))["sections"]
    section = next(one for one in sections if all(one[key] == of[key] for key in of))
    ours = [row for row in section["rows"] if row["system"] == "ours"]
    return {"ours": ours, "others": [row for row in section["rows"] if row["system"] != "ours"]}


def _three_digits(figure: float) -> str:
    return f"{float(f'{figure:.3g}'):,.0f}" if figure >= 1000 else f"{float(f'{figure:.3g}'):.3g}"


def _speeds(kind: str, size: str) -> list[str]:
    """What the README says of training: our speed, and how many times that of the fastest other."""
    rows = _rows("train_speed_cuda.json", kind=kind, size=size)
    (ours,) = rows["ours"]
    other = max(rows["others"], key=lambda row: row["tokens_per_second"])
    found = [_three_digits(ours[key]) for key in ("tokens_per_second", "slowest", "fastest")]
    speed = f"{found[0]} target tokens per second ({found[1]} to {found[2]})"
    if kind == "synthetic":
        speed = f"{found[0]} ({found[1]} to {found[2]})"
    return [speed, _times(ours, other)]


def _times(ours: dict[str, Any], other: dict[str, Any]) -> str:
    usual = ours["tokens_per_second"] / other["tokens_per_second"]
    minimum, maximum = ours["slowest"] / other["fastest"], ours["fastest"] / other["slowest"]
    return f"{_decimals(usual)} times ({_decimals(minimum)} to {_decimals(maximum)})"


def _decimals(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def _ratio(cell: str) -> str:
    rows = _rows("decode_speed_cuda.json", kind="exact", size="base")
    (ours,) = [row for row in rows["ours"] if row["cell"] == cell]
    (other,) = [row for row in rows["others"] if row["cell"] == cell]
    return _times(ours, other)


# ------------------------------------------------------------------------------- the built pages


def test_what_a_built_page_loads_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<link rel="stylesheet" href="https://fonts.example/x.css">'
        '<script src="//cdn.example/x.js"></script>'
        '<a href="https://example.org">fine</a><a href="b.html#here">fine</a><img src="no.png">'
        '<a href="b.html#no">dead</a><a href="c.html">dead</a><a href="mailto:a@b.c">fine</a>'
    )
    (tmp_path / "b.html").write_text('<h1 id="here">Here</h1>')
    (tmp_path / "x.css").write_text("@import 'https://fonts.example/y.css';")
    found = built.complaints(tmp_path)
    assert len(found) == 6
    assert sum("loads" in one for one in found) == 3
    (tmp_path / "a.html").write_text('<a href="b.html#here">fine</a>')
    (tmp_path / "x.css").write_text("a { background: url(data:image/png;base64,A) }")
    assert built.complaints(tmp_path) == []
