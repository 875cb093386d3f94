"""Claims: which process decodes a shard, by an exclusive lock on a file for each shard.

The system releases a lock when its process ends, however it ends, so no claim is ever stale. A
claim only saves work: a shard that two processes decode has the same output twice, and the second
replaces the first in one step. Where a file system has no locks, every claim is granted; workers
begin at different shards, so that little is done twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transduce.errors import CheckpointError
from transduce.storage.locks import take_lock

Note = Callable[[int], object]
"""Tells how many lines are done."""


@contextmanager
def claimed(path: Path) -> Iterator[Note | None]:
    """Hold the claim; yields None where another process has it.

    The file holds the number of lines done so far, for those who show progress.
    """
    try:
        # Network drives give an exclusive lock only on a file that is open for writing.
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written ({error.strerror}); make the folder one that you may "
            f"write to, or choose another"
        ) from None
    try:
        if not take_lock(handle):
            yield None
            return

        def note(lines: int) -> None:
            with suppress(OSError):  # only progress is lost
                os.pwrite(handle, b"%010d" % lines, 0)

        yield note
        with suppress(OSError):
            path.unlink()
    finally:
        os.close(handle)


def lines_in(path: Path) -> int:
    """The lines done of a shard that is being decoded; 0 where nobody does."""
    try:
        return int(path.read_bytes() or b"0")
    except (OSError, ValueError):
        return 0
