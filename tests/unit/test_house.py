"""The house rules: nothing imports upward, no import circle, importing stays light."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import transduce

ROOT = Path(transduce.__file__).parent

# From the ground up; a room may use what stands before it, and its own files.
ROOMS = [
    ["errors"],
    ["presets", "rules", "part", "storage", "hardware", "cores", "terminal"],
    ["native"],
    ["nn"],
    ["blueprint", "pairs", "sound", "regime", "checksums"],
    ["material"],
    ["recipe"],
    ["cookbook"],
    ["corpora"],
    ["data"],
    ["synthesis"],
    ["models"],
    ["decoding"],
    ["folder"],
    ["tasks"],
    ["transducer"],
    ["alignment"],
    ["evaluation"],
    ["interop", "inspection"],
    ["serving", "training"],
    ["console", "demo", "inputs", "sentences"],
    ["commands"],
    ["cli"],
    ["__main__"],
]
FLOOR = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, everywhere: bool = True) -> set[str]:
    """The modules of transduce that a file imports; without `everywhere`, at import time alone."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = list(ast.walk(tree)) if everywhere else tree.body
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names = {name for name in inner if name in MODULES}
            found |= names if names else {node.module}
    return {name for name in found if name.startswith("transduce.") and name != "transduce"}


FILES = sorted(ROOT.rglob("*.py"))
MODULES = {module_name(path) for path in FILES}


def room_of(module: str) -> str:
    return module.split(".")[1]


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(name) for name in MODULES if "." in name}
    assert rooms <= set(FLOOR), f"say where {rooms - set(FLOOR)} stands"


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_nothing_imports_upward(path: Path) -> None:
    own = module_name(path)
    if own == "transduce":  # the front door, which opens rooms only when asked
        return
    for name in imports_of(path):
        other, mine = room_of(name), room_of(own)
        lower = FLOOR[other] < FLOOR[mine]
        assert lower or other == mine, f"{own} must not import {name}"


def test_no_import_circle() -> None:
    graph = {module_name(path): imports_of(path) for path in FILES}
    state: dict[str, str] = {}

    def visit(name: str, trail: list[str]) -> None:
        if state.get(name) == "done":
            return
        assert state.get(name) != "open", f"import circle: {' -> '.join([*trail, name])}"
        state[name] = "open"
        for other in sorted(graph.get(name, ())):
            if other != name:
                visit(other, [*trail, name])
        state[name] = "done"

    for name in sorted(graph):
        visit(name, [])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


@pytest.mark.parametrize("heavy", ["torch", "numpy", "pydantic", "rich", "matplotlib"])
def test_importing_transduce_is_light(heavy: str) -> None:
    run("-c", f"import sys, transduce; assert {heavy!r} not in sys.modules")


def test_the_command_line_does_not_load_torch_to_say_what_it_can() -> None:
    code = (
        "import sys, transduce.cli; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    )
    run("-c", code)


def test_help_answers_at_once() -> None:
    before = os.times()
    shown = run("-m", "transduce", "--help").stdout
    after = os.times()
    assert "train" in shown
    # Of its own work, not of the clock: that is the same however busy the machine is.
    worked = after.children_user + after.children_system
    assert worked - before.children_user - before.children_system < 1.0


def test_the_page_of_results_says_what_was_measured() -> None:
    root = ROOT.parent.parent
    subprocess.run([sys.executable, str(root / "docs" / "make_results.py"), "--check"], check=True)
