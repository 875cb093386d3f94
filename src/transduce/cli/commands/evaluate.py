"""The command evaluate: compute metrics on a test set."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transduce.cli.commands.options import (
    EVALUATION_SETTINGS,
    AdapterOption,
    Base,
    Beam,
    ChunkMs,
    CoveragePenalty,
    CtcWeight,
    DataOverrides,
    Device,
    EngineOption,
    EnsembleOption,
    Fallback,
    Geometric,
    LanguageModel,
    LengthPenalty,
    LmWeight,
    MaxLength,
    Mbr,
    MinLength,
    ModelArgument,
    NoRepeatNgram,
    Only,
    Overwrite,
    Precision,
    Rerank,
    RerankWeight,
    Sample,
    Samples,
    SamplingSeed,
    Temperature,
    TopK,
    TopP,
    Unknown,
    Workers,
    chosen,
    count_processes,
    given_settings,
)

if TYPE_CHECKING:
    from transduce.evaluation.result import Evaluation
    from transduce.tasks import Model


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
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    coverage_penalty: CoveragePenalty = None,
    sample: Sample = False,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: SamplingSeed = 1,
    mbr: Mbr = None,
    samples: Samples = 32,
    no_repeat_ngram: NoRepeatNgram = None,
    min_length: MinLength = 0,
    max_length: MaxLength = None,
    only: Only = None,
    unknown: Unknown = True,
    geometric: Geometric = False,
    rerank: Rerank = None,
    rerank_weight: RerankWeight = 1.0,
    language_model: LanguageModel = None,
    lm_weight: LmWeight = 0.3,
    ctc_weight: CtcWeight = None,
    chunk_ms: ChunkMs = None,
    fallback: Fallback = False,
    metrics: Annotated[
        str | None, typer.Option(help="Such as bleu,chrf,ter. Default: as in the recipe.")
    ] = None,
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
    ensemble: EnsembleOption = None,
    adapter: AdapterOption = None,
    base: Base = None,
    engine: EngineOption = None,
    device: Device = "auto",
    precision: Precision = "auto",
    workers: Workers = 0,
    overwrite: Overwrite = False,
) -> None:
    """Evaluate a model on its test set. Writes metrics, hypotheses and card to its folder."""
    asked = locals()
    processes = count_processes(workers, many=True)
    from transduce.cli.printing import print_metrics
    from transduce.errors import ModelError
    from transduce.evaluation.evaluate import evaluate_folder
    from transduce.evaluation.item_results import write_item_results
    from transduce.hardware import pick_device
    from transduce.hub.locate import in_hub_cache
    from transduce.interop.engine import exported_folder, open_model
    from transduce.storage import check_free
    from transduce.tasks.transduce import load

    check_free([] if items is None else [items], overwrite)
    cached = in_hub_cache(model)
    if report and cached:
        raise ModelError(
            "--report is written into the model's folder; copy this one out of the "
            "hub's cache first, and evaluate the copy"
        )
    place = str(pick_device(device))
    transducer = open_model(model, engine, device, precision, adapter=adapter, base=base)
    transducer.workers = processes
    folder = model if engine is None else exported_folder(model, engine)
    evaluation = evaluate_folder(
        transducer,
        folder,
        tell=print_metrics,
        overrides=overrides or [],
        by=by or ("length" if report else None),
        lines=items is not None,
        write=not cached,
        split=split,
        files=(source, target),
        metrics=metrics,
        ensemble=[load(other, place, precision) for other in ensemble or []],
        with_folders=ensemble or [],
        adapter=adapter,
        beside={
            name: (load(other, place, precision), other)
            for name, other in (("rerank", rerank), ("language_model", language_model))
            if other is not None
        },
        **given_settings(**chosen((*EVALUATION_SETTINGS, "chunk_ms", "fallback"), asked)),
    )
    if cached:
        print("transduce: the model is in the hub's cache: no results are kept", file=sys.stderr)
    else:
        if evaluation.name != split:
            print(f"transduce: saved as {evaluation.name} in {folder}", file=sys.stderr)
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
            print(f"transduce: {problem or f'the report is {folder}/report.html'}", file=sys.stderr)
    if notice := write_card(model, folder):
        print(f"transduce: {notice}", file=sys.stderr)
