"""The command import: a model of another toolkit becomes a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder or file of another toolkit, or hf://user/name[@revision].",
        ),
    ],
    *,
    output: Annotated[Path, typer.Option(help="The model folder to write.")],
    source_language: Annotated[
        str | None, typer.Option(help="Of a model of many languages: what it translates from.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="What it translates to; `run` may choose others.")
    ] = None,
) -> None:
    """Import a model of another toolkit."""
    from transduce.cli.try_model import run_command
    from transduce.interop.imports.registry import import_model

    model, kind = import_model(source, output, (source_language, target_language))
    parameters = sum(weight.numel() for weight in model.network.parameters())
    print(f"{source}: {kind}, {parameters:,} parameters.")
    print(f"The model is in {output}. Try:\n  {run_command(output, model.recipe, '')}")
