"""The command run: a model does what it has learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from transduce.commands.options import (
    Beam,
    Device,
    EngineOption,
    LengthPenalty,
    ModelArgument,
    Overwrite,
    Precision,
    Sample,
    SamplingSeed,
    Temperature,
    TopK,
    TopP,
    WithModels,
    Workers,
    count_processes,
)


def run(
    model: ModelArgument,
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE...", help="What to transduce; without it, standard input."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--input", "-i", help="A file, one source a line; .jsonl: one object; .conllu."
        ),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="What each source has as a tag; repeatable.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="What each output begins with.")] = "",
    include: Annotated[
        list[str] | None, typer.Option(help="A phrase each output must contain; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="A phrase no output may contain; repeatable.")
    ] = None,
    beam: Beam = None,
    nbest: Annotated[int, typer.Option(help="Hypotheses printed for each source.")] = 1,
    length_penalty: LengthPenalty = None,
    coverage: Annotated[
        float | None, typer.Option(help="What unattended source tokens cost; 0 for nothing.")
    ] = None,
    groups: Annotated[int, typer.Option(help="Parts of the beam that avoid each other.")] = 1,
    diversity: Annotated[float, typer.Option(help="How much groups avoid each other.")] = 0.5,
    sample: Sample = False,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: SamplingSeed = 1,
    mbr: Annotated[
        str | None, typer.Option(help="chrf or bleu: the sample most like all the others.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Samples that --mbr chooses from.")] = 32,
    no_repeat: Annotated[
        int | None, typer.Option(help="Write no sequence of so many tokens twice; 0: any.")
    ] = None,
    min_length: Annotated[int, typer.Option(help="Tokens of the shortest output.")] = 0,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of the longest output. Default: as in the recipe.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Write only tokens of this text; repeatable.")
    ] = None,
    unknown: Annotated[
        bool, typer.Option("--unknown/--no-unknown", help="Whether <unk> may be written.")
    ] = True,
    with_models: WithModels = None,
    geometric: Annotated[
        bool, typer.Option("--geometric", help="Average log-probabilities of --with.")
    ] = False,
    rescore: Annotated[
        Path | None, typer.Option(help="A second model that judges the hypotheses too.")
    ] = None,
    rescore_weight: Annotated[float, typer.Option(help="How much --rescore counts.")] = 1.0,
    language_model: Annotated[
        Path | None, typer.Option(help="A language model that judges every token too.")
    ] = None,
    language_weight: Annotated[float, typer.Option(help="How much --language-model counts.")] = 0.3,
    ctc: Annotated[
        float | None, typer.Option(help="Of sound, CTC's share: 0 to 1. Default: as in the recipe.")
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Print each score first.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a source.")] = False,
    kind: Annotated[
        str, typer.Option("--format", help="text or json; of sound also srt, vtt, textgrid.")
    ] = "text",
    output: Annotated[
        Path | None, typer.Option(help="A folder for srt, vtt or textgrid, one file a recording.")
    ] = None,
    overwrite: Overwrite = False,
    engine: EngineOption = None,
    device: Device = "auto",
    precision: Precision = "auto",
    workers: Workers = 0,
) -> None:
    """Do what the model does: pronounce, translate, ... Results stream in the order of sources."""
    processes = count_processes(workers, many=file is not None or not sources)
    from transduce.console import output_format, print_outputs, print_recordings, print_tagged
    from transduce.hardware import keep_loaded, pick_device
    from transduce.inputs import check_tags, conllu_input, in_turn, read_requests, read_sources
    from transduce.interop.engine import open_model
    from transduce.tasks import Listening
    from transduce.transducer import load

    place = str(pick_device(device))
    transducer = open_model(model, engine, device, precision)
    transducer.workers = processes
    check_tags(transducer, tag or [])
    tagged = conllu_input(sources, file)
    if tagged is not None:
        print_tagged(transducer, tagged)
        raise typer.Exit
    form = output_format("json" if json else kind, output, transducer)
    others = [load(other, place, precision) for other in with_models or []]
    judge = None if rescore is None else load(rescore, place)
    language = None if language_model is None else load(language_model, place, precision)
    for one in (transducer, *others, language):
        if one is not None:
            one.freeze()
    keep_loaded()
    settings: dict[str, tuple[Any, Any]] = {
        "beam": (beam, None),
        "nbest": (nbest, 1),
        "length_penalty": (length_penalty, None),
        "coverage": (coverage, None),
        "groups": (groups, 1),
        "diversity": (diversity, 0.5),
        "sample": (sample, False),
        "temperature": (temperature, 1.0),
        "top_k": (top_k, 0),
        "top_p": (top_p, 1.0),
        "seed": (seed, 1),
        "mbr": (mbr, None),
        "samples": (samples, 32),
        "no_repeat": (no_repeat, None),
        "min_length": (min_length, 0),
        "max_length": (max_length, None),
        "only": (only, None),
        "unknown": (unknown, True),
        "with_models": (others, []),
        "geometric": (geometric, False),
        "rescore": (judge, None),
        "rescore_weight": (rescore_weight, 1.0),
        "language_model": (language, None),
        "language_weight": (language_weight, 0.3),
        "ctc": (ctc, None),
    }
    # Only what was asked for: a model of another task knows other settings.
    asked = {name: value for name, (value, usual) in settings.items() if value != usual}
    if isinstance(transducer, Listening):
        wishes = {"prefix": prefix, "include": include, "exclude": exclude, "tags": tag}
        asked |= {name: value for name, value in wishes.items() if value}
        failed = print_recordings(
            transducer,
            read_sources(sources, file),
            form,
            output,
            asked,
            scores=scores,
            numbered=nbest > 1,
            overwrite=overwrite,
            named=len(sources or ()) > 1,  # those of a list are in its order
        )
        raise typer.Exit(1 if failed else 0)
    at_once = 1
    if transducer.engine:
        at_once = transducer.engine.at_once if file else 1
        asked["scores"] = scores or json or nbest > 1  # an engine has to work for them
    requests = read_requests(sources, file, prefix, include or [], exclude or [], tag or [])
    outputs = in_turn(lambda request: transducer.run(**request, **asked), requests, at_once)
    print_outputs(
        outputs,
        scores=scores,
        as_json=form == "json",
        numbered=nbest > 1,
        show=transducer.show,
        whole=transducer.recipe.task == "continue",  # such a text has lines of its own
    )
