"""The commands of lessons: list the claims, run an experiment, write its notebook."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transduce.cli.commands.options import Overwrite
from transduce.terminal import say

if TYPE_CHECKING:
    from transduce.lessons import Lesson

app = typer.Typer(rich_markup_mode=None)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A name or number of `transduce lessons`.")
]


@app.callback(invoke_without_command=True)
def lessons(context: typer.Context) -> None:
    """Claims about attention and what came before it, each shown by a short experiment."""
    from transduce.lessons import all_lessons

    if context.invoked_subcommand is not None:
        return
    for lesson in all_lessons():
        _print_lesson(lesson)
    print(
        "\n`transduce lessons run NAME` runs one in a reduced size, `--full` in its full size "
        "(seconds\nof both on two cores in brackets)."
    )


def _print_lesson(lesson: Lesson) -> None:
    width = min(shutil.get_terminal_size().columns, 100)
    print(f"{lesson.number:2d} {lesson.name} [{lesson.seconds} s, {lesson.full_seconds} s]")
    print(textwrap.fill(lesson.claim, width, initial_indent="   ", subsequent_indent="   "))


@app.command("run")
def lessons_run(
    name: Name,
    full: Annotated[bool, typer.Option("--full", help="The full size: a minute or two.")] = False,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the figures.")] = Path(
        "lesson-figures"
    ),
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open the figure, only say where it is.")
    ] = False,
) -> None:
    """Run one lesson: print its tables, draw its figure, check its claim."""
    from transduce.lessons import find_lesson, run

    lesson = find_lesson(name)
    print(f"{lesson.number}. {lesson.title}", flush=True)
    try:
        finished = run(lesson, output, full=full)
    except AssertionError as error:
        say(f"the claim did not hold here: {error}")
        raise typer.Exit(1) from None
    for figure in finished.figures:
        print(f"figure: {figure}")
    print(f"The claim held ({finished.seconds:.1f} s).")
    if not no_open and finished.figures and sys.stdout.isatty():
        typer.launch(str(finished.figures[0]))


@app.command("notebook")
def lessons_notebook(
    name: Name,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: NAME.ipynb.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write one lesson as a Jupyter notebook."""
    from transduce.lessons import find_lesson, write_notebook
    from transduce.storage import check_free

    lesson = find_lesson(name)
    path = Path(f"{lesson.name}.ipynb") if output is None else output
    check_free([path], overwrite)
    write_notebook(lesson.path, path)
    print(path)
