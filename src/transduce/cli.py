"""The command line: each command parses, calls one function, prints."""

from __future__ import annotations

import os
import sys
import traceback
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from transduce import __version__
from transduce.cores import count_cores
from transduce.sentences import sentence_of

app = typer.Typer(
    help="Train, decode and look inside models that turn one sequence into another.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

corpus_app = typer.Typer(rich_markup_mode=None)
app.add_typer(corpus_app, name="corpus", help="List the corpora known by name, get or make one.")

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE...", help="Overrides, e.g. train.lr=3e-4 model.width=256."),
]
ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A folder that `transduce train` wrote.")
]
Beam = Annotated[
    int | None, typer.Option(help="Hypotheses kept; 1 is greedy. Default: as in the recipe.")
]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Larger favours longer outputs; 0 for none.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Workers = Annotated[
    int,
    typer.Option(min=0, help="Processes that share a long input, on a CPU. Default: one a core."),
]
Precision = Annotated[
    str, typer.Option(help="auto, float32, bfloat16 or (on a CPU) int8: how search computes.")
]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", help="ctranslate2 or onnx, once exported. Default: transduce's own."),
]


class Demo(StrEnum):
    WORDS = "words"
    SPEECH = "speech"


@app.callback(invoke_without_command=True)
def transduce(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def demo(
    what: Annotated[Demo, typer.Argument(help="What it learns.")] = Demo.WORDS,
    folder: Annotated[
        Path | None, typer.Option(help="Where the model goes; default: runs/demo, or demo-speech.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights and order.")] = 1,
) -> None:
    """Train in minutes, on words or on speech; see what it attends to."""
    if what is Demo.SPEECH:
        from transduce.demo.listen import listen

        listen(folder or Path("runs/demo-speech"), seed)
    else:
        from transduce.demo.pronounce import pronounce

        pronounce(folder or Path("runs/demo"), seed)


@app.command()
def train(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    folder: Annotated[Path | None, typer.Option(help="Default: runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Discard the run that is there.")
    ] = False,
) -> None:
    """Train a model. To go on with a stopped run: transduce train runs/NAME --resume."""
    from transduce.cookbook import load_recipe
    from transduce.training import train

    run = Path(recipe)
    if (run / "recipe.yaml").is_file():
        recipe, folder = str(run / "recipe.yaml"), folder or run
    chosen = load_recipe(recipe, overrides or [])
    place = folder or Path("runs") / chosen.name
    trained = train(chosen, place, resume=resume, overwrite=overwrite)
    if not trained.first:
        raise typer.Exit(130 if trained.interrupted else 0)
    if trained.interrupted:
        print(f"Stopped at update {trained.standing.step:,}; everything is saved. Go on with:")
        print(f"  transduce train {place} --resume")
        raise typer.Exit(130)
    print(f"The model is in {place}. Try:")
    if chosen.data.test is not None:
        print(f"  transduce evaluate {place}")
    source = "recording.wav" if chosen.sound is not None else '"..."'
    print(f"  transduce run {place} {source}")


@app.command()
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
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens at random.")] = False,
    temperature: Annotated[float, typer.Option(help="Below 1 is safer, above 1 bolder.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest; 0: from all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest that sum up to p.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 1,
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
    with_models: Annotated[
        list[Path] | None, typer.Option("--with", help="A model to write with; repeatable.")
    ] = None,
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
    engine: EngineOption = None,
    device: Device = "auto",
    precision: Precision = "auto",
    workers: Workers = 0,
) -> None:
    """Do what the model does: pronounce, translate, ... Results stream in the order of sources."""
    processes = _processes(workers, many=file is not None or not sources)
    from transduce.console import output_format, print_outputs, print_recordings, print_tagged
    from transduce.hardware import keep_loaded, pick_device
    from transduce.inputs import check_tags, conllu_input, in_turn, read_requests, read_sources
    from transduce.interop.engine import open_model
    from transduce.tasks import Hearing
    from transduce.transducer import load

    place = str(pick_device(device))
    transducer = open_model(model, engine, place, precision)
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
    if isinstance(transducer, Hearing):
        wishes = {"prefix": prefix, "include": include, "exclude": exclude}
        asked |= {name: value for name, value in wishes.items() if value}
        failed = print_recordings(
            transducer,
            read_sources(sources, file),
            form,
            output,
            asked,
            scores=scores,
            numbered=nbest > 1,
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


@app.command()
def score(
    model: ModelArgument,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A file of sources, or both in one TSV; of a language model, texts or prompts.",
        ),
    ],
    target: Annotated[
        Path | None, typer.Argument(metavar="TARGET", help="The targets, line by line.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a pair.")] = False,
    engine: EngineOption = None,
    device: Device = "auto",
) -> None:
    """Print the log-probability and the perplexity of given texts."""
    from transduce.console import print_scores
    from transduce.hardware import pick_device
    from transduce.inputs import read_lines_of, read_sources
    from transduce.interop.engine import open_model
    from transduce.tasks import LanguageModel

    transducer = open_model(model, engine, str(pick_device(device)))
    if isinstance(transducer, LanguageModel) and target is None:
        texts = (transducer.score(some) for some in read_sources(None, source))
        print_scores(texts, as_json=json, noun="texts")
        return
    pairs = read_lines_of(source, target)
    print_scores((transducer.score(*some) for some in pairs), as_json=json)


@app.command()
def prompts(
    model: ModelArgument,
    file: Annotated[
        Path, typer.Argument(metavar="PROMPTS", help="A file, one prompt a line; an empty one too.")
    ],
    length: Annotated[int, typer.Option(min=1, help="Tokens to write after each prompt.")] = 40,
    beam: Beam = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens at random.")] = False,
    temperature: Annotated[float, typer.Option(help="Below 1 is safer, above 1 bolder.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest; 0: from all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest that sum up to p.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 1,
    html: Annotated[
        Path | None, typer.Option(help="Write a page for a browser, every step in it.")
    ] = None,
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """Compare what a language model expects after different prompts."""
    from transduce.hardware import pick_device
    from transduce.inputs import read_prompts
    from transduce.inspection.page import write_prompts
    from transduce.inspection.prompts import compare_folder
    from transduce.inspection.table import print_comparison

    comparison = compare_folder(
        model,
        read_prompts(file),
        str(pick_device(device)),
        precision,
        max_length=length,
        beam=beam,
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    if html is not None:
        write_prompts(comparison, html)
    print_comparison(comparison)
    if html is not None:
        print(f"The page is {html}: open it in a browser.")


@app.command()
def evaluate(
    model: ModelArgument,
    split: Annotated[str, typer.Option(help="test, valid, or another of a named corpus.")] = "test",
    source: Annotated[
        Path | None,
        typer.Option(help="Score on this file instead, one a line (or a table, or a text);"),
    ] = None,
    target: Annotated[Path | None, typer.Option(help="with the targets in this one.")] = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    metrics: Annotated[
        str | None, typer.Option(help="Such as bleu,chrf,ter. Default: as in the recipe.")
    ] = None,
    with_models: Annotated[
        list[Path] | None, typer.Option("--with", help="A model to write with; repeatable.")
    ] = None,
    engine: EngineOption = None,
    device: Device = "auto",
    precision: Precision = "auto",
    workers: Workers = 0,
) -> None:
    """Score a model on its test set. Metrics, hypotheses and card go into its folder."""
    processes = _processes(workers, many=True)
    from transduce.console import print_metrics
    from transduce.evaluation.evaluate import evaluate_folder
    from transduce.hardware import pick_device
    from transduce.inspection.report import write_card
    from transduce.interop.engine import exported_folder, open_model
    from transduce.transducer import load

    place = str(pick_device(device))
    transducer = open_model(model, engine, place, precision)
    transducer.workers = processes
    folder = model if engine is None else exported_folder(model, engine)
    evaluate_folder(
        transducer,
        folder,
        tell=print_metrics,
        split=split,
        files=(source, target),
        metrics=metrics,
        with_models=[load(other, place, precision) for other in with_models or []],
        beam=beam,
        length_penalty=length_penalty,
    )
    if transducer.engine is None:
        write_card(transducer, model)


@app.command()
def export(
    model: ModelArgument,
    to: Annotated[
        str, typer.Option(help="ctranslate2, onnx, or native: transduce itself, in fewer bits.")
    ],
    quantize: Annotated[
        str | None,
        typer.Option(help="int8 or bfloat16; for ctranslate2 int8_float32 or float16 as well."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Default: MODEL/ctranslate2, MODEL/onnx or MODEL/int8.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Compare on this file instead of the validation set;")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="with the targets in this one.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most pairs to compare on.")] = 500,
    allow: Annotated[
        bool, typer.Option("--allow", help="Keep an export that says something else.")
    ] = False,
) -> None:
    """Write a model for another engine or in fewer bits, and compare."""
    from transduce.interop.export import export_folder

    place, parity = export_folder(
        model,
        to,
        quantize=quantize,
        folder=folder,
        files=(source, target),
        limit=limit,
        allow=allow,
    )
    print(f"Compared on {parity.pairs:,} pairs of {parity.data}:")
    for line in parity.lines():
        print(f"  {line}")
    print(f'The export is in {place}. Try:\n  transduce run {place} "..."')


@app.command()
def align(
    audio: Annotated[Path, typer.Argument(metavar="AUDIO", help="A recording of any length.")],
    text: Annotated[
        Path, typer.Argument(metavar="TEXT", help="What is read in it, one utterance a line.")
    ],
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="A model of sound with CTC.")
    ] = None,
    grid: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Or a TextGrid whose tier seg has numbers of lines."),
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="Of the text, such as en or pt-BR, for a model of phones.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Default: AUDIO without its ending.")
    ] = None,
    least: Annotated[
        float, typer.Option(min=0, max=1, help="Confidence of what is fit to train from.")
    ] = 0.3,
    device: Device = "auto",
) -> None:
    """Find where each line of a text is read in a long recording."""
    from transduce.alignment.show import align_and_tell

    align_and_tell(audio, text, model, grid, language, to, least, device)


@app.command()
def check(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Examine a recipe and its data before any training."""
    from transduce.console import print_diagnosis
    from transduce.cookbook import load_recipe
    from transduce.data.doctor import examine

    diagnosis = examine(load_recipe(recipe, overrides or []))
    print_diagnosis(diagnosis)
    raise typer.Exit(0 if diagnosis.ok else 1)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this one.")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Explain every key.")] = False,
) -> None:
    """List the shipped recipes, or print one to start your own from."""
    from transduce.console import print_keys, print_recipe, print_recipes

    if keys:
        print_keys()
    elif name is None:
        print_recipes()
    else:
        print_recipe(name)


@corpus_app.command("list")
def corpus_list() -> None:
    """List the corpora that a recipe can name, their sizes and licences."""
    from transduce.corpora.show import print_corpora

    print_corpora()


@corpus_app.command("get")
def corpus_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `transduce corpus list` has it.")],
    given: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Make it from files you have.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Default: $TRANSDUCE_DATA, or a cache folder."),
    ] = None,
) -> None:
    """Fetch a corpus from its public home. Stopped, it goes on where it was."""
    from transduce.corpora.show import get_and_tell

    get_and_tell(name, given, to)


@corpus_app.command("udhr")
def corpus_udhr(
    languages: Annotated[
        str, typer.Option(help="Codes of corpus udhr, such as eng,fra,deu_1996.")
    ] = "eng",
    voices: Annotated[int, typer.Option(help="To learn from; the test has more of its own.")] = 8,
    audio: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Align these recordings instead, named by their language: eng-1.mp3"
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Whose CTC aligns --audio.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Default: $TRANSDUCE_DATA, or a cache folder."),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes. Default: one a core.")] = 0,
    device: Device = "auto",
) -> None:
    """Make a corpus of speech of the Declaration of Human Rights: read by espeak, or recorded."""
    if audio is not None:
        from transduce.alignment.show import align_declarations

        align_declarations(audio, model, to, device)
        return
    from transduce.synthesis.show import speak_and_tell

    speak_and_tell(languages.replace(",", " ").split(), voices, to, workers or count_cores())


def _processes(asked: int, many: bool) -> int:
    """How many processes share an input, on a CPU; with one thread each, as torch has to be told
    before it is loaded."""
    count = asked or (count_cores() if many else 1)
    if count > 1:
        os.environ["OMP_NUM_THREADS"] = "1"
    return count


def main() -> NoReturn:
    """Run the command line; what a person can cause ends in one sentence, not in a traceback."""
    # Threads that wait by spinning take the cores from each other as soon as anything else runs:
    # on two cores training became several times slower. It must be said before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as what is read, whatever the locale says
    try:
        command = typer.main.get_command(app)
        with command.make_context("transduce", sys.argv[1:] or ["--help"]) as context:
            command.invoke(context)
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _leave(130)
    except BrokenPipeError:
        # The reader (head, less) has seen enough; nothing more can be written to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None and _alone():
            raise
        if sentence is None:
            traceback.print_exc()
            _leave(1)
        for line in sentence.splitlines():
            print(f"transduce: {line}", file=sys.stderr)
        _leave(2)
    sys.exit(0)


def _leave(code: int) -> NoReturn:
    """Exit; of several processes of a run, at once: a thread may wait for one that is gone."""
    if _alone():
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _alone() -> bool:
    return os.environ.get("WORLD_SIZE", "1") == "1"


if __name__ == "__main__":
    main()
