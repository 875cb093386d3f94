"""Every code block of the README and of docs/ is run by a test, or stands in a list with a reason.

The tests that run a page's own blocks are named here; tests/integration/test_docs_commands.py runs
those of the other pages.
"""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs_blocks import CANNOT_RUN, ROOT, SHELL, Block, all_blocks
from docs_pages import PAGES
from transduce.recipe import parse_recipe

BLOCKS = all_blocks()
COMMANDS = "commands"
# A page, what of it is run (commands, or the language of blocks), and the test that does.
OWN_TESTS = {
    ("README", "python"): "unit/test_docs_pages.py::test_the_blocks_of_the_readme",
    ("classification", COMMANDS): "integration/test_guides.py::test_classification",
    ("decoding", COMMANDS): "integration/test_decoding.py::test_the_examples_of_the_page_run",
    ("decoding", "python"): "integration/test_decoding.py::test_the_examples_of_the_page_run",
    ("distillation", COMMANDS): "integration/test_distillation.py::test_the_commands_of_the_page",
    ("extending", COMMANDS): (
        "integration/test_extending.py::test_the_examples_of_extending_train_and_are_used"
    ),
    ("extending", "python"): (
        "integration/test_extending.py::test_the_examples_of_extending_train_and_are_used"
    ),
    ("fine-tuning", "python"): (
        "integration/test_fine_tuning_page.py::test_the_example_of_the_page"
    ),
    ("first-hour", COMMANDS): "integration/test_guides.py::test_the_first_hour",
    ("first-hour", "python"): "integration/test_guides.py::test_the_first_hour",
    ("lessons", "python"): "unit/lessons/test_lessons.py::test_the_example_of_the_page_runs",
    ("live-speech", "python"): "integration/test_live_page.py::test_the_page_does_what_it_says",
    ("looking-inside", "python"): (
        "integration/test_looking_inside.py::test_the_code_of_the_page_runs"
    ),
    ("python", "python"): "integration/test_python.py::test_the_code_of_the_page_runs",
    ("serving-protocols", "python"): (
        "integration/test_serving_protocols.py::test_the_code_of_the_page_runs"
    ),
    ("tagging", COMMANDS): "integration/test_guides.py::test_tagging",
    ("tasks", COMMANDS): (
        "integration/test_tasks.py::test_the_recipes_and_commands_of_the_page_work"
    ),
    ("tasks", "python"): (
        "integration/test_tasks.py::test_a_task_of_ones_own_is_as_short_as_the_page_says"
    ),
    ("translation", COMMANDS): "integration/test_guides.py::test_translation",
    ("words", COMMANDS): "integration/test_words.py::said",
}
# Kinds of blocks that are no code of ours: read below, or another program's.
READ = {"yaml", "json", "ini", "toml", "dockerfile"}
OTHERS = {"nginx": "the configuration of another program", "js": "run by tests/unit/web"}


def not_run(block: Block) -> list[str]:
    """The commands and the Python of a block that no test runs."""
    if (block.page, block.kind if block.kind == "python" else COMMANDS) in OWN_TESTS:
        return []
    if block.kind == "python":
        here = block.page in PAGES and PAGES[block.page].runs_python
        return [] if here else [block.text]
    if block.page in PAGES:
        return []
    return [one for one in block.commands if not any(re.search(why, one) for why in CANNOT_RUN)]


def test_every_block_is_run() -> None:
    left = {block.page: missed for block in BLOCKS if (missed := not_run(block))}
    assert left == {}, "run them in tests/docs_pages.py, or say in CANNOT_RUN why not"


def test_every_block_is_of_a_known_kind() -> None:
    assert {block.kind for block in BLOCKS} == {"python", *SHELL, *READ, *OTHERS}


def test_nothing_is_left_over() -> None:
    """A reason for no command, a page that is not there."""
    commands = [command for block in BLOCKS for command in block.commands]
    for pattern in CANNOT_RUN:
        assert any(re.search(pattern, command) for command in commands), pattern
    assert {page for page, _ in OWN_TESTS} | set(PAGES) <= {block.page for block in BLOCKS}


@pytest.mark.parametrize(("page", "what"), OWN_TESTS)
def test_the_test_of_a_page_is_there(page: str, what: str) -> None:
    file, name = OWN_TESTS[page, what].split("::")
    text = (ROOT / "tests" / file).read_text("utf-8")
    assert f"\ndef {name}(" in text
    assert page in text, "it does not name the page"
    of_page = [block for block in BLOCKS if block.page == page]
    assert any(block.commands if what == COMMANDS else block.kind == what for block in of_page)


def test_extras_that_are_to_be_installed_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [
        extra
        for block in BLOCKS
        for command in block.commands
        for extras in re.findall(r"'\.\[([\w,]+)\]'", command)
        for extra in extras.split(",")
    ]
    assert named
    assert set(named) <= set(project["optional-dependencies"])


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.kind == "yaml" and b.page != "extending"], ids=lambda b: b.page
)
def test_every_recipe_of_a_page_is_valid(block: Block) -> None:
    """A part of one, too, with data added where it has none."""
    shown: dict[str, Any] = yaml.safe_load(block.text)
    sounds = "audio" in shown or "audio: " in block.text
    files = "{file: some.tsv, audio: path}" if sounds else "{file: some.tsv}"
    missing = {"train", "valid"} - set(shown.get("data", {}))
    recipe = parse_recipe(
        block.text, block.page, Path("/data"), [f"data.{name}={files}" for name in missing]
    )
    assert recipe.data.train


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind in READ - {"yaml"}], ids=str)
def test_what_other_programs_read_is_well_formed(block: Block) -> None:
    if block.kind == "json":
        assert json.loads(block.text)
    elif block.kind == "toml":
        assert tomllib.loads(block.text)
    elif block.kind == "ini":
        assert configparser.ConfigParser(interpolation=None).read_string(block.text) is None
    else:
        assert re.match(r"FROM \S+\n", block.text)
        (command,) = re.findall(r"^CMD (\[.*\])$", block.text, re.MULTILINE)
        assert json.loads(command)[:2] == ["transduce", "serve"]
