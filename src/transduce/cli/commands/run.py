"""The command run: apply a trained model to sources."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transduce.cli.commands.options import (
    NONE_GIVEN,
    AllSettings,
    Loading,
    LoadingOptions,
    ModelArgument,
    OptionsOf,
    Overwrite,
)
from transduce.errors import DataError, ModelError

if TYPE_CHECKING:
    from transduce.tasks import AudioInputModel, Model
    from transduce.tasks.transduce import Output


@dataclass(frozen=True)
class Input:
    """What is read."""

    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE...", help="Texts or audio files. Default: standard input."),
    ] = None
    file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            help="A file with one source per line, or any table that `train` takes (its columns "
            "of sources and tags are those of training); .jsonl with one object per line; "
            ".conllu.",
        ),
    ] = None
    rate: Annotated[
        int | None,
        typer.Option(
            min=1000,
            help="Samples a second of raw audio (16 bits, mono, no header): of .raw and .pcm "
            "files, and of standard input (-).",
        ),
    ] = None
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Of a truncated or damaged recording, use what there is."),
    ] = False


@dataclass(frozen=True)
class Printing:
    """What is printed, and how."""

    scores: Annotated[
        bool, typer.Option("--scores", help="Print the score before each output.")
    ] = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per source.")] = False
    kind: Annotated[
        str, typer.Option("--format", help="text or json; for speech also srt, vtt or textgrid.")
    ] = "text"
    output: Annotated[
        Path | None, typer.Option(help="Folder for srt, vtt or textgrid files, one per recording.")
    ] = None
    overwrite: Overwrite = False
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Print what is said while it is said: of the microphone, of standard input (-), "
            "or of one recording, played in real time. Ctrl-C ends.",
        ),
    ] = False
    times: Annotated[
        bool,
        typer.Option("--times", help="With --live: the second at which each utterance begins."),
    ] = False


def run(
    model: ModelArgument,
    given: Annotated[Input, OptionsOf(Input)] = Input(),
    settings: AllSettings = NONE_GIVEN,
    printing: Annotated[Printing, OptionsOf(Printing)] = Printing(),
    loading: LoadingOptions = Loading(),  # noqa: B008
) -> None:
    """Run a model: translate, transcribe, classify or tag. Results stream in input order."""
    if printing.times and not printing.live:
        raise ModelError("--times is for --live; for recordings, use --format json, srt or vtt")
    if printing.live and given.file is not None:
        raise DataError("--live takes a recording as an argument, not --input")
    transducer = loading.open(
        model, many=given.file is not None or not given.sources, settings=settings
    )
    from transduce.cli.input import conllu_input
    from transduce.cli.printing import output_format, print_tagged
    from transduce.hardware import keep_loaded, pick_device
    from transduce.tasks import AudioInputModel
    from transduce.tasks.transduce import load_others

    transducer.tags_of(settings.get("tags", []))
    tagged = conllu_input(given.sources, given.file)
    if tagged is not None:
        print_tagged(transducer, tagged)
        return
    form = output_format("json" if printing.json else printing.kind, printing.output, transducer)
    decoding = load_others(settings, str(pick_device(loading.device)), loading.precision)
    transducer.freeze()
    takes_audio = isinstance(transducer, AudioInputModel)
    if printing.live and not takes_audio:
        raise ModelError("--live needs a model that transcribes speech")
    piped_live = printing.live and given.sources == ["-"]
    if given.partial and (printing.live or not takes_audio):
        raise ModelError("--partial is for recordings; leave it out")
    if given.rate and not (piped_live if printing.live else takes_audio):
        raise ModelError("--rate is for raw audio, of files or standard input (-); leave it out")
    keep_loaded()
    if isinstance(transducer, AudioInputModel):
        _run_recordings(transducer, given, decoding, form, printing)
    else:
        _run_texts(transducer, given, decoding, form, printing)


def _run_recordings(
    model: AudioInputModel, given: Input, decoding: dict[str, Any], form: str, printing: Printing
) -> None:
    """Print what is said in recordings, or live. Exits with 1 if one could not be used."""
    from transduce.automatic.given import trained_on
    from transduce.cli.audio_sources import STANDARD_INPUT, audio_sources, is_audio, standard_input
    from transduce.cli.input import read_recordings
    from transduce.cli.live import run_live
    from transduce.cli.printing import print_recordings

    sources, known = given.sources or [], model.source_tokens.tags
    by_row = None if decoding.get("tags") else known  # --tag is in place of those of a table
    if printing.live:
        run_live(model, sources, form, printing.times, decoding, given.rate)
        return
    piped = not sources and given.file is None and sys.stdin is not None and not sys.stdin.isatty()
    as_read = model.recordings.settings.sample_rate, given.rate, given.partial
    if sources == [STANDARD_INPUT] or (piped and (given.rate or is_audio(sys.stdin.buffer))):
        recordings = standard_input(*as_read)
    else:
        recordings = audio_sources(
            read_recordings(given.sources, given.file, trained_on(model.recipe), by_row),
            *as_read,
            known,
        )
    failed = print_recordings(
        model,
        recordings,
        form,
        printing.output,
        decoding,
        scores=printing.scores,
        numbered=decoding.get("nbest", 1) > 1,
        overwrite=printing.overwrite,
        named=len(sources) > 1,  # outputs for a list file follow its order
    )
    if failed:
        raise typer.Exit(1)


def _run_texts(
    model: Model, given: Input, decoding: dict[str, Any], form: str, printing: Printing
) -> None:
    """Print the outputs for texts, in order."""
    from transduce.automatic.given import trained_on
    from transduce.cli.input import read_requests, run_in_order
    from transduce.cli.printing import AGAINST_EMPTY, is_empty, print_outputs
    from transduce.terminal import say

    several = decoding.get("nbest", 1) > 1
    include, exclude = (decoding.pop(name, []) for name in ("include", "exclude"))
    prefix, trained = decoding.pop("prefix", ""), trained_on(model.recipe)
    known = None if decoding.get("tags") else model.source_tokens.tags  # --tag is in their place
    requests = read_requests(given.sources, given.file, prefix, include, exclude, trained, known)
    at_once = 1
    if model.engine:
        at_once = model.engine.at_once if given.file else 1
        # They cost an engine extra time.
        decoding["scores"] = printing.scores or printing.json or several
    counts: list[tuple[int, int]] = []  # of each group: its sources, and the empty outputs of them

    def answer(request: dict[str, Any]) -> list[Output]:
        outputs = model.run(**request, **decoding)
        pairs = zip(request["sources"], outputs, strict=True)
        empty = sum(bool(source.strip()) and is_empty(output) for source, output in pairs)
        counts.append((len(outputs), empty))
        return outputs

    print_outputs(
        run_in_order(answer, requests, at_once),
        scores=printing.scores,
        as_json=form == "json",
        numbered=several,
        show=model.show,
        multiline=model.recipe.task == "language_modeling",
    )
    count, empty = (sum(numbers) for numbers in zip(*counts, strict=True)) if counts else (0, 0)
    if empty:
        say(
            f"{empty:,} of {count:,} outputs {'is' if empty == 1 else 'are'} empty; {AGAINST_EMPTY}"
        )
