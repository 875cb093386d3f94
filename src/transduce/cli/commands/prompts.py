"""The command prompts: compare a language model's continuations of several prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.commands.options import (
    Beam,
    Device,
    ModelArgument,
    Overwrite,
    Precision,
    Sample,
    SamplingSeed,
    Temperature,
    TopK,
    TopP,
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
    beam: Beam = None,
    sample: Sample = False,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: SamplingSeed = 1,
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
    from transduce.inspection.html import write_prompts
    from transduce.inspection.prompt_table import print_comparison
    from transduce.inspection.prompts import compare_folder
    from transduce.storage import check_free

    check_free([output] if output is not None else [], overwrite)
    comparison = compare_folder(
        model,
        read_prompts(file),
        str(pick_device(device)),
        precision,
        max_length=length,
        beam=beam,
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    if output is not None:
        write_prompts(comparison, output)
    print_comparison(comparison)
    if output is not None:
        print(f"The page is {output}: open it in a browser.")
