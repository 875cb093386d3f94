"""The command demo: a model trained in minutes, and pictures of what it attends to."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Demo(StrEnum):
    WORDS = "words"
    SPEECH = "speech"


def demo(
    what: Annotated[Demo, typer.Argument(help="What it learns.")] = Demo.WORDS,
    folder: Annotated[
        Path | None, typer.Option(help="Where the model goes; default: runs/demo, or demo-speech.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights and order.")] = 1,
) -> None:
    """Train in minutes, on words or on speech; see what it attends to."""
    if what is Demo.SPEECH:
        from transduce.demo.listen import listen

        listen(folder or Path("runs/demo-speech"), seed)
    else:
        from transduce.demo.pronounce import pronounce

        pronounce(folder or Path("runs/demo"), seed)
