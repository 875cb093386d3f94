"""Atomic file writes: written to a temporary folder, flushed to the disk, then renamed.

Each writer works in a new folder beside its file, which nobody else uses. Two that write the same
file at once do not interfere: both files are whole, and the one renamed last stays.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transduce.errors import CheckpointError, DataError
from transduce.storage.locks import is_at, lock_file

if TYPE_CHECKING:
    from torch import Tensor

PREFIX, SUFFIX = ".transduce-", ".part"  # names of the temporary folders
BEFORE = "before"  # a folder in them: what `replace_folder` has put aside
DAY = 86_400.0  # seconds
GB = 10**9  # bytes
METADATA = "transduce"  # the key of a safetensors header that holds our metadata and checksums

Announce = Callable[[Path], object]
"""A function that is called with a complete file before it is renamed into place."""


def write_text(path: Path, text: str, announce: Announce | None = None) -> None:
    write_file(path, lambda part: part.write_text(text, encoding="utf-8"), announce=announce)


def write_json(path: Path, values: Any, announce: Announce | None = None) -> None:
    write_text(path, json.dumps(values, ensure_ascii=False, indent=2) + "\n", announce)


def default_cache_folder() -> Path:
    """$XDG_CACHE_HOME/transduce, or ~/.cache/transduce; without a home folder, a temporary one."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "transduce"
    except RuntimeError:  # for example in a container, for a user that the system does not know
        return _temporary_cache()


@cache
def _temporary_cache() -> Path:
    """A temporary folder that is removed at exit; a fixed name in /tmp would be known to others."""
    folder = Path(tempfile.mkdtemp(prefix="transduce-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def default_state_folder() -> Path:
    """$XDG_STATE_HOME/transduce, or ~/.local/state/transduce: neither cache nor settings.

    Without a home folder, a temporary one.
    """
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "transduce"
    except RuntimeError:
        return _temporary_cache() / "state"


def gigabytes(variable: str, usual: float) -> float:
    """The size of a cache in bytes, by a variable of the environment. Raises DataError."""
    given = os.environ.get(variable, "").strip()
    try:
        maximum = float(given or usual)
    except ValueError:
        maximum = -1.0
    if not 0 <= maximum < float("inf"):
        raise DataError(f"{variable} is {given}, which is not a number of gigabytes; give one")
    return maximum * GB


def expanded(name: str) -> Path:
    """A path with ~ expanded; unchanged for a user who does not exist."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def check_free(paths: Iterable[Path], overwrite: bool) -> None:
    """Raise DataError for a file that a command would overwrite without being asked to."""
    for path in paths:
        if not overwrite and path.exists():
            raise DataError(
                f"{path} exists already and would be replaced: move it, choose another place, "
                f"or give --overwrite"
            )


def check_name(path: Path | None, endings: Sequence[str]) -> None:
    """Raise DataError for a file whose name does not say which of several formats it is to be."""
    if path is not None and path.suffix not in endings:
        raise DataError(f"{path}: the name must end in {', '.join(endings)}, which says its format")


def make_folder(path: Path) -> None:
    """Make a folder and its parents; CheckpointError if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"the folder {path} cannot be made ({error.strerror or error}); choose another one"
        ) from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """An exclusive lock for reading, changing and writing a file: others wait.

    The lock is a hidden file beside it, as the file itself is replaced by renaming. Where the
    system has no locks (Windows, some network drives), nobody waits.
    """
    lock = path.with_name(f".{path.name}.lock")
    while True:
        try:
            handle = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
        except OSError as error:
            raise CheckpointError(_unwritten(path, error)) from None
        try:
            lock_file(handle, wait=True)
            if not is_at(handle, lock):
                continue  # the previous holder has removed it: it locks nothing any more
            try:
                yield
            finally:
                with suppress(OSError):
                    lock.unlink()
            return
        finally:
            os.close(handle)


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """A new hidden temporary folder for one writer, removed at the end.

    It is locked, so that `remove_stale` can see that it is in use. What killed writers have left
    beside it is removed. Raises OSError if it cannot be made.
    """
    _remove_stale_once(folder.absolute())
    while True:
        part = Path(tempfile.mkdtemp(dir=folder, prefix=PREFIX, suffix=SUFFIX))
        try:
            # A folder cannot be opened on Windows; there, `remove_stale` goes by age.
            handle = os.open(part, os.O_RDONLY) if os.name == "posix" else -1
        except FileNotFoundError:  # removed by `remove_stale` between the two lines
            continue
        try:
            if handle >= 0:
                lock_file(handle, wait=True)
                if not is_at(handle, part):
                    continue
            try:
                yield part
            finally:
                _remove(part)
            return
        finally:
            if handle >= 0:
                os.close(handle)


@contextmanager
def replaced_folder(place: Path) -> Iterator[Path]:
    """A new folder to fill, which replaces `place` when it is complete; not after an error.

    Raises CheckpointError where a folder cannot be made.
    """
    place = Path(os.path.abspath(place))  # noqa: PTH100 (a link is replaced, not what it points to)
    make_folder(place.parent)
    with temporary_folder(place.parent) as work:
        new = work / "new"
        new.mkdir()
        yield new
        replace_folder(new, place)


def replace_folder(new: Path, place: Path) -> None:
    """Rename a complete folder to `place`. What was there is removed once the new one is in place.

    After an error it is there again; a kill between the two renames leaves it in a temporary
    folder, from where `remove_stale` takes it back.
    """
    with temporary_folder(place.parent) as work:
        aside = work / BEFORE / place.name
        if os.path.lexists(place):
            aside.parent.mkdir()
            place.replace(aside)
        try:
            new.replace(place)
        except BaseException:
            if os.path.lexists(aside):
                aside.replace(place)
            raise
    _flush_folder(place.parent)


@cache
def _remove_stale_once(folder: Path) -> None:
    """Those of a folder that has thousands of files, say, are not looked for at each of them."""
    remove_stale(folder)


def remove_stale(folder: Path) -> None:
    """Remove temporary folders of writers that were killed, but none that are in use.

    What such a writer had put aside and not yet replaced is put back. Without locks, anything
    younger than a day may be in use.
    """
    for part in folder.glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError):
            free = None
            if os.name == "posix":
                handle = os.open(part, os.O_RDONLY)
                try:
                    free = lock_file(handle, wait=False)
                finally:
                    os.close(handle)
            if free or (free is None and time.time() - part.stat().st_mtime > DAY):
                for kept in (part / BEFORE).glob("*"):
                    if not (folder / kept.name).exists():
                        kept.replace(folder / kept.name)
                _remove(part)


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    previous: Path | None = None,
    announce: Announce | None = None,
) -> None:
    """Write tensors and JSON metadata to a safetensors file, with checksums of everything.

    The same tensors and metadata give the same bytes.

    With `previous`, the file that was there until now is kept under that name. A kill between the
    two renames leaves only that one.
    """
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    sums = {name: _checksum(tensor) for name, tensor in ready.items()}
    # "facts" is the key of the metadata in all files there are.
    header = {"facts": json.loads(json.dumps(metadata)), "checksums": sums}
    header["header"] = _header_checksum(header, ready)
    # A single entry: the library writes several in an order that differs from process to process.
    header = {METADATA: json.dumps(header, sort_keys=True)}
    write_safetensors(path, ready, header, previous, announce)


def write_safetensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    header: Mapping[str, str],
    previous: Path | None = None,
    announce: Announce | None = None,
) -> None:
    """Write tensors, contiguous and on the CPU, with any metadata, as `write_file` does."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    def write(part: Path) -> None:
        try:
            save_file(dict(tensors), part, dict(header))
        except SafetensorError as error:  # how the library reports a full disk
            reason = str(error).rpartition("I/O error: ")[2].partition(" (os error")[0]
            raise OSError(reason) from None

    write_file(path, write, previous, announce)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and metadata of a file of `write_tensors`; CheckpointError if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if METADATA not in header and any('"checksums"' in one for one in header.values()):
            raise ValueError("its header was changed")  # so it was written by transduce
        header = json.loads(header.get(METADATA, "{}"))
        metadata, sums = header.get("facts", {}), header.get("checksums", {})
    except FileNotFoundError:
        raise CheckpointError(f"the file {path} is missing") from None
    except (SafetensorError, OSError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the file {path} is damaged or truncated ({error}); restore it from a copy"
        ) from None
    if header and header.get("header") != _header_checksum(header, tensors):
        raise CheckpointError(
            f"the file {path} is damaged: its header is not the one that was written; restore it "
            f"from a copy"
        )
    for name, tensor in tensors.items():
        if name in sums and sums[name] != _checksum(tensor):
            raise CheckpointError(
                f"the file {path} is damaged: the bytes of {name} are not those that were "
                f"written; restore it from a copy"
            )
    return tensors, metadata


def read_tensor_metadata(path: Path) -> dict[str, Any]:
    """The metadata of a file of `write_tensors`, without its tensors; empty where it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get(METADATA, "{}"))["facts"]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _checksum(tensor: Tensor) -> int:
    import torch

    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data)


def _header_checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int:
    """A checksum of the metadata and of each tensor's name, type and shape, which its bytes do not
    include.
    """
    shapes = sorted((name, str(t.dtype), list(t.shape)) for name, t in tensors.items())
    parts = [header.get("facts"), header.get("checksums"), shapes]
    return zlib.crc32(json.dumps(parts, sort_keys=True).encode())


def write_file(
    path: Path,
    write: Callable[[Path], object],
    previous: Path | None = None,
    announce: Announce | None = None,
) -> None:
    """Write a file atomically; `write` writes to the path it is given.

    Raises CheckpointError if that fails; then the previous file is unchanged.
    """
    try:
        with temporary_folder(path.parent) as part:
            whole = part / path.name
            write(whole)
            whole.chmod(_usual_mode(part))  # safetensors makes files readable by the owner only
            with whole.open("rb+") as file:  # Windows flushes only writable files
                os.fsync(file.fileno())
            if announce is not None:
                announce(whole)
            if previous is not None and path.is_file():
                path.replace(previous)
            whole.replace(path)
    except OSError as error:
        raise CheckpointError(_unwritten(path, error)) from None
    _flush_folder(path.parent)


def missing_folder(folder: Path) -> str:
    """The error message for a folder that was removed while in use."""
    return (
        f"the folder {folder} does not exist any more: it was removed or renamed; nothing can be "
        f"written into it"
    )


def _unwritten(path: Path, error: OSError) -> str:
    if not path.parent.is_dir():
        return f"{path} could not be written: {missing_folder(path.parent)}"
    return (
        f"{path} could not be written ({error.strerror or error}); what was there before is "
        f"untouched: {how_to_fix(error)}"
    )


def how_to_fix(error: OSError) -> str:
    """What a user can do about a file that could not be written."""
    full = (errno.ENOSPC, errno.EDQUOT)
    if error.errno in full or any(os.strerror(number) in str(error) for number in full):
        return "free some space"
    if error.errno == errno.EFBIG or os.strerror(errno.EFBIG) in str(error):
        return "raise the limit on the size of files (ulimit -f)"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "make the folder one that you may write to, or choose another"
    return "try again, or choose another place"


def _remove(part: Path) -> None:
    with suppress(OSError):
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink()


def _usual_mode(folder: Path) -> int:
    """The permissions of a new file, found by making one: reading the umask would set it for all
    threads of the process.
    """
    probe = folder / "mode"
    handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        return os.fstat(handle).st_mode & 0o777
    finally:
        os.close(handle)
        probe.unlink()


def _flush_folder(path: Path) -> None:
    """Flush a rename to the disk; some file systems, and Windows, cannot flush folders."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
