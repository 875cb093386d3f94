"""The library is compiled once and whole, from a folder that nobody else can write; where it
cannot be, the reason is told."""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from transduce.runtime.c import compile as compiling
from transduce.runtime.c import compiler as compilers
from transduce.runtime.c import library, stack, why_not
from transduce.runtime.c import private_folder as private


class Uncached(compiling.NativeLibrary):
    """Looks for the library anew at every call."""

    def load(self) -> ctypes.CDLL | None:
        self.reset()
        return super().load()


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """As in a process that has not wanted it yet, with an empty cache."""
    monkeypatch.setattr(compiling, "LIBRARY", Uncached())
    quickly = tuple(flag for flag in compiling.FLAGS if flag != "-O3")
    monkeypatch.setattr(compiling, "FLAGS", quickly)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TRANSDUCE_NATIVE", raising=False)
    monkeypatch.delenv("CC", raising=False)
    return monkeypatch


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of the library, compiled once for these tests."""
    folder = tmp_path_factory.mktemp("made")
    try:
        command = compilers.find_compiler()
    except OSError as error:
        pytest.skip(str(error))
    return compiling._compile(command, folder, "key").read_bytes()


def kept(tmp_path: Path, content: bytes, written: bytes | None = None) -> Path:
    """A file in the cache under the name of `content`, which may hold something else."""
    folder = private.make_private(tmp_path / "transduce" / "native")
    path = folder / f"{compiling._key()}-{compiling._content_hash(content)}.so"
    path.write_bytes(content if written is None else written)
    path.chmod(0o700)
    return path


def fake_compiler(folder: Path, script: str, name: str = "cc") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", "ascii")
    path.chmod(0o755)
    return path


def test_it_can_be_left_out(
    unopened: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unopened.setenv("TRANSDUCE_NATIVE", "0")
    assert library() is None
    assert why_not() == "TRANSDUCE_NATIVE is 0"
    assert capsys.readouterr().err == ""


def test_without_a_compiler(
    unopened: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unopened.setenv("PATH", "")
    assert library() is None
    told = capsys.readouterr().err
    assert told == (
        "transduce: int8 is computed by torch, which is slower: there is no C compiler "
        "(cc, gcc, clang)\n"
    )
    assert why_not() == "there is no C compiler (cc, gcc, clang)"


def test_a_compiler_that_cannot_is_asked_once(unopened: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    broken = fake_compiler(tmp_path, f"echo call >> {calls}; echo 'unknown option' >&2; exit 1")
    unopened.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert library() is None
    assert not list(tmp_path.rglob("*.so"))
    before = calls.read_text("ascii")
    said = why_not() or ""
    assert said.startswith(f"{broken} cannot compile it: unknown option (tried again after a day")
    assert calls.read_text("ascii") == before
    os.utime(broken, (1, 1))  # another compiler is asked again
    assert why_not() == f"{broken} cannot compile it: unknown option"


def test_a_compiler_that_hangs_is_ended_and_remembered(
    unopened: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What it had started ends with it: a pipe that all of them hold is closed."""
    fake_compiler(tmp_path, "sleep 200 & sleep 200")
    unopened.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    unopened.setattr(compilers, "LONGEST", 0.5)
    held, end = os.pipe()
    with unopened.context() as patched:
        patched.setattr(subprocess, "Popen", partial(subprocess.Popen, pass_fds=[end]))
        assert library() is None
    os.close(end)
    assert select.select([held], [], [], 100)[0], "a process that it started still runs"
    os.close(held)
    assert "did not end within 0.5 seconds (tried again after a day" in (why_not() or "")


def test_the_compiler_that_the_user_names(unopened: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen = fake_compiler(tmp_path, 'echo "$@" >&2; exit 1', "my-cc")
    unopened.setenv("CC", f"{chosen} -m64")
    assert (why_not() or "").startswith(f"{chosen} cannot compile it: -m64 ")
    unopened.setenv("CC", "no-such-compiler")
    assert why_not() == "CC names the compiler no-such-compiler, which is not there"
    unopened.setenv("CC", "'open")
    assert why_not() == "No closing quotation"


def test_a_compiler_in_the_current_folder_is_not_used(
    unopened: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_compiler(tmp_path, "exit 1")
    unopened.chdir(tmp_path)
    unopened.setenv("PATH", os.pathsep.join(["", ".", str(tmp_path / "nothing")]))
    assert why_not() == "there is no C compiler (cc, gcc, clang)"


def test_a_mac_without_xcode_opens_no_installer(
    unopened: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unopened.setattr(sys, "platform", "darwin")
    unopened.setattr(compilers, "_on_path", lambda name: f"/usr/bin/{name}")
    unopened.setattr(compilers, "XCODE_SELECT", str(fake_compiler(tmp_path, "exit 2", "xcode")))
    assert "xcode-select --install" in (why_not() or "")
    unopened.setattr(compilers, "XCODE_SELECT", str(fake_compiler(tmp_path, "exit 0", "xcode")))
    assert compilers.find_compiler() == ["/usr/bin/cc"]


def test_a_folder_that_cannot_be_written(unopened: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "ascii")
    unopened.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert library() is None
    assert "file" in (why_not() or "")


@pytest.mark.parametrize("mode", [0o777, 0o702])
def test_a_folder_that_others_may_write(
    unopened: pytest.MonkeyPatch, tmp_path: Path, made: bytes, mode: int
) -> None:
    kept(tmp_path, made)
    (tmp_path / "transduce").chmod(mode)
    assert library() is None
    folder = (tmp_path / "transduce").resolve()
    assert (why_not() or "").startswith(f"others may write to the folder {folder} and could put")
    (tmp_path / "transduce").chmod(mode | 0o1000)  # sticky, as /tmp is
    assert library() is not None


def test_a_folder_of_another_user(
    unopened: pytest.MonkeyPatch, tmp_path: Path, made: bytes
) -> None:
    kept(tmp_path, made)
    unopened.setattr(os, "getuid", lambda: 12345)
    assert library() is None
    assert "belongs to another user" in (why_not() or "")


@pytest.mark.parametrize("written", [b"", b"half", None])
def test_a_damaged_file_is_compiled_again(
    unopened: pytest.MonkeyPatch, tmp_path: Path, made: bytes, written: bytes | None
) -> None:
    path = kept(tmp_path, made, made[: len(made) // 2] if written is None else written)
    assert library() is not None
    whole = [file for file in path.parent.glob("*.so") if file.stat().st_size > len(made) // 2]
    assert len(whole) == 1


def test_a_file_that_others_may_write_is_not_loaded(
    unopened: pytest.MonkeyPatch, tmp_path: Path, made: bytes
) -> None:
    path = kept(tmp_path, made)
    path.chmod(0o777)
    unopened.setenv("PATH", "")
    assert why_not() == "there is no C compiler (cc, gcc, clang)"
    assert not path.exists()
    target = tmp_path / "elsewhere.so"
    target.write_bytes(made)
    path.symlink_to(target)
    assert library() is None


def test_a_library_without_a_symbol_is_compiled_again(
    unopened: pytest.MonkeyPatch, tmp_path: Path, made: bytes
) -> None:
    source, other = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text("int other(void) { return 1; }\n", "ascii")
    command = compilers.find_compiler()
    subprocess.run([*command, "-shared", "-fPIC", str(source), "-o", str(other)], check=True)
    path = kept(tmp_path, other.read_bytes())
    assert library() is not None
    assert not path.exists()


def test_other_structures_are_found(
    unopened: pytest.MonkeyPatch, tmp_path: Path, made: bytes
) -> None:
    class Step(ctypes.Structure):
        _fields_ = (("more", ctypes.c_int64), *stack.Step._fields_)

    others = tuple(Step if one is stack.Step else one for one in stack.STRUCTURES)
    unopened.setattr(compiling, "STRUCTURES", others)
    kept(tmp_path, made)
    assert library() is None
    assert "structures differ" in (why_not() or "")


def test_without_a_home(unopened: pytest.MonkeyPatch) -> None:
    def nobody(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    unopened.delenv("XDG_CACHE_HOME")
    unopened.setattr(Path, "expanduser", nobody)
    if library() is None:
        pytest.skip(f"no library: {why_not()}")


def test_it_is_compiled_once(unopened: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if library() is None:
        pytest.skip(f"no library: {why_not()}")
    (made,) = (tmp_path / "transduce" / "native").iterdir()
    before = made.stat().st_mtime_ns
    unopened.setenv("PATH", "")
    assert library() is not None
    assert made.stat().st_mtime_ns == before
