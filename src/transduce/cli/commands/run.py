"""The command run: apply a trained model to sources."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from transduce.cli.commands.options import (
    Beam,
    Device,
    EngineOption,
    EnsembleOption,
    LengthPenalty,
    ModelArgument,
    Overwrite,
    Precision,
    Sample,
    SamplingSeed,
    Temperature,
    TopK,
    TopP,
    Workers,
    count_processes,
)


def run(
    model: ModelArgument,
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE...", help="Texts or audio files. Default: standard input."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            help="A file with one source per line; .jsonl with one object per line; .conllu.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="Tag of each source, such as its language; repeatable.")
    ] = None,
    prefix: Annotated[
        str, typer.Option(help="Prefix constraint: each output begins with this text.")
    ] = "",
    include: Annotated[
        list[str] | None,
        typer.Option(help="Constraint: a phrase each output must contain; repeatable."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Constraint: a phrase no output may contain; repeatable."),
    ] = None,
    beam: Beam = None,
    nbest: Annotated[
        int, typer.Option(help="Size of the n-best list printed for each source.")
    ] = 1,
    length_penalty: LengthPenalty = None,
    coverage_penalty: Annotated[
        float | None,
        typer.Option(help="Coverage penalty for source tokens without attention; 0: off."),
    ] = None,
    groups: Annotated[
        int, typer.Option(help="Diverse beam search: number of groups; 1: plain beam search.")
    ] = 1,
    diversity: Annotated[
        float, typer.Option(help="Diverse beam search: penalty for tokens of earlier groups.")
    ] = 0.5,
    sample: Sample = False,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: SamplingSeed = 1,
    mbr: Annotated[
        str | None,
        typer.Option(help="Minimum Bayes risk decoding with samples; utility: chrf or bleu."),
    ] = None,
    samples: Annotated[int, typer.Option(help="Number of samples for --mbr.")] = 32,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(help="Repeat no n-gram of this size; 0: off.")
    ] = None,
    min_length: Annotated[int, typer.Option(help="Minimum length of an output, in tokens.")] = 0,
    max_length: Annotated[
        int | None,
        typer.Option(help="Maximum length of an output, in tokens. Default: as in the recipe."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Vocabulary constraint: use only tokens of this text; repeatable."),
    ] = None,
    unknown: Annotated[
        bool, typer.Option("--unknown/--no-unknown", help="Whether outputs may contain <unk>.")
    ] = True,
    ensemble: EnsembleOption = None,
    geometric: Annotated[
        bool,
        typer.Option(
            "--geometric",
            help="Average the log-probabilities of an ensemble, not the probabilities.",
        ),
    ] = False,
    rerank: Annotated[
        Path | None, typer.Option(help="Rerank the n-best list with this second model.")
    ] = None,
    rerank_weight: Annotated[float, typer.Option(help="Weight of the --rerank model.")] = 1.0,
    language_model: Annotated[
        Path | None, typer.Option(help="Shallow fusion with this language model.")
    ] = None,
    lm_weight: Annotated[
        float, typer.Option(help="Weight of the language model (shallow fusion).")
    ] = 0.3,
    ctc_weight: Annotated[
        float | None,
        typer.Option(help="Speech: weight of CTC in search, 0 to 1. Default: as in the recipe."),
    ] = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Print the score before each output.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per source.")] = False,
    kind: Annotated[
        str, typer.Option("--format", help="text or json; for speech also srt, vtt or textgrid.")
    ] = "text",
    output: Annotated[
        Path | None, typer.Option(help="Folder for srt, vtt or textgrid files, one per recording.")
    ] = None,
    overwrite: Overwrite = False,
    engine: EngineOption = None,
    device: Device = "auto",
    precision: Precision = "auto",
    workers: Workers = 0,
) -> None:
    """Run a model: translate, transcribe, classify or tag. Results stream in input order."""
    processes = count_processes(workers, many=file is not None or not sources)
    from transduce.cli.input import (
        check_tags,
        conllu_input,
        read_requests,
        read_sources,
        run_in_order,
    )
    from transduce.cli.printing import output_format, print_outputs, print_recordings, print_tagged
    from transduce.hardware import keep_loaded, pick_device
    from transduce.interop.engine import open_model
    from transduce.tasks import AudioInputModel
    from transduce.tasks.transduce import load

    place = str(pick_device(device))
    transducer = open_model(model, engine, device, precision)
    transducer.workers = processes
    check_tags(transducer, tag or [])
    tagged = conllu_input(sources, file)
    if tagged is not None:
        print_tagged(transducer, tagged)
        raise typer.Exit
    form = output_format("json" if json else kind, output, transducer)
    others = [load(other, place, precision) for other in ensemble or []]
    reranker = None if rerank is None else load(rerank, place)
    language = None if language_model is None else load(language_model, place, precision)
    for one in (transducer, *others, language):
        if one is not None:
            one.freeze()
    keep_loaded()
    settings: dict[str, tuple[Any, Any]] = {
        "beam": (beam, None),
        "nbest": (nbest, 1),
        "length_penalty": (length_penalty, None),
        "coverage_penalty": (coverage_penalty, None),
        "groups": (groups, 1),
        "diversity": (diversity, 0.5),
        "sample": (sample, False),
        "temperature": (temperature, 1.0),
        "top_k": (top_k, 0),
        "top_p": (top_p, 1.0),
        "seed": (seed, 1),
        "mbr": (mbr, None),
        "samples": (samples, 32),
        "no_repeat_ngram": (no_repeat_ngram, None),
        "min_length": (min_length, 0),
        "max_length": (max_length, None),
        "only": (only, None),
        "unknown": (unknown, True),
        "ensemble": (others, []),
        "geometric": (geometric, False),
        "rerank": (reranker, None),
        "rerank_weight": (rerank_weight, 1.0),
        "language_model": (language, None),
        "lm_weight": (lm_weight, 0.3),
        "ctc_weight": (ctc_weight, None),
    }
    # Only settings that differ from their default: models of other tasks have other settings.
    given = {name: value for name, (value, usual) in settings.items() if value != usual}
    if isinstance(transducer, AudioInputModel):
        constraints = {"prefix": prefix, "include": include, "exclude": exclude, "tags": tag}
        given |= {name: value for name, value in constraints.items() if value}
        failed = print_recordings(
            transducer,
            read_sources(sources, file),
            form,
            output,
            given,
            scores=scores,
            numbered=nbest > 1,
            overwrite=overwrite,
            named=len(sources or ()) > 1,  # outputs for a list file follow its order
        )
        raise typer.Exit(1 if failed else 0)
    at_once = 1
    if transducer.engine:
        at_once = transducer.engine.at_once if file else 1
        given["scores"] = scores or json or nbest > 1  # they cost an engine extra time
    requests = read_requests(sources, file, prefix, include or [], exclude or [], tag or [])
    outputs = run_in_order(lambda request: transducer.run(**request, **given), requests, at_once)
    print_outputs(
        outputs,
        scores=scores,
        as_json=form == "json",
        numbered=nbest > 1,
        show=transducer.show,
        multiline=transducer.recipe.task == "continue",
    )
