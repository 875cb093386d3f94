"""Files are whole or not there, and damage is told, wherever it strikes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce import storage
from transduce.errors import CheckpointError, DataError
from transduce.storage import (
    check_free,
    how_to_fix,
    locked,
    make_folder,
    read_tensors,
    remove_stale,
    temporary_folder,
    write_file,
    write_json,
    write_tensors,
    write_text,
)
from transduce.storage.locks import held

TENSORS = {
    "matrix": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "bytes": torch.tensor([0, 255], dtype=torch.uint8),
    "single": torch.tensor(7.0, dtype=torch.float64),
    "empty": torch.zeros(0, 4),
    "switches": torch.tensor([True, False]),
}
METADATA = {"step": 3, "text": "größer ▁ 🎉", "nested": {"best": None, "kept": [[1, 0.5]]}}


def only(folder: Path, *names: str) -> bool:
    return sorted(p.name for p in folder.iterdir()) == sorted(names)


def sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert text
    assert "\n" not in text
    return text


def test_text_and_json_come_back(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "größer\n")
    write_json(tmp_path / "a.json", METADATA)
    assert (tmp_path / "a.txt").read_text("utf-8") == "größer\n"
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == METADATA
    assert "größer" in (tmp_path / "a.json").read_text("utf-8")  # for people to read
    assert only(tmp_path, "a.txt", "a.json")


def test_tensors_and_metadata_come_back(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", TENSORS, METADATA)
    tensors, metadata = read_tensors(tmp_path / "a.safetensors")
    assert metadata == METADATA
    assert set(tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert tensors[name].shape == tensor.shape
        assert torch.equal(tensors[name], tensor), name
    assert only(tmp_path, "a.safetensors")


def test_views_and_parameters_can_be_written(tmp_path: Path) -> None:
    square = torch.arange(9.0).reshape(3, 3)
    values = {"turned": square.T, "parameter": torch.nn.Parameter(square[:, 1])}
    write_tensors(tmp_path / "a", values, {})
    tensors, _ = read_tensors(tmp_path / "a")
    assert torch.equal(tensors["turned"], square.T)
    assert torch.equal(tensors["parameter"], square[:, 1])


def test_others_can_read_the_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    write_tensors(tmp_path / "a", TENSORS, METADATA)
    assert torch.equal(load_file(tmp_path / "a")["matrix"], TENSORS["matrix"])


def test_a_file_of_another_program_can_be_read(tmp_path: Path) -> None:
    """It has no checksums and no facts, which is no damage."""
    from safetensors.torch import save_file

    save_file({"matrix": TENSORS["matrix"]}, tmp_path / "a")
    tensors, metadata = read_tensors(tmp_path / "a")
    assert torch.equal(tensors["matrix"], TENSORS["matrix"])
    assert metadata == {}


# ----------------------------------------------------------------------- whole or not there


@pytest.mark.parametrize("error", [OSError(28, "No space left"), RuntimeError("a bug")])
def test_a_failing_writer_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail(part: Path, text: str, encoding: str) -> None:
        part.write_bytes(b"half of the n")
        raise error

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(CheckpointError if isinstance(error, OSError) else RuntimeError) as raised:
        write_text(path, "new")
    assert sentence(raised)
    assert path.read_bytes() == b"old"
    assert only(tmp_path, "a.txt")


def test_a_text_that_cannot_be_encoded_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.txt", "half of a pair: \ud800")
    assert only(tmp_path)


def test_a_full_disk_is_reported_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.torch

    def full(values: Any, part: Path, metadata: Any) -> None:
        part.write_bytes(b"half")
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    path = tmp_path / "a"
    write_tensors(path, TENSORS, METADATA)
    before = path.read_bytes()
    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(CheckpointError, match="No space left") as raised:
        write_tensors(path, {}, {})
    assert str(path) in sentence(raised)
    assert path.read_bytes() == before
    assert only(tmp_path, "a")


def test_what_a_kill_has_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    for name in (".transduce-abc.part", ".mine.part", "film.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("half")
    with temporary_folder(tmp_path) as ours:  # somebody is writing
        remove_stale(tmp_path)
        assert only(tmp_path, ours.name, ".mine.part", "film.part")
    assert only(tmp_path, ".mine.part", "film.part")
    remove_stale(tmp_path / "nowhere")


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    """The second begins and ends while the first is in the middle of its file."""
    path = tmp_path / "a.txt"

    def slowly(part: Path) -> None:
        part.write_text("half of the ")
        write_text(path, "second")
        remove_stale(tmp_path)
        assert path.read_text() == "second"
        with part.open("a") as file:
            file.write("first")

    write_file(path, slowly)
    assert path.read_text() == "half of the first"
    assert only(tmp_path, "a.txt")


def test_a_hundred_writers_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: write_tensors(path, {"n": torch.tensor(n)}, {}), range(100)))
    assert 0 <= int(read_tensors(path)[0]["n"]) < 100
    assert only(tmp_path, "a")


def test_a_folder_that_goes_away_is_told_as_that(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()

    def write(part: Path) -> None:
        shutil.rmtree(folder)
        part.write_text("too late")

    with pytest.raises(CheckpointError, match="removed or renamed") as raised:
        write_file(folder / "a", write)
    assert "may write to" not in sentence(raised)


@pytest.mark.skipif(os.name != "posix", reason="needs a umask")
def test_new_files_are_as_the_umask_says_which_is_never_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set for a moment, it would be so for all threads."""
    before = os.umask(0o027)
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask was set"))
    try:
        write_tensors(tmp_path / "a", TENSORS, METADATA)
        write_text(tmp_path / "b", "text")
        assert {(tmp_path / name).stat().st_mode & 0o777 for name in "ab"} == {0o640}
    finally:
        monkeypatch.undo()
        os.umask(before)


def test_the_same_tensors_have_the_same_bytes(tmp_path: Path) -> None:
    for number in range(8):
        metadata = dict(reversed(METADATA.items())) if number % 2 else METADATA
        write_tensors(tmp_path / f"{number}", dict(sorted(TENSORS.items())), metadata)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_who_changes_a_file_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "count"
    path.write_text("0")

    def add_one(_: int) -> None:
        with locked(path):
            count = int(path.read_text())
            time.sleep(0.001)
            write_text(path, str(count + 1))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add_one, range(50)))
    assert path.read_text() == "50"
    assert only(tmp_path, "count")
    with (
        pytest.raises(CheckpointError, match="could not be written"),
        locked(tmp_path / "no" / "a"),
    ):
        pass


def test_files_that_are_there_are_replaced_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    paths = [tmp_path / "b", tmp_path / "a"]
    check_free(paths[:1], overwrite=False)
    check_free(paths, overwrite=True)
    with pytest.raises(DataError, match="--overwrite") as raised:
        check_free(paths, overwrite=False)
    assert str(tmp_path / "a") in sentence(raised)


def test_the_file_before_it_can_be_kept(tmp_path: Path) -> None:
    for step in range(3):
        write_tensors(tmp_path / "a", TENSORS, {"step": step}, tmp_path / "old")
    assert [read_tensors(tmp_path / name)[1]["step"] for name in ("a", "old")] == [2, 1]
    assert only(tmp_path, "a", "old")


def test_what_is_renamed_has_reached_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flushed before the rename: otherwise a power cut leaves a whole name on half a file."""
    order: list[str] = []
    replace, fsync = Path.replace, os.fsync
    monkeypatch.setattr(Path, "replace", lambda a, b: order.append("rename") or replace(a, b))
    monkeypatch.setattr(os, "fsync", lambda f: order.append("flush") or fsync(f))
    write_text(tmp_path / "a", "text")
    assert order == ["flush", "rename", "flush"]


@pytest.mark.parametrize("place", ["missing/a.txt", "file/a.txt", "folder", "n" * 300])
def test_where_nothing_can_be_written_it_says_so(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "folder").mkdir()
    for write in (
        lambda path: write_text(path, "text"),
        lambda path: write_tensors(path, TENSORS, {}),
    ):
        with pytest.raises(CheckpointError) as raised:
            write(tmp_path / place)
        assert str(tmp_path / place) in sentence(raised)
        assert only(tmp_path, "file", "folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="denied"):
        write_text(tmp_path / "a", "text")


def test_make_folder(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(CheckpointError) as raised:
            make_folder(tmp_path / place)
        assert str(tmp_path / place) in sentence(raised)


# --------------------------------------------------------------------------------- damage


def same(tensors: dict[str, Tensor], metadata: dict[str, Any], of: dict[str, Tensor]) -> bool:
    return (
        metadata == METADATA
        and set(tensors) == set(of)
        and all(torch.equal(tensors[n], t) and tensors[n].dtype == t.dtype for n, t in of.items())
    )


@pytest.mark.parametrize("flip", [0x01, 0x0F, 0x80])
def test_no_flipped_byte_goes_unnoticed(tmp_path: Path, flip: int) -> None:
    """Header or numbers: either it is an error, or what is read is what was written."""
    path = tmp_path / "a"
    few = {name: TENSORS[name] for name in ("matrix", "half", "bytes")}
    write_tensors(path, few, METADATA)
    whole = path.read_bytes()
    noticed = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= flip
        path.write_bytes(damaged)
        try:
            tensors, metadata = read_tensors(path)
        except CheckpointError:
            noticed += 1
        else:
            assert same(tensors, metadata, few), f"byte {place} of {len(whole)}"
    assert noticed > 0.9 * len(whole)
    payload = sum(t.numel() * t.element_size() for t in few.values())
    damaged = bytearray(whole)
    damaged[-payload] ^= flip
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="the bytes of"):
        read_tensors(path)


def test_another_type_or_shape_of_the_same_bytes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_tensors(path, {"matrix": TENSORS["matrix"]}, METADATA)
    whole = path.read_bytes()
    for old, new in ((b'"F32"', b'"I32"'), (b"[2,3]", b"[3,2]"), (b'"matrix"', b'"matrox"')):
        assert whole.count(old) == 1
        path.write_bytes(whole.replace(old, new))
        with pytest.raises(CheckpointError, match="damaged"):
            read_tensors(path)


def test_a_file_cut_short_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_tensors(path, TENSORS, METADATA)
    whole = path.read_bytes()
    for length in (0, 1, 8, 30, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="damaged or truncated") as raised:
            read_tensors(path)
        assert str(path) in sentence(raised)


def test_what_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="missing") as raised:
        read_tensors(tmp_path / "a")
    assert sentence(raised)
    with pytest.raises(CheckpointError) as raised:
        read_tensors(tmp_path)
    assert sentence(raised)
    (tmp_path / "text").write_text("not tensors at all, but long enough to look like some")
    with pytest.raises(CheckpointError) as raised:
        read_tensors(tmp_path / "text")
    assert sentence(raised)


def test_a_header_whose_key_was_damaged_is_not_taken_for_another_programs(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_tensors(path, TENSORS, METADATA)
    whole = path.read_bytes()
    assert whole.count(b'"transduce"') == 1
    path.write_bytes(whole.replace(b'"transduce"', b'"transducf"'))
    with pytest.raises(CheckpointError, match="damaged"):
        read_tensors(path)


def test_how_to_fix_what_could_not_be_written() -> None:
    assert how_to_fix(OSError(28, "No space left on device")) == "free some space"
    assert how_to_fix(OSError("No space left on device")) == "free some space"
    assert "may write to" in how_to_fix(OSError(30, "Read-only file system"))


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert storage.default_cache_folder() == Path("/somewhere/transduce")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/me")
    assert storage.default_cache_folder() == Path("/home/me/.cache/transduce")


def test_a_folder_is_held_by_one(tmp_path: Path) -> None:
    with held(tmp_path) as first, held(tmp_path) as second:
        assert (first, second) == (True, False)
    with held(tmp_path) as again:
        assert again


def test_a_folder_is_replaced_when_the_new_one_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "before"  # a name that is used within
    for text in ("first", "second"):
        with storage.replaced_folder(place) as new:
            (new / "file").write_text(text)
            assert not place.exists() or (place / "file").read_text() != text
        assert (place / "file").read_text() == text
    with suppress(KeyError), storage.replaced_folder(place) as new:
        (new / "file").write_text("third")
        raise KeyError
    assert (place / "file").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["before"]


def test_what_was_put_aside_is_taken_back(tmp_path: Path) -> None:
    """A kill between the two renames, of a folder and of one that was replaced after all."""
    for name in ("gone", "there"):
        aside = tmp_path / f".transduce-{name}.part" / "before" / name
        aside.mkdir(parents=True)
        (aside / "file").write_text("old")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("new")
    storage.remove_stale(tmp_path)
    assert (tmp_path / "gone" / "file").read_text() == "old"
    assert (tmp_path / "there" / "file").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gone", "there"]


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
@pytest.mark.parametrize("killed", [1, 2, 3])
def test_a_kill_at_any_rename_leaves_the_old_folder_or_the_new_one(
    tmp_path: Path, killed: int
) -> None:
    for name in ("made", "place"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    if not (child := os.fork()):
        _kill_at_rename(killed)
        storage.replace_folder(tmp_path / "made", tmp_path / "place")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) == (killed <= 2)  # two renames, then it is done
    storage.remove_stale(tmp_path)
    expected = "place" if killed <= 2 else "made"
    assert (tmp_path / "place" / "file").read_text() == expected
    assert only(tmp_path, "place", *(["made"] if killed <= 2 else []))


def _kill_at_rename(number: int) -> None:
    """Before the rename of that number, counted from 1, this process kills itself."""
    rename, count = Path.replace, iter(range(1, number + 1))

    def replace(path: Path, target: Path) -> Path:
        if next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(path, target)

    Path.replace = replace  # type: ignore[method-assign, assignment]


def test_a_folder_that_cannot_be_renamed_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "file").write_text("old")
    with pytest.raises(FileNotFoundError):
        storage.replace_folder(tmp_path / "nowhere", tmp_path / "place")
    assert (tmp_path / "place" / "file").read_text() == "old"
    assert only(tmp_path, "place")


def test_the_next_writer_clears_what_a_killed_one_left(tmp_path: Path) -> None:
    left = tmp_path / ".transduce-old.part"
    left.mkdir()
    (left / "half").write_text("ha")
    storage.write_text(tmp_path / "file", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
