"""The commands of corpus: list the named corpora, download one, synthesize a speech corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.commands.options import Device, Overwrite
from transduce.cores import count_cores

To = Annotated[
    Path | None,
    typer.Option("--output", metavar="DIR", help="Default: $TRANSDUCE_DATA, or a cache folder."),
]

app = typer.Typer(rich_markup_mode=None)


@app.command("list")
def corpus_list() -> None:
    """List the corpora that a recipe can use by name, with sizes and licences."""
    from transduce.corpora.show import print_corpora

    print_corpora()


@app.command("get")
def corpus_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `transduce corpus list`.")],
    given: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Make it from local files in this folder."),
    ] = None,
    to: To = None,
) -> None:
    """Download a corpus from its public site. A stopped download can be resumed."""
    from transduce.corpora.show import get_and_print

    get_and_print(name, given, to)


@app.command("udhr")
def corpus_udhr(
    languages: Annotated[
        str, typer.Option(help="Language codes of corpus udhr, such as eng,fra,deu_1996.")
    ] = "eng",
    voices: Annotated[
        int, typer.Option(help="Voices of the training set; the test set has others.")
    ] = 8,
    audio: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Align recordings instead, named by their language: eng-1.mp3."
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Speech model with CTC that aligns --audio."),
    ] = None,
    to: To = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes. Default: one per core.")] = 0,
    device: Device = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Make a speech corpus of the Declaration of Human Rights: synthesized, or recorded."""
    if audio is not None:
        from transduce.alignment.show import align_declarations

        align_declarations(audio, model, to, device, overwrite)
        return
    from transduce.synthesis.show import speak_and_print

    speak_and_print(languages.replace(",", " ").split(), voices, to, workers or count_cores())
