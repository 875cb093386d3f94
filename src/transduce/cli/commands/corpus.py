"""The commands of corpus: those known by name listed, one fetched, one of speech made."""

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
    """List the corpora that a recipe can name, their sizes and licences."""
    from transduce.corpora.show import print_corpora

    print_corpora()


@app.command("get")
def corpus_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `transduce corpus list` has it.")],
    given: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Make it from files you have.")
    ] = None,
    to: To = None,
) -> None:
    """Fetch a corpus from its public home. Stopped, it goes on where it was."""
    from transduce.corpora.show import get_and_print

    get_and_print(name, given, to)


@app.command("udhr")
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
    to: To = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes. Default: one a core.")] = 0,
    device: Device = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Make a corpus of speech of the Declaration of Human Rights: read by espeak, or recorded."""
    if audio is not None:
        from transduce.alignment.show import align_declarations

        align_declarations(audio, model, to, device, overwrite)
        return
    from transduce.synthesis.show import speak_and_print

    speak_and_print(languages.replace(",", " ").split(), voices, to, workers or count_cores())
