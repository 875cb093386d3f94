"""The command merge: an adapter and the model beneath it become one ordinary model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.commands.options import Base


def merge(
    adapter: Annotated[
        Path, typer.Argument(metavar="ADAPTER", help="The folder of an adapter, also PEFT's.")
    ],
    *,
    output: Annotated[Path, typer.Option(help="The model folder to write.")],
    base: Base = None,
) -> None:
    """Merge an adapter into its model: an ordinary model folder."""
    from transduce.cli.try_model import run_command
    from transduce.interop.adapters import merge_folder

    model = merge_folder(adapter, output, base)
    parameters = sum(weight.numel() for weight in model.network.parameters())
    print(f"{adapter}: merged, {parameters:,} parameters.")
    print(f"The model is in {output}. Try:\n  {run_command(output, model.recipe)}")
