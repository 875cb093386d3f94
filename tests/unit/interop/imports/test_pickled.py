"""Pickles are read and never run: what they hold comes out as values, names and nothing else."""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import os
import pickle
import pickletools
import resource
import struct
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from transduce.errors import ModelError
from transduce.interop.imports import pickled
from transduce.interop.imports.pickled import (
    PARAMETER,
    TENSOR,
    Checkpoint,
    Made,
    Named,
    Persistent,
    read_checkpoint,
    read_pickle,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


def read(whole: bytes) -> Any:
    return read_pickle(io.BytesIO(whole))


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(value=PLAIN, protocol=st.sampled_from([0, 1, 2, 4, 5]))
def test_plain_values_are_what_they_were(value: Any, protocol: int) -> None:
    assert repr(read(pickle.dumps([value], protocol))) == repr([value])


def test_values_that_are_used_twice_are_the_same() -> None:
    shared: list[int] = [1]
    one, two = read(pickle.dumps([shared, shared]))
    assert one is two


class Evil:
    """Calls something as soon as an ordinary unpickler reads it."""

    def __init__(self, *what: Any) -> None:
        self.what = what

    def __reduce__(self) -> Any:
        return self.what


def hostile(marker: Path) -> dict[str, bytes]:
    shell, code = f"touch {marker}", f"open({str(marker)!r}, 'w').close()"
    path = str(marker).encode()
    return {
        "system": pickle.dumps(Evil(os.system, (shell,))),
        "system, protocol 0": pickle.dumps(Evil(os.system, (shell,)), 0),
        "eval": pickle.dumps({"model": Evil(eval, (code,))}),
        "exec": pickle.dumps([Evil(exec, (code,))], 4),
        "open": pickle.dumps(Evil(open, (str(marker), "w"))),
        "state": pickle.dumps(Evil(argparse.Namespace, (), {"a": Evil(os.system, (shell,))})),
        "items": pickle.dumps(Evil(dict, (), None, None, iter([("a", Evil(eval, (code,)))]))),
        "nested": pickle.dumps(Evil(map, (exec, [code]))),
        "INST": b"(S'touch " + path + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'touch " + path + b"'\no.",
        "twice": b"cbuiltins\ngetattr\n(cos\npath\nS'join'\ntR(S'a'\nS'b'\ntR.",
        "import": b"cbuiltins\n__import__\n(S'" + path + b"'\ntR.",
        "extension": b"\x80\x02\x82\x01.",
    }


@pytest.mark.parametrize("kind", list(hostile(Path("x"))))
def test_nothing_runs(tmp_path: Path, kind: str) -> None:
    marker = tmp_path / "ran"
    modules = set(sys.modules)
    with contextlib.suppress(ModelError):
        found = read(hostile(marker)[kind])
        assert isinstance(found, Made | dict | list | Named)
    assert not marker.exists()
    new = {name for name in set(sys.modules) - modules if not name.startswith("encodings.")}
    assert not new


def test_the_test_can_see_something_run(tmp_path: Path) -> None:
    """An ordinary unpickler does run these."""
    marker = tmp_path / "ran"
    pickle.loads(hostile(marker)["eval"])
    assert marker.exists()


def test_globals_are_names() -> None:
    found = read(pickle.dumps([Evil(os.system, ("true",)), collections.OrderedDict(a=1)]))
    assert isinstance(found[0], Made)
    assert found[0].by.name == "system"
    assert found[0].arguments == ("true",)
    assert found[1] == {"a": 1}
    space = read(pickle.dumps(argparse.Namespace(layers=6)))
    assert (str(space.by), space.state) == ("argparse.Namespace", {"layers": 6})


def test_deep_nesting() -> None:
    depth = 50_000
    found = read(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
    for _ in range(5):
        (found,) = found
    tuples = read(b"\x80\x02)" + b"\x85" * depth + b".")
    assert isinstance(tuples, tuple)


def test_bombs_take_no_memory() -> None:
    """Ten lists, each with ten times the one before: 10^10 in all, if they were copied."""
    value: Any = "x" * 100
    for _ in range(10):
        value = [value] * 10
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read(pickle.dumps(value))
    key: Any = ()
    for _ in range(60):
        key = (key, key)  # to hash it would take 2^60 steps
    assert read(pickle.dumps([key, {"a": 1}]))[1] == {"a": 1}
    keyed = b"\x80\x02}q\x00)" + b"2\x86" * 60 + b"K\x01s."
    assert read(keyed) == {}
    for claim in (b"T" + struct.pack("<I", 2**31 - 1), b"B" + b"\xff" * 4, b"\x8e" + b"\xff" * 8):
        with pytest.raises(ModelError):
            read(b"\x80\x04" + claim + b"abc.")
    with pytest.raises(ModelError):
        read(b"L" + b"9" * 100_000 + b"L\n.")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 200_000  # kilobytes


def test_the_work_and_the_memory_of_a_pickle_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MAX_OPERATIONS", 100)
    assert read(b"]" + b"Na" * 49 + b".") == [None] * 49  # 100 operations
    with pytest.raises(ModelError, match="more than 100 operations"):
        read(b"]0]" + b"Na" * 49 + b".")
    monkeypatch.setattr(pickled, "LONGEST", 50)
    assert read(b"C\x2f" + b"x" * 47 + b".") == b"x" * 47  # 50 bytes
    for longer in (b"C\x30" + b"x" * 48 + b".", b"I" + b"1" * 60 + b"\n.", b"I" + b"1" * 60):
        with pytest.raises(ModelError, match="more than 50 bytes"):
            read(longer)


NESTED = b"\x80\x02)" + b"q\x00h\x00\x86" * 60  # two of what is before, sixty times: 2^60 in all


def test_nested_tuples_are_never_written_out_or_hashed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.touch()
    nested = read(NESTED + b".")
    with pytest.raises(ModelError, match="names are no texts"):
        Checkpoint(path, None).tensors({7: nested})
    made = Made(TENSOR, (Persistent(("storage", Named("torch", "FloatStorage"), nested, "cpu", 1)),
                         0, (1,), (1,)))  # fmt: skip
    with pytest.raises(ModelError, match="no tensor of this file"):
        Checkpoint(path, None).tensors({"a": made})


# ------------------------------------------------------- compared with torch's restricted reader


def with_torch(path: Path, allowed: Sequence[Any] = ()) -> Any:
    with torch.serialization.safe_globals(list(allowed)):
        return torch.load(path, weights_only=True)


def saved(path: Path, content: bytes) -> Path:
    """A checkpoint of torch with this pickle in it."""
    torch.save({}, path)
    with zipfile.ZipFile(path) as archive:
        others = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in others.items():
            archive.writestr(name, content if name.endswith("/data.pkl") else value)
    return path


def test_settings_of_a_class_that_is_not_installed(tmp_path: Path) -> None:
    """fairseq's checkpoints have settings of its own classes: names to us, but torch would have to
    import them, and no list of allowed names is complete."""
    made = b"cfairseq.anything\nConfig\n)\x81}X\x01\x00\x00\x00aK\x01sb"
    content = b"\x80\x02}X\x04\x00\x00\x00args" + made + b"s."
    path = saved(tmp_path / "checkpoint.pt", content)
    with pytest.raises(pickle.UnpicklingError, match=r"fairseq\.anything"):
        with_torch(path, [argparse.Namespace])
    assert read_checkpoint(path).root["args"].state == {"a": 1}


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="tuples remember their hash there")
def test_a_key_that_takes_forever_to_hash(tmp_path: Path) -> None:
    """torch's reader puts it into a dict, as a pickle says; a process that does never ends."""
    path = saved(tmp_path / "checkpoint.pt", NESTED.replace(b")", b"})", 1) + b"K\x01s.")
    assert read_checkpoint(path).root == {}
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
        with contextlib.suppress(BaseException):
            with_torch(path)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status)  # its second of CPU time was not enough


def test_a_compressed_pickle_is_not_expanded(tmp_path: Path) -> None:
    """A megabyte of zeros takes a kilobyte; torch's reader expands whatever there is."""
    path = tmp_path / "checkpoint.pt"
    torch.save({}, path)
    with zipfile.ZipFile(path) as archive:
        others = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in others.items():
            archive.writestr(name, value)
    assert with_torch(path) == {}
    with pytest.raises(ModelError, match="compressed"):
        read_checkpoint(path)


REAL = pickle.dumps(
    {"model": collections.OrderedDict(a=1), "args": argparse.Namespace(b=[1.5, "c", (None, True)])},
    2,
)


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(
    changes=st.lists(st.tuples(st.integers(0, len(REAL) - 1), st.integers(0, 255)), max_size=5),
    end=st.integers(0, len(REAL)),
)
def test_damaged_pickles(changes: list[tuple[int, int]], end: int) -> None:
    damaged = bytearray(REAL)
    for place, value in changes:
        damaged[place] = value
    with contextlib.suppress(ModelError):
        read(bytes(damaged[:end]))


OPERATIONS = b"".join(code.code.encode("latin-1") for code in pickletools.opcodes)


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(program=st.lists(st.sampled_from(list(OPERATIONS)), max_size=40).map(bytes))
def test_random_programs(program: bytes) -> None:
    with contextlib.suppress(ModelError):
        read(program + b".")


# ----------------------------------------------------------------------------- whole checkpoints


def state() -> dict[str, Any]:
    torch.manual_seed(4)
    shared = torch.randn(6, 4)
    return {
        "whole": shared,
        "transposed": shared.t(),
        "row": shared[2],
        "half": torch.randn(3).half(),
        "brain": torch.randn(3).bfloat16(),
        "long": torch.tensor([[1, -2]]),
        "scalar": torch.tensor(2.5),
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "empty": torch.zeros(0, 3),
    }


@pytest.mark.parametrize("older", [False, True])
def test_tensors_are_those_that_were_saved(tmp_path: Path, older: bool) -> None:
    path, saved = tmp_path / "checkpoint.pt", state()
    root = {"model": saved, "args": argparse.Namespace(layers=2), "step": 7}
    torch.save(root, path, _use_new_zipfile_serialization=not older)
    checkpoint = read_checkpoint(path)
    assert checkpoint.root["step"] == 7
    assert checkpoint.root["args"].state == {"layers": 2}
    tensors = checkpoint.tensors(checkpoint.root["model"])
    assert list(tensors) == list(saved)
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, saved[name].detach(), rtol=0, atol=0)


@pytest.mark.parametrize("older", [False, True])
def test_damaged_checkpoints(tmp_path: Path, older: bool) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": state()}, path, _use_new_zipfile_serialization=not older)
    whole = path.read_bytes()
    generator = torch.Generator().manual_seed(1)
    for _ in range(60):
        damaged = bytearray(whole)
        for place in torch.randint(len(whole), (3,), generator=generator).tolist():
            damaged[place] ^= 255
        end = int(torch.randint(len(whole) // 2, 2 * len(whole), (), generator=generator))
        path.write_bytes(bytes(damaged[:end]))
        try:
            checkpoint = read_checkpoint(path)
            model = checkpoint.root.get("model") if isinstance(checkpoint.root, dict) else None
            checkpoint.tensors(model)
        except ModelError as error:
            message = str(error)
        else:
            message = ""
        assert "\n" not in message


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (0, (1000, 1000), (0, 0)),
        (1, (6, 4), (4, 1)),
        (20, (6, 4), (4, 1)),
        (0, (6, 4), (400, 1)),
        (-1, (2,), (1,)),
    ],
)
def test_a_tensor_stays_within_its_storage(
    tmp_path: Path, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {"w": torch.zeros(6, 4)}}, path)
    checkpoint = read_checkpoint(path)
    made = checkpoint.root["model"]["w"]
    made.arguments = (made.arguments[0], offset, size, stride, *made.arguments[4:])
    with pytest.raises(ModelError, match="no tensor of this file"):
        checkpoint.tensors(checkpoint.root["model"])


def test_one_storage_under_many_names_takes_no_more_memory_than_the_file(tmp_path: Path) -> None:
    shared = torch.zeros(10_000)
    path = tmp_path / "pytorch_model.bin"
    torch.save({"one": shared, "tied": shared}, path)
    read = read_checkpoint(path)
    assert len(read.tensors(read.root)) == 2
    torch.save({str(number): shared for number in range(100)}, path)
    read = read_checkpoint(path)
    with pytest.raises(ModelError, match="larger than the file"):
        read.tensors(read.root)


def test_a_parameter_of_a_parameter_is_no_tensor(tmp_path: Path) -> None:
    inner: Any = None
    for _ in range(5000):
        inner = Made(PARAMETER, (inner,))
    path = tmp_path / "empty"
    path.touch()
    assert Checkpoint(path, None).tensors({"deep": inner}) == {}
