"""Files that are whole or not there: written beside, flushed to the disk, then renamed."""

from __future__ import annotations

import atexit
import errno
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transduce.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor


def write_text(path: Path, text: str) -> None:
    _replace(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_json(path: Path, values: Any) -> None:
    write_text(path, json.dumps(values, ensure_ascii=False, indent=2) + "\n")


def default_cache_folder() -> Path:
    """$XDG_CACHE_HOME/transduce, or ~/.cache/transduce; where there is no home, one for this
    process."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "transduce"
    except RuntimeError:  # as in a container, for a user whom the system does not know
        return _passing_cache()


@cache
def _passing_cache() -> Path:
    """A new folder that is removed at the end: in /tmp, others know any fixed name."""
    folder = Path(tempfile.mkdtemp(prefix="transduce-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def make_folder(path: Path) -> None:
    """Make a folder and those above it; CheckpointError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"the folder {path} cannot be made ({error.strerror or error}); choose another one"
        ) from None


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """A folder that nobody else can hold meanwhile; false where somebody does.

    A process that dies, however it dies, lets go of it. Where the system has no such locks, all may
    have it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield True
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        except OSError:  # some network drives know no locks
            yield True
        else:
            yield True
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove what writers that were killed have left in a folder."""
    for part in folder.glob(".*.part"):
        _remove(part)


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    previous: Path | None = None,
) -> None:
    """Tensors and a few JSON facts in one safetensors file, with checksums of all of it.

    With `previous`, the file that was there until now is kept under that name. A kill between the
    two renamings leaves it there alone.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    sums = {name: _checksum(tensor) for name, tensor in ready.items()}
    metadata = {"facts": json.dumps(facts), "checksums": json.dumps(sums)}
    metadata["header"] = _header_checksum(metadata, ready)

    def write(part: Path) -> None:
        try:
            save_file(ready, part, metadata)
        except SafetensorError as error:  # how the library tells of a full disk
            reason = str(error).rpartition("I/O error: ")[2].partition(" (os error")[0]
            raise OSError(reason) from None

    _replace(path, write, previous)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a file of `write_tensors`; CheckpointError if it was damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        sums = json.loads(metadata.get("checksums", "{}"))
        facts = json.loads(metadata.get("facts", "{}"))
    except FileNotFoundError:
        raise CheckpointError(f"the file {path} is missing") from None
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"the file {path} is damaged or cut short ({error}); restore it from a copy"
        ) from None
    if "header" in metadata and metadata["header"] != _header_checksum(metadata, tensors):
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
    return tensors, facts


def _checksum(tensor: Tensor) -> int:
    import torch

    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data)


def _header_checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Of the facts, and of each tensor's name, type and shape: its bytes alone do not tell them."""
    shapes = sorted((name, str(t.dtype), list(t.shape)) for name, t in tensors.items())
    parts = [metadata.get("facts"), metadata.get("checksums"), shapes]
    return str(zlib.crc32(json.dumps(parts).encode()))


def _replace(path: Path, write: Callable[[Path], object], previous: Path | None = None) -> None:
    # A folder of its own: safetensors writes under random names, which a kill would leave behind.
    part = path.with_name(f".{path.name}.part")
    whole = part / path.name
    try:
        _remove(part)
        part.mkdir()
        write(whole)
        whole.chmod(0o666 & ~_umask())  # safetensors lets no one but the owner read
        with whole.open("rb+") as file:  # Windows flushes only what it may write to
            os.fsync(file.fileno())
        if previous is not None and path.is_file():
            path.replace(previous)
        whole.replace(path)
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written ({error.strerror or error}); what was there before is "
            f"untouched: {how_to_mend(error)}"
        ) from None
    finally:  # also after errors that are not the disk's
        _remove(part)
    _flush_folder(path.parent)


def how_to_mend(error: OSError) -> str:
    """What a person can do about a file that could not be written."""
    full = (errno.ENOSPC, errno.EDQUOT)
    if error.errno in full or any(os.strerror(number) in str(error) for number in full):
        return "free some space"
    if error.errno == errno.EFBIG or os.strerror(errno.EFBIG) in str(error):
        return "raise the limit on the size of files (ulimit -f)"
    return "make the folder one that you may write to, or choose another"


def _remove(part: Path) -> None:
    with suppress(OSError):
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink()


def _umask() -> int:
    """What a new file may not be; the only way to read it is to set it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush_folder(path: Path) -> None:
    """Make the new name last; some file systems, and Windows, know no flushing of folders."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
