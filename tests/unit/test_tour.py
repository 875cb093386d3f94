"""The tour of docs/reference/architecture.md: its files exist, and have what it says they have."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d) \| `([\w/]+\.py)` \| (.+?) \| (.+) \|$", re.MULTILINE)


def names_of(tree: ast.Module) -> set[str]:
    """Its classes and functions, and the methods of the classes."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    found = [node for node in tree.body if isinstance(node, kinds)]
    methods = [one for node in found for one in node.body if isinstance(one, kinds)]
    return {node.name for node in found + methods}


def test_the_tour_leads_through_eight_files() -> None:
    rows = ROW.findall((ROOT / "docs" / "reference" / "architecture.md").read_text("utf-8"))
    assert [number for number, *_ in rows] == list("12345678")
    for _, file, begin, _ in rows:
        path = ROOT / "src" / "transduce" / file
        assert path.is_file(), f"{file} is gone: choose another for the tour"
        tree = ast.parse(path.read_text("utf-8"))
        assert ast.get_docstring(tree), f"{file} does not say what it is"
        names = re.findall(r"`(\w+)`", begin)
        assert names, f"the tour does not say where to begin in {file}"
        there = names_of(tree)
        for name in names:
            assert name in there, f"{file} has no {name} any more"
