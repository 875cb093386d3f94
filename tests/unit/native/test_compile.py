"""The library is compiled once and whole; where it cannot be, somebody can ask why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from transduce.native import compile as compiling
from transduce.native import library, why_not


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """As in a process that has not wanted it yet, with an empty cache."""
    monkeypatch.setattr(compiling, "_opened", compiling._opened.__wrapped__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TRANSDUCE_NATIVE", raising=False)
    return monkeypatch


def test_it_can_be_left_out(unopened: pytest.MonkeyPatch) -> None:
    unopened.setenv("TRANSDUCE_NATIVE", "0")
    assert library() is None
    assert why_not() == "TRANSDUCE_NATIVE is 0"


def test_without_a_compiler(unopened: pytest.MonkeyPatch) -> None:
    unopened.setenv("PATH", "")
    assert library() is None
    assert why_not() == "there is no C compiler (cc, gcc, clang)"


def test_a_compiler_that_cannot(unopened: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'unknown option' >&2\nexit 1\n", "ascii")
    broken.chmod(0o755)
    unopened.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert library() is None
    assert why_not() == f"{broken} cannot compile it: unknown option"
    assert not list(tmp_path.rglob("*.so"))


def test_a_folder_that_cannot_be_written(unopened: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "ascii")
    unopened.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert library() is None
    assert "file" in (why_not() or "")


def test_a_file_that_is_no_library(unopened: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "transduce" / "native"
    folder.mkdir(parents=True)
    (folder / f"{compiling._key()}.so").write_bytes(b"half")
    assert library() is None
    assert why_not()


def test_it_is_compiled_once(unopened: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quickly = tuple(flag for flag in compiling.FLAGS if flag != "-O3")
    unopened.setattr(compiling, "FLAGS", quickly)
    if library() is None:
        pytest.skip(f"no library: {why_not()}")
    (made,) = (tmp_path / "transduce" / "native").iterdir()
    before = made.stat().st_mtime_ns
    unopened.setenv("PATH", "")
    assert library() is not None
    assert made.stat().st_mtime_ns == before
