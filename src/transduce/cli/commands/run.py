"""The command run: apply a trained model to sources."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.commands.options import (
    SEARCH_SETTINGS,
    AdapterOption,
    Base,
    Beam,
    ChunkMs,
    CoveragePenalty,
    CtcWeight,
    Device,
    Diversity,
    EngineOption,
    EnsembleOption,
    Exclude,
    Fallback,
    Geometric,
    Groups,
    Include,
    Language,
    LanguageModel,
    LengthPenalty,
    LmWeight,
    MaxLength,
    Mbr,
    MinLength,
    ModelArgument,
    Nbest,
    NoRepeatNgram,
    Only,
    Overwrite,
    Precision,
    Prefix,
    PreviousText,
    Prompt,
    Rerank,
    RerankWeight,
    Sample,
    Samples,
    SamplingSeed,
    SpeechTask,
    Tag,
    Temperature,
    Timestamps,
    TopK,
    TopP,
    Unknown,
    Workers,
    chosen,
    count_processes,
    given_settings,
)
from transduce.errors import DataError, ModelError


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
    tag: Tag = None,
    source_language: Annotated[
        str | None, typer.Option(help="Of the sources, where the model has a token for each.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="Of the outputs, where the model has a token for each.")
    ] = None,
    prefix: Prefix = "",
    include: Include = None,
    exclude: Exclude = None,
    beam: Beam = None,
    nbest: Nbest = 1,
    length_penalty: LengthPenalty = None,
    coverage_penalty: CoveragePenalty = None,
    groups: Groups = 1,
    diversity: Diversity = 0.5,
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
    ensemble: EnsembleOption = None,
    geometric: Geometric = False,
    rerank: Rerank = None,
    rerank_weight: RerankWeight = 1.0,
    language_model: LanguageModel = None,
    lm_weight: LmWeight = 0.3,
    ctc_weight: CtcWeight = None,
    chunk_ms: ChunkMs = None,
    language: Language = None,
    task: SpeechTask = None,
    timestamps: Timestamps = None,
    prompt: Prompt = "",
    previous_text: PreviousText = False,
    fallback: Fallback = False,
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
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Print what is said while it is said: of the microphone, or of one recording, "
            "played in real time. Ctrl-C ends.",
        ),
    ] = False,
    times: Annotated[
        bool,
        typer.Option("--times", help="With --live: the second at which each utterance begins."),
    ] = False,
    rate: Annotated[
        int | None,
        typer.Option(
            min=1000,
            help="Samples a second of raw audio (16 bits, mono, no header): of .raw and .pcm "
            "files, and of standard input (-).",
        ),
    ] = None,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Of a truncated or damaged recording, use what there is."),
    ] = False,
    adapter: AdapterOption = None,
    base: Base = None,
    engine: EngineOption = None,
    device: Device = "auto",
    precision: Precision = "auto",
    workers: Workers = 0,
) -> None:
    """Run a model: translate, transcribe, classify or tag. Results stream in input order."""
    asked = locals()
    if times and not live:
        raise ModelError("--times is for --live; for recordings, use --format json, srt or vtt")
    if live and file is not None:
        raise DataError("--live takes a recording as an argument, not --input")
    processes = count_processes(workers, many=file is not None or not sources)
    from transduce.cli.input import (
        check_tags,
        conllu_input,
        read_requests,
        read_sources,
        run_in_order,
    )
    from transduce.cli.live import run_live
    from transduce.cli.printing import output_format, print_outputs, print_recordings, print_tagged
    from transduce.hardware import keep_loaded, pick_device
    from transduce.interop.engine import open_model
    from transduce.tasks import AudioInputModel
    from transduce.tasks.transduce import load

    place = str(pick_device(device))
    transducer = open_model(model, engine, device, precision, adapter=adapter, base=base)
    transducer.workers = processes
    check_tags(transducer, tag or [])
    tagged = conllu_input(sources, file)
    if tagged is not None:
        print_tagged(transducer, tagged)
        raise typer.Exit
    form = output_format("json" if json else kind, output, transducer)
    others = [load(other, place, precision) for other in ensemble or []]
    reranker = None if rerank is None else load(rerank, place)
    fused = None if language_model is None else load(language_model, place, precision)
    for one in (transducer, *others, fused):
        if one is not None:
            one.freeze()
    if live and not isinstance(transducer, AudioInputModel):
        raise ModelError("--live needs a model that transcribes speech")
    if (rate or partial) and (live or not isinstance(transducer, AudioInputModel)):
        raise ModelError("--rate and --partial are for recordings; leave them out")
    keep_loaded()
    given = given_settings(
        **chosen(SEARCH_SETTINGS, asked),
        ensemble=others,
        rerank=reranker,
        language_model=fused,
        chunk_ms=chunk_ms,
        language=language,
        task=task,
        timestamps=timestamps,
        prompt=prompt,
        previous_text=previous_text,
        fallback=fallback,
    )
    languages = {"source_language": source_language, "target_language": target_language}
    given |= {name: value for name, value in languages.items() if value is not None}
    if isinstance(transducer, AudioInputModel):
        constraints = {"prefix": prefix, "include": include, "exclude": exclude, "tags": tag}
        given |= {name: value for name, value in constraints.items() if value}
        if live:
            run_live(transducer, list(sources or ()), form, times, given)
            raise typer.Exit
        from transduce.cli.audio_sources import (
            STANDARD_INPUT,
            audio_sources,
            is_audio,
            standard_input,
        )

        piped = not sources and file is None and sys.stdin is not None and not sys.stdin.isatty()
        native = transducer.audio.sample_rate
        if sources == [STANDARD_INPUT] or (piped and (rate or is_audio(sys.stdin.buffer))):
            given_audio = standard_input(native, rate, partial)
        else:
            given_audio = audio_sources(read_sources(sources, file), native, rate, partial)
        failed = print_recordings(
            transducer,
            given_audio,
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
