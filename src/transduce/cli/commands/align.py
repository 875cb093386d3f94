"""The command align: forced alignment of a transcript with a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.commands.options import Device, Overwrite, model_folder


def align(
    audio: Annotated[Path, typer.Argument(metavar="AUDIO", help="A recording of any length.")],
    text: Annotated[
        Path, typer.Argument(metavar="TEXT", help="Its transcript, one utterance per line.")
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL", help="A speech model: with CTC, or Whisper.", parser=model_folder
        ),
    ] = None,
    textgrid: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Or a TextGrid whose tier `seg` has the line numbers of TEXT."
        ),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(help="Language of the text, such as en; for a model of phones, or Whisper."),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="Tag of the recording, such as its language; repeatable."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Output folder. Default: AUDIO without its extension."),
    ] = None,
    min_confidence: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Lowest confidence of segments written to the training table."
        ),
    ] = 0.3,
    device: Device = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Forced alignment of a transcript with a long recording."""
    from transduce.alignment.show import align_and_print

    align_and_print(
        audio,
        text,
        model,
        textgrid,
        language,
        output,
        min_confidence,
        device,
        overwrite,
        tags=tag or [],
    )
