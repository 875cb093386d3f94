"""A wheel with a file too few or too many is refused."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = "transduce/runtime/libtransduce.so"
ABOUT = "transduce-0.1.0.dist-info/RECORD"


@pytest.fixture(scope="module")
def make_wheels() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "make_wheels", ROOT / "packaging" / "make_wheels.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_a_wheel_must_hold(make_wheels: ModuleType) -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout by git")
    expected = make_wheels.files_of_package()
    for name in (
        "__init__.py",
        "recipe/shipped/multi30k-en-de.yaml",
        "serving/web/attention.js",
        "runtime/c/stack.c",
        "lessons/files/01_convex_average.py",
    ):
        assert f"transduce/{name}" in expected
    assert "transduce/lessons/files/README.md" not in expected
    make_wheels.check_files(expected | {LIBRARY, ABOUT}, expected)


def test_other_files_are_refused(make_wheels: ModuleType) -> None:
    expected = {"transduce/__init__.py", "transduce/recipe/shipped/a.yaml"}
    whole = expected | {LIBRARY, ABOUT}
    make_wheels.check_files(whole, expected)
    with pytest.raises(SystemExit, match="no C library"):
        make_wheels.check_files(whole - {LIBRARY}, expected)
    with pytest.raises(SystemExit, match=r"lacks \['transduce/recipe/shipped/a.yaml'\]"):
        make_wheels.check_files(whole - {"transduce/recipe/shipped/a.yaml"}, expected)
    with pytest.raises(SystemExit, match=r"has \['transduce/left.pyc'\]"):
        make_wheels.check_files(whole | {"transduce/left.pyc"}, expected)
