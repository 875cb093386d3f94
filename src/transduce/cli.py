"""The command line: its commands in the order of --help, and how it ends."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from transduce import __version__
from transduce.commands import corpus
from transduce.commands.align import align
from transduce.commands.check import check
from transduce.commands.demo import demo
from transduce.commands.evaluate import evaluate
from transduce.commands.export import export
from transduce.commands.prompts import prompts
from transduce.commands.recipes import recipes
from transduce.commands.run import run
from transduce.commands.score import score
from transduce.commands.train import train
from transduce.sentences import sentence_of, show_warning

app = typer.Typer(
    help="Train, decode and look inside models that turn one sequence into another.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (demo, train, run, score, prompts, evaluate, export, align, check, recipes):
    app.command()(command)
app.add_typer(corpus.app, name="corpus", help="List the corpora known by name, get or make one.")


@app.callback(invoke_without_command=True)
def transduce(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line; what a person can cause ends in one sentence, not in a traceback."""
    # Threads that wait by spinning take the cores from each other as soon as anything else runs:
    # on two cores training became several times slower. It must be said before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as what is read, whatever the locale says
    warnings.showwarning = show_warning
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
