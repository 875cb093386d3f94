"""The command ablate: how much each attention head matters, and pruning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from transduce.cli.commands.options import (
    NONE_GIVEN,
    DataOverrides,
    DecodingOptions,
    Device,
    ModelArgument,
    Overwrite,
    Precision,
)
from transduce.terminal import say


def ablate(
    model: ModelArgument,
    overrides: DataOverrides = None,
    metric: Annotated[
        str,
        typer.Option(help="loss (teacher forcing, fast), or a metric of the task: bleu, wer, ..."),
    ] = "loss",
    split: Annotated[
        str, typer.Option(help="valid, test, or another of a named corpus.")
    ] = "valid",
    source: Annotated[
        Path | None, typer.Option(help="Measure on this file instead, one a line (or a table);")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="with the targets in this one.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Only the first so many pairs.")] = 500,
    prune: Annotated[
        int | None,
        typer.Option(
            "--prune",
            metavar="KEEP",
            help="Keep so many heads, and save the smaller model in the folder --output.",
        ),
    ] = None,
    candidates: Annotated[
        int,
        typer.Option(
            min=0, help="Heads tried at each step of pruning, those that hurt least; 0: all left."
        ),
    ] = 4,
    output: Annotated[
        Path | None,
        typer.Option(help="A page (.html), numbers (.json) or heat maps (.png, .svg, .pdf)."),
    ] = None,
    settings: Annotated[Mapping[str, Any], DecodingOptions("beam")] = NONE_GIVEN,
    device: Device = "auto",
    precision: Precision = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Measure how much each attention head matters; prune heads.

    Every head is switched off in turn; then those that hurt least are removed one by one.
    """
    from transduce.cli.tables import print_ablation, progress
    from transduce.errors import ModelError
    from transduce.hardware import pick_device
    from transduce.inspection.ablation.measure import (
        make_trial,
        measure_heads,
        prune_greedily,
        save_pruned,
    )
    from transduce.inspection.ablation.show import FORMATS, Ablation, write_ablation
    from transduce.storage import check_free, check_name
    from transduce.tasks.members import folder_in_use
    from transduce.tasks.transduce import load

    if prune is None:
        check_name(output, FORMATS)
        check_free([] if output is None else [output], overwrite)
    elif output is None or output.suffix in FORMATS:
        raise ModelError("--prune saves a model: name its folder with --output")
    loaded = load(folder_in_use(model), str(pick_device(device)), precision, members=False)
    trial, corpus = make_trial(
        loaded, model, metric, split, (source, target), limit, overrides or [], dict(settings)
    )
    if prune is not None and not len({one.part for one in trial.heads}) <= prune < len(trial.heads):
        raise ModelError(
            f"--prune is {prune}; the model has {len(trial.heads)} heads, and each of its "
            f"{len({one.part for one in trial.heads})} attention layers keeps one"
        )
    with progress("heads") as on_progress:
        value, importances = measure_heads(trial, on_progress=on_progress)
    with progress("pruning") as on_progress:
        removals = prune_greedily(
            trial, importances, keep=prune, candidates=candidates, on_progress=on_progress
        )
    name = model.resolve().name
    found = Ablation(name, metric, value, corpus, len(trial.items), importances, removals)
    print_ablation(found)
    if prune is not None and output is not None:
        off = [step.head for step in removals]
        sources = [item.source for item in trial.items]
        saved = save_pruned(loaded, model, off, sources, output)
        write_ablation(found, output / "ablation.html")
        before, after = saved.seconds
        print(
            f"{saved.parameters[0]:,} parameters before, {saved.parameters[1]:,} after "
            f"({saved.parameters[1] / saved.parameters[0] - 1:+.1%}); "
            f"{saved.bytes[0]:,} bytes of weights before, {saved.bytes[1]:,} after; "
            f"{saved.sources} sources in {before:.3f} s before, {after:.3f} s after "
            f"({before / after:.2f} times as fast)"
        )
        say(f"the pruned model is in {output}")
    elif output is not None:
        write_ablation(found, output)
        say(f"written to {output}")
