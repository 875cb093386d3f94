"""The command demo: train a model in minutes and plot its attention."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Demo(StrEnum):
    WORDS = "words"
    SPEECH = "speech"


def demo(
    what: Annotated[
        Demo, typer.Argument(help="Pronounce words, or transcribe speech.")
    ] = Demo.WORDS,
    output: Annotated[
        Path | None,
        typer.Option(help="The run directory. Default: runs/demo, or runs/demo-speech."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 1,
) -> None:
    """Train a small model in minutes and plot its attention."""
    from transduce.cli import demos

    if what is Demo.SPEECH:
        demos.listen(output or Path("runs/demo-speech"), seed)
    else:
        demos.pronounce(output or Path("runs/demo"), seed)
