"""Training processes that die in the middle of writing a file; `test_kill.py` starts this script.

Python and torch are loaded once, then each line on standard input starts a run in a fork: a process
of its own that trains, writes and dies as any other, without the seconds that loading takes. A line
is a JSON object: `arguments` of the command line, `told`, a file for what it prints, and, where it
shall kill itself, `death`: which file, at which of its writes, and where in that write. The answers
are the process's number at once, and its end later.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
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
    - line: a part of a line is in the log (`kind` of record).
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.file, self.place = plan["file"], plan["place"]
        self.countdown, self.report = plan.get("turn", 1), Path(plan["report"])
        self.kind = plan.get("kind", "")
        self.random = random.Random(plan["seed"])

    def due(self, name: str) -> bool:
        if not fnmatch(name, self.file):
            return False
        self.countdown -= 1
        return self.countdown == 0

    def die(self, **facts: Any) -> NoReturn:
        self.report.write_text(json.dumps({"file": self.file, "place": self.place, **facts}))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a process outlived SIGKILL")

    def die_within(self, name: str, data: bytes, file: Any) -> NoReturn:
        count = self.random.randrange(len(data))
        file.write(data[:count])
        file.flush()
        self.die(name=name, bytes=count, of=len(data))


def arm(death: Death) -> None:
    """Put the death where the program writes."""
    if death.place == "middle":
        _die_while_writing(death)
    elif death.place == "line":
        _die_while_logging(death)
    else:
        _die_while_renaming(death)


def _die_while_writing(death: Death) -> None:
    import safetensors.torch

    import transduce.data.cache

    save_file, write_text = safetensors.torch.save_file, Path.write_text

    def save(tensors: Any, path: Path, metadata: Any) -> None:
        path = Path(path)
        if not death.due(path.name):
            return save_file(tensors, path, metadata)
        # As the library does it: under a random name, which only a rename makes the asked one.
        _, beside = tempfile.mkstemp(dir=path.parent, prefix=".tmp")
        with open(beside, "wb") as file:
            death.die_within(path.name, safetensors.torch.save(tensors, metadata), file)

    def write(path: Path, text: str, encoding: str | None = None) -> int:
        if not death.due(path.name):
            return write_text(path, text, encoding=encoding)
        with path.open("wb") as file:
            death.die_within(path.name, text.encode("utf-8"), file)

    safetensors.torch.save_file = save
    transduce.data.cache.save_file = save
    Path.write_text = write  # type: ignore[method-assign, assignment]


def _die_while_renaming(death: Death) -> None:
    replace = Path.replace
    armed = False

    def rename(path: Path, target: Path) -> Path:
        nonlocal armed
        keeps = "previous" in Path(target).name
        if death.place == "between":
            if keeps and death.due(path.name):
                replace(path, target)
                death.die(name=path.name)
            return replace(path, target)
        # A file that is only put aside has been written long ago.
        if keeps or not death.due(Path(target).name):
            return replace(path, target)
        if death.place == "renamed":
            replace(path, target)
        death.die(name=Path(target).name)

    Path.replace = rename  # type: ignore[method-assign, assignment]


def _die_while_logging(death: Death) -> None:
    opened = Path.open

    def die_in_line(write: Callable[[str], int], file: Any, line: str) -> int:
        record = json.loads(line)
        if record["kind"] != death.kind or not death.due("log.jsonl"):
            return write(line)
        count = death.random.randrange(1, len(line))
        write(line[:count])
        file.flush()
        death.die(name="log.jsonl", bytes=count, of=len(line))

    class Log:
        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, line: str) -> int:
            return die_in_line(self.file.write, self.file, line)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    def open_(path: Path, mode: str = "r", **others: Any) -> Any:
        file = opened(path, mode, **others)
        return Log(file) if path.name == "log.jsonl" and mode == "a" else file

    Path.open = open_  # type: ignore[method-assign, assignment]


def live(life: dict[str, Any]) -> NoReturn:
    """In the fork: be the command line."""
    from transduce.cli import main

    told = os.open(life["told"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(told, stream)
    if life.get("death"):
        arm(Death(life["death"]))
    sys.argv = ["transduce", *life["arguments"]]
    main()


def answer(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def serve() -> None:
    import torch
    import torch.utils.tensorboard  # noqa: F401

    import transduce.cli
    import transduce.evaluation.metrics
    import transduce.training.train  # noqa: F401

    torch.set_num_threads(1)  # a fork has no threads but its own
    answer(ready=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            live(json.loads(line))
        answer(process=child)
        _, status = os.waitpid(child, 0)
        answer(end=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    serve()
