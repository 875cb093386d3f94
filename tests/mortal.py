"""The command line, with a death in the middle of writing a file; `lives.py` starts this.

Its one argument is a JSON object: `arguments` of the command line; where asked for, signals that
are `ignored`, the bytes of the `largest` file it may write, and `death`: the file in the writing of
which it shall kill itself, at which of its writes, and where in that write.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import runpy
import signal
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NoReturn


class Death:
    """SIGKILL to this very process, at one place of one write.

    `file` is a pattern of the name under which the file will be known, `place` one of

    - middle: some of its bytes are in a file beside it;
    - written: all of them are, but the file has not got its name;
    - between: the file that was there has been renamed, the new one has not (the state alone);
    - renamed: the new file has its name, and nothing has been done after that;
    - pause: as written, and instead of dying it waits, for others to strike;
    - line: a part of a line is in the log (`kind` of record);
    - hold: so many lines are in the log, and it waits until it is let go, or killed: however slow
      those who look at it are, it does not end before that;
    - change: before the next change of any file or folder below the folder `file`.

    With `full`, the disk has no more space there, and nobody dies.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.file, self.place = plan["file"], plan["place"]
        self.countdown, self.report = plan.get("turn", 1), Path(plan["report"])
        self.kind, self.full = plan.get("kind", ""), plan.get("full", False)
        self.random = random.Random(plan["seed"])

    def due(self, name: str) -> bool:
        if not fnmatch(name, self.file):
            return False
        self.countdown -= 1
        return self.countdown == 0

    def strike(self, **metadata: Any) -> NoReturn:
        # Renamed when it is whole: this process may be ended by others meanwhile.
        part = self.report.with_name(f"{self.report.name}.{os.getpid()}")
        part.write_bytes(json.dumps({"file": self.file, "place": self.place, **metadata}).encode())
        os.replace(part, self.report)  # noqa: PTH105 (Path.replace is watched)
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a process outlived SIGKILL")

    def pause(self) -> None:
        """Two reports: it waits; a signal has come, and its handler has run."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        self.report.write_bytes(b"{}")
        os.read(read, 1)
        self.report.with_suffix(".asked").touch()
        time.sleep(100)

    def hold(self) -> None:
        self.report.write_bytes(b"{}")
        while not self.report.with_suffix(".go").exists():
            time.sleep(0.005)

    def strike_within(self, name: str, data: bytes, file: Any) -> NoReturn:
        count = self.random.randrange(len(data))
        file.write(data[:count])
        file.flush()
        self.strike(name=name, bytes=count, of=len(data))


def arm(death: Death) -> None:
    """Put the death where the program writes."""
    if death.place == "middle":
        _die_while_writing(death)
    elif death.place == "change":
        _die_at_a_change(death)
    elif death.place in ("line", "hold"):
        _die_while_logging(death)
    else:
        _die_while_renaming(death)


def _die_while_writing(death: Death) -> None:
    import safetensors.torch
    from safetensors import SafetensorError

    from transduce.data.cache import tokenised

    save_file, write_text = safetensors.torch.save_file, Path.write_text

    def save(tensors: Any, path: Path, metadata: Any) -> None:
        path = Path(path)
        if death.due(path.name):
            # As the library does it: under a random name, which it would rename at the end.
            _, beside = tempfile.mkstemp(dir=path.parent, prefix=".tmp")
            data = safetensors.torch.save(tensors, metadata)
            try:
                with Path(beside).open("wb") as file:
                    death.strike_within(path.name, data, file)
            except OSError as error:
                Path(beside).unlink()
                raise SafetensorError(f"I/O error: {error.strerror} (os error 28)") from None
        save_file(tensors, path, metadata)

    def write(path: Path, text: str, encoding: str | None = None) -> int:
        if death.due(path.name):
            with path.open("wb") as file:
                death.strike_within(path.name, text.encode("utf-8"), file)
        return write_text(path, text, encoding=encoding)

    write_arrays = tokenised.write_arrays

    def cache(path: Path, arrays: Any, metadata: Any) -> None:
        write_arrays(path, arrays, metadata)
        if death.due(path.name):
            data = path.read_bytes()
            with path.open("wb") as file:
                death.strike_within(path.name, data, file)

    safetensors.torch.save_file = save
    tokenised.write_arrays = cache
    Path.write_text = write  # type: ignore[method-assign, assignment]


def _die_at_a_change(death: Death) -> None:
    changes = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod")
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT

    def look(event: str, given: tuple[Any, ...]) -> None:
        if event not in changes and not (event == "open" and (given[2] or 0) & writing):
            return
        if str(given[0]).startswith(death.file):
            death.countdown -= 1
            if death.countdown == 0:
                death.strike(event=event, name=str(given[0]))

    sys.addaudithook(look)


def _die_while_renaming(death: Death) -> None:
    replace = Path.replace

    def rename(path: Path, target: Path) -> Path:
        put_aside = "previous" in Path(target).name
        name = path.name if put_aside else Path(target).name
        struck = put_aside == (death.place == "between") and death.due(name)
        if struck and death.place == "pause":
            death.pause()
        if struck and death.place == "written":
            death.strike(name=name)
        renamed = replace(path, target)
        if struck and death.place != "pause":
            death.strike(name=name)
        return renamed

    Path.replace = rename  # type: ignore[method-assign, assignment]


def _die_while_logging(death: Death) -> None:
    opened = Path.open

    class Log:
        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, line: str) -> int:
            if death.place == "hold":
                written = int(self.file.write(line))
                self.file.flush()
                if death.due("log.jsonl"):
                    death.hold()
                return written
            if json.loads(line)["kind"] == death.kind and death.due("log.jsonl"):
                death.strike_within("log.jsonl", line.encode("ascii"), self.file.buffer)
            return int(self.file.write(line))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    def open_(path: Path, mode: str = "r", **others: Any) -> Any:
        file = opened(path, mode, **others)
        return Log(file) if path.name == "log.jsonl" and mode == "a" else file

    Path.open = open_  # type: ignore[method-assign, assignment]


def main() -> None:
    life = json.loads(sys.argv[1])
    for name in life.get("ignored", []):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    if "largest" in life:
        resource.setrlimit(resource.RLIMIT_FSIZE, (life["largest"], life["largest"]))
    if life.get("death"):
        arm(Death(life["death"]))
    sys.argv = ["transduce", *life["arguments"]]
    runpy.run_module("transduce", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
