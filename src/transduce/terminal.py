r"""Terminal output without control characters from data (terminal escape injection).

Sources, outputs and file names may come from anyone: an escape sequence in them could rename the
window, fill the clipboard or overwrite lines. Control characters are shown as escapes such as
\x1b. Output to a file or a pipe is unchanged, as a program reads it; standard error is always
filtered.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOBase, TextIOWrapper
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from rich.console import Console

# All control characters except \t and \n; also Unicode line breaks, and unpaired surrogates, which
# no encoding can represent. Characters that change the direction of writing stay: Arabic and Hebrew
# need them.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def plain(text: str) -> str:
    """The text with control characters as escapes."""
    return CONTROL.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


class Filtered:
    """A text stream that escapes control characters; everything else is delegated to the stream."""

    def __init__(self, stream: TextIO) -> None:
        # Rich writes here, so that its own colours and bars are not escaped.
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(plain(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


class Closed(TextIOBase):
    """In place of a standard output that is closed, as after `>&-`: nothing is lost silently."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


@contextmanager
def guarded() -> Iterator[None]:
    """Standard output filtered if it is a terminal, standard error always."""
    before = sys.stdout, sys.stderr
    if isinstance(sys.stdout, TextIOWrapper):
        # UTF-8 as for input, whatever the locale says; an unpaired surrogate must not stop the
        # output.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.stdout is None:
        sys.stdout = Closed()
    elif sys.stdout.isatty():
        sys.stdout = Filtered(sys.stdout)
    if sys.stderr is not None:
        sys.stderr = Filtered(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def say(sentence: str) -> None:
    """Tell the user something on standard error, after the name of the program."""
    print(f"transduce: {sentence}", file=sys.stderr, flush=True)


class Waiting:
    """Says after some seconds what goes on, while a command has nothing else to print: what is new
    after each of them, the same more and more rarely."""

    SECONDS = 10.0

    def __init__(self) -> None:
        self._what = ""
        self._ended = Event()
        self._thread = Thread(target=self._say, daemon=True)

    def set(self, what: str) -> None:
        """What goes on from now on, in words."""
        self._what = what

    def _say(self) -> None:
        said, turns, rest = "", 1, 0
        while not self._ended.wait(self.SECONDS):
            turns = 1 if self._what != said else turns
            rest = 0 if self._what != said else rest - 1
            if self._what and rest <= 0:
                say(self._what)
                said, turns, rest = self._what, 2 * turns, 2 * turns

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def aligned(rows: Sequence[Sequence[str]], left: int | Sequence[bool] = 1) -> list[str]:
    """Rows as columns: the first `left` of them, or those that it marks, to the left, others to
    the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    marks = [place < left for place in range(len(widths))] if isinstance(left, int) else left
    return [
        "  ".join(
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(row, widths, marks, strict=True)
        ).rstrip()
        for row in rows
    ]


def duration(seconds: float) -> str:
    """A time in words: 40 s, 12 min, 3 h 20 min, 2 d 5 h."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{round(seconds)} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def console(**options: Any) -> Console:
    """A rich console that escapes control characters in text, but not its own styles and bars."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Plain(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                text, style, control = segment
                yield segment if control else Segment(plain(text), style)

    return Plain(**options)
