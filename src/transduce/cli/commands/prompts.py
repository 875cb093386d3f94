"""The command prompts: compare a language model's continuations of several prompts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from transduce.cli.commands.options import (
    NONE_GIVEN,
    SAMPLING,
    DecodingOptions,
    Device,
    ModelArgument,
    Overwrite,
    Precision,
)


def prompts(
    model: ModelArgument,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="PROMPTS", help="A file with one prompt per line; a line may be empty."
        ),
    ],
    length: Annotated[int, typer.Option(min=1, help="Tokens to generate after each prompt.")] = 40,
    settings: Annotated[Mapping[str, Any], DecodingOptions("beam", *SAMPLING)] = NONE_GIVEN,
    output: Annotated[
        Path | None, typer.Option(help="Write an HTML page that shows every step.")
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """Compare a language model's predictions after prompts."""
    from transduce.cli.input import read_prompts
    from transduce.hardware import pick_device
    from transduce.inspection.prompts import compare_folder, print_comparison, write_prompts
    from transduce.storage import check_free

    check_free([output] if output is not None else [], overwrite)
    comparison = compare_folder(
        model,
        read_prompts(file),
        str(pick_device(device)),
        precision,
        max_length=length,
        **settings,
    )
    if output is not None:
        write_prompts(comparison, output)
    print_comparison(comparison)
    if output is not None:
        print(f"The page is {output}: open it in a browser.")
