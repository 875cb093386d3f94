"""Locks on folders and open files, which end with the process that holds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """An exclusive lock on a folder; yields false if another process holds it.

    It is released when the process ends, however it ends. Where the system has no such locks, it is
    always granted.
    """
    if os.name != "posix":  # Windows cannot open folders
        yield True
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield take_lock(handle)
    finally:
        os.close(handle)


def take_lock(handle: int) -> bool:
    """Whether an open file could be locked; the lock ends when it is closed, or with the process.

    Where the system has no such locks, it is always granted.
    """
    return lock_file(handle, wait=False) is not False


def lock_file(handle: int, wait: bool) -> bool | None:
    """Lock an open file until it is closed; false if another process has it, None if locks are not
    supported.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # some network drives have no locks
        return None
    return True


def is_at(handle: int, path: Path) -> bool:
    """Whether an open file is the one at a path: it may have been removed or replaced."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False
