"""The command align: where each line of a text is read in a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transduce.commands.options import Device, Overwrite


def align(
    audio: Annotated[Path, typer.Argument(metavar="AUDIO", help="A recording of any length.")],
    text: Annotated[
        Path, typer.Argument(metavar="TEXT", help="What is read in it, one utterance a line.")
    ],
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="A model of sound with CTC.")
    ] = None,
    grid: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Or a TextGrid whose tier seg has numbers of lines."),
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="Of the text, such as en or pt-BR, for a model of phones.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="What the recording has as a tag; repeatable.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Default: AUDIO without its ending.")
    ] = None,
    least: Annotated[
        float, typer.Option(min=0, max=1, help="Confidence of what is fit to train from.")
    ] = 0.3,
    device: Device = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Find where each line of a text is read in a long recording."""
    from transduce.alignment.show import align_and_tell

    align_and_tell(audio, text, model, grid, language, to, least, device, overwrite, tags=tag or [])
