"""The command compare: models on the same data, with significance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from transduce.cli.commands.options import (
    NONE_GIVEN,
    DecodingOptions,
    Device,
    Overwrite,
    Precision,
    Workers,
    count_processes,
    model_folder,
)
from transduce.terminal import say


def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL MODEL... [KEY=VALUE...]",
            help="Model folders; all others are compared with the first. Overrides are of the "
            "first one's recipe, e.g. data.folder=../corpora where files have moved.",
        ),
    ],
    split: Annotated[str, typer.Option(help="test, valid, or another of a named corpus.")] = "test",
    source: Annotated[
        Path | None, typer.Option(help="Compare on this file instead, one a line (or a table);")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="with the targets in this one.")] = None,
    metrics: Annotated[
        str | None, typer.Option(help="Such as bleu,chrf,ter. Default: as in the first's recipe.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many pairs.")] = None,
    resamples: Annotated[
        int, typer.Option(min=1, help="Bootstrap resamples of the test set.")
    ] = 1000,
    examples: Annotated[
        int, typer.Option(min=0, help="Items to show, those that differ most.")
    ] = 5,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write a page for a browser (.html) with outputs side by side, or .json."
        ),
    ] = None,
    settings: Annotated[Mapping[str, Any], DecodingOptions("beam", "length_penalty")] = NONE_GIVEN,
    device: Device = "auto",
    precision: Precision = "auto",
    workers: Workers = 0,
    overwrite: Overwrite = False,
) -> None:
    """Compare models by paired bootstrap resampling.

    All run on the same test set; differences from the first have 95 % intervals and p-values.
    """
    processes = count_processes(workers, many=True)
    from transduce.cli.tables import print_comparison
    from transduce.errors import ModelError
    from transduce.evaluation.compare import compare_models
    from transduce.hardware import pick_device
    from transduce.inspection.compare_page import write_comparison
    from transduce.storage import check_free, check_name, make_folder, write_json
    from transduce.tasks.transduce import load

    folders = [model_folder(one) for one in models if "=" not in one or Path(one).exists()]
    overrides = [one for one in models if "=" in one and not Path(one).exists()]
    if len(folders) < 2:
        raise ModelError("compare needs two models or more: transduce compare MODEL MODEL...")
    check_name(output, (".html", ".json"))
    check_free([] if output is None else [output], overwrite)
    place = str(pick_device(device))
    loaded = [load(folder, place, precision) for folder in folders]
    for model in loaded:
        model.workers = processes
    comparison = compare_models(
        list(zip(_names(folders), loaded, strict=True)),
        folders[0],
        split=split,
        files=(source, target),
        metrics=metrics,
        overrides=overrides,
        limit=limit,
        resamples=resamples,
        **settings,
    )
    print_comparison(comparison, examples)
    if output is None:
        return
    if output.suffix == ".json":
        make_folder(output.parent)
        write_json(output, comparison.to_json())
    else:
        write_comparison(comparison, loaded, output)
    say(f"written to {output}")


def _names(folders: list[Path]) -> list[str]:
    """What each model is called: the name of its folder, or its path where two have one name."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]
