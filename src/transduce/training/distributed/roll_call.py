"""Which ranks are still there, asked when one of them is lost.

A collective that fails says that a connection broke, not whose process is gone. So each process has
a thread that looks into the store of the group twice a second. The process that notices a loss asks
there who is left, and the threads of all that live answer, whatever their processes wait for. A
process that waits for its GPU, which waits for a lost one, is ended by its thread.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torch.distributed import Store  # type: ignore[attr-defined]

from transduce.terminal import say

LOOKS = 0.5  # seconds between two looks into the store
ANSWERS = 10.0  # seconds in which a process that lives has answered
LEAVES = 30.0  # seconds in which a process has noticed a loss by itself

ASKED, REASON = "transduce/asked", "transduce/reason"
ALIVE, INFORMED = "transduce/alive/{}", "transduce/informed/{}"
WHEN = "{when}"
"""In a reason, the place for the update that it happened in."""


class Member(NamedTuple):
    """Where a rank runs."""

    host: str
    namespace: str
    """Of process numbers: ranks with the same one see each other's processes."""
    process: int

    @staticmethod
    def here() -> Member:
        namespace = ""
        with suppress(OSError):
            namespace = str(Path("/proc/self/ns/pid").readlink())
        return Member(socket.gethostname(), namespace, os.getpid())

    def state(self) -> str:
        """Of a process that this one sees: R, S, T (stopped) ...; empty: it is gone."""
        with suppress(OSError):
            fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2]
            found = fields.split()[0]
            return "" if found in "ZX" else found
        return ""


class RollCall:
    """Asks the ranks of a group who is there, and answers for its own."""

    def __init__(self, store: Store, rank: int, members: list[Member]) -> None:
        self.members = members
        self.alone = False
        """Whether this process has work of its own, for which it needs no other rank."""
        self._rank, self._store = rank, store
        self._reason = ""
        self._gone: set[int] = set()
        self._left = threading.Event()
        own: Store = store.clone()  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._answer, args=(own,), daemon=True)
        self._thread.start()

    def name(self, rank: int) -> str:
        return f"rank {rank} ({self.members[rank].host})"

    def leave(self) -> None:
        """This process has ended its part, by itself or because of a loss that it noticed."""
        self._left.set()
        self._thread.join(LOOKS)

    def ended(self, error: str) -> None:
        """Tell the others that this process ends with an error of its own."""
        self.leave()
        with suppress(RuntimeError):
            self._tell(f"{self.name(self._rank)} ended {WHEN} with the error: {error}")

    def lost(self, waited: str, error: str) -> str:
        """Find out which ranks are lost; the same sentence on all ranks.

        waited: how long a collective has waited in vain; empty: a connection broke. error: what the
        collective said, for the case that nobody is lost.
        """
        self.leave()
        if self._reason:
            return self._reason
        try:
            return self._tell(self._ask(waited, error))
        except RuntimeError:  # the store, which is in the process of rank 0 unless torchrun has it
            return f"{self.name(0)} died {WHEN}"

    def _ask(self, waited: str, error: str) -> str:
        self._store.set(ALIVE.format(self._rank), "")
        self._store.set(ASKED, "")
        others = [rank for rank in range(len(self.members)) if rank != self._rank]
        unknown = set(others)
        deadline = time.monotonic() + ANSWERS
        while unknown and time.monotonic() < deadline and not self._store.check([REASON]):
            unknown = {r for r in unknown if not self._store.check([ALIVE.format(r)])}
            if all(self._state(rank) in ("", "T") for rank in unknown):
                break
            time.sleep(LOOKS / 10)
        self._gone = unknown
        dead = [rank for rank in unknown if self._state(rank) == ""]
        if dead:
            return f"{self._names(dead)} died {WHEN}"
        suffix = f" (waited {waited})" if waited else ""
        if unknown:
            verb = "does" if len(unknown) == 1 else "do"
            return f"{self._names(unknown)} {verb} not answer any more {WHEN}{suffix}"
        return f"the ranks lost each other {WHEN}{suffix}, but all of them answer ({error})"

    def _state(self, rank: int) -> str | None:
        """None: it cannot be seen from here."""
        here, there = self.members[self._rank], self.members[rank]
        visible = here.namespace and here[:2] == there[:2]
        return there.state() if visible else None

    def _names(self, ranks: Iterable[int]) -> str:
        return " and ".join(self.name(rank) for rank in sorted(ranks))

    def _tell(self, reason: str) -> str:
        """The reason that all ranks give: the first one that was told."""
        self._reason = self._store.compare_set(REASON, "", reason).decode()
        self._store.set(ASKED, "")
        self._store.set(INFORMED.format(self._rank), "")
        if self._rank == 0:  # the store may end with this process: the others have to read it first
            deadline = time.monotonic() + 3 * LOOKS
            left = set(range(len(self.members))) - self._gone
            keys = [INFORMED.format(rank) for rank in left]
            while not self._store.check(keys) and time.monotonic() < deadline:
                time.sleep(LOOKS / 10)
        return self._reason

    def _answer(self, store: Store) -> None:
        """The thread: answers when it is asked, and ends a process that waits for a lost one."""
        with suppress(RuntimeError):  # the store is gone: its process has ended
            while not store.check([ASKED]):
                if self._left.wait(LOOKS):
                    return
            store.set(ALIVE.format(self._rank), "")
            while not store.check([REASON]):
                if self._left.wait(LOOKS / 10):
                    return
            self._reason = store.get(REASON).decode()
            store.set(INFORMED.format(self._rank), "")
            if not self._left.wait(LEAVES) and not self.alone:
                say(f"{self._reason.replace(WHEN, '')}; this process waited for it, and is ended")
                os._exit(2)
