"""The command evaluate: compute metrics on a test set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transduce.cli.commands.options import (
    NONE_GIVEN,
    OPTIONS,
    DataOverrides,
    DecodingOptions,
    Loading,
    LoadingOptions,
    ModelArgument,
    Overwrite,
    count_processes,
)
from transduce.terminal import say

if TYPE_CHECKING:
    from transduce.evaluation.results import Evaluation
    from transduce.tasks import Model

# One output of each source is evaluated, as the model gives it: without what a person adds to one.
NOT_EVALUATED = (
    *("nbest", "groups", "diversity", "tags", "prefix", "include", "exclude"),
    "glossary",
    *("source_language", "target_language"),
    *("language", "task", "timestamps", "prompt", "previous_text"),
)
EvaluationSettings = Annotated[
    Mapping[str, Any], DecodingOptions(*(name for name in OPTIONS if name not in NOT_EVALUATED))
]


def evaluate(
    model: ModelArgument,
    overrides: DataOverrides = None,
    split: Annotated[
        str, typer.Option(help="test, valid, or another split of a named corpus.")
    ] = "test",
    source: Annotated[
        Path | None,
        typer.Option(help="Evaluate on this file: sources, one per line; or a table, or a text."),
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="The references for --source, one per line.")
    ] = None,
    settings: EvaluationSettings = NONE_GIVEN,
    metrics: Annotated[
        str | None, typer.Option(help="Such as bleu,chrf,ter. Default: as in the recipe.")
    ] = None,
    normalize: Annotated[
        str,
        typer.Option(
            help="What is no error, on both sides: lower, punctuation, numbers (in English); "
            "separated by commas."
        ),
    ] = "",
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="Slices: the scores by length, tag, group, label, (word) frequency, or a COLUMN.",
        ),
    ] = None,
    items: Annotated[
        Path | None,
        typer.Option("--items", help="Write the result of every item to this file (JSON Lines)."),
    ] = None,
    report: Annotated[
        bool,
        typer.Option(
            "--report", help="Write report.html into the model's folder: all in one page."
        ),
    ] = False,
    loading: LoadingOptions = Loading(),  # noqa: B008
    overwrite: Overwrite = False,
) -> None:
    """Evaluate a model on its test set. Writes metrics, hypotheses and card to its folder."""
    count_processes(loading.workers, many=True)  # before torch is loaded
    from transduce.cli.printing import print_metrics
    from transduce.errors import ModelError
    from transduce.evaluation.evaluate import evaluate_folder
    from transduce.evaluation.results import write_item_results
    from transduce.hardware import pick_device
    from transduce.hub import in_hub_cache
    from transduce.interop.engine import exported_folder
    from transduce.storage import check_free
    from transduce.tasks.transduce import load_others

    check_free([] if items is None else [items], overwrite)
    cached = in_hub_cache(model)
    if report and cached:
        raise ModelError(
            "--report is written into the model's folder; copy this one out of the "
            "hub's cache first, and evaluate the copy"
        )
    place = str(pick_device(loading.device))
    transducer = loading.open(model, many=True, settings=settings)
    folder = model if loading.engine is None else exported_folder(model, loading.engine)
    decoding = load_others(settings, place, loading.precision)
    beside = {name: decoding.pop(name) for name in ("rerank", "language_model") if name in decoding}
    evaluation = evaluate_folder(
        transducer,
        folder,
        on_measured=print_metrics,
        overrides=overrides or [],
        by=by or ("length" if report else None),
        lines=items is not None,
        write=not cached,
        split=split,
        files=(source, target),
        metrics=metrics,
        normalize=normalize,
        ensemble=decoding.pop("ensemble", None),
        with_folders=settings.get("ensemble", []),
        adapter=loading.adapter,
        beside={name: (other, settings[name]) for name, other in beside.items()},
        **decoding,
    )
    if cached:
        say("the model is in the hub's cache: no results are kept")
    else:
        if evaluation.name != split:
            say(f"saved as {evaluation.name} in {folder}")
        if transducer.engine is None:
            _write_pages(transducer, model, evaluation, report, overwrite)
    # Last: a command that was killed before can be repeated without --overwrite.
    if items is not None:
        write_item_results(items, transducer, evaluation)


def _write_pages(
    model: Model, folder: Path, evaluation: Evaluation, report: bool, overwrite: bool
) -> None:
    """The report, where it is asked for or is there already, and the card, with the new scores."""
    from transduce.checksums import is_ours
    from transduce.inspection.model_card import write_card
    from transduce.inspection.report import write_report
    from transduce.tasks.folder import RUN_REPORT

    if report or is_ours(folder / RUN_REPORT):
        problem = write_report(model, folder, evaluation, overwrite)
        if report:
            say(f"{problem or f'the report is {folder}/report.html'}")
    if notice := write_card(model, folder):
        say(notice)
