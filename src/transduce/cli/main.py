"""The command line: its commands in the order of --help, errors and exit codes."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import traceback
import warnings
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from transduce import __version__
from transduce.cli.commands import corpus, lessons
from transduce.cli.commands.ablate import ablate
from transduce.cli.commands.align import align
from transduce.cli.commands.batch import batch
from transduce.cli.commands.compare import compare
from transduce.cli.commands.convert.back_translate import back_translate
from transduce.cli.commands.convert.export import export
from transduce.cli.commands.convert.import_ import import_
from transduce.cli.commands.convert.merge import merge
from transduce.cli.commands.convert.publish import publish
from transduce.cli.commands.demo import demo
from transduce.cli.commands.evaluate import evaluate
from transduce.cli.commands.look import look
from transduce.cli.commands.new import new
from transduce.cli.commands.options import expanded
from transduce.cli.commands.prompts import prompts
from transduce.cli.commands.recipes import check, recipes
from transduce.cli.commands.run import run
from transduce.cli.commands.score import score
from transduce.cli.commands.serve import serve
from transduce.cli.commands.train import train
from transduce.cli.commands.tune import tune
from transduce.cli.messages import WRITE_ERRORS, show_warning, user_message
from transduce.registry import VARIABLE, load_from_environment, pass_to_children
from transduce.terminal import guarded, say

app = typer.Typer(
    help="Train, decode, inspect and serve sequence-to-sequence models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (
    demo,
    new,
    train,
    tune,
    run,
    batch,
    back_translate,
    score,
    look,
    prompts,
    evaluate,
    compare,
    ablate,
    import_,
    export,
    publish,
    merge,
    serve,
    align,
    check,
    recipes,
):
    app.command(command.__name__.rstrip("_").replace("_", "-"))(command)
app.add_typer(corpus.app, name="corpus", help="List, download or make corpora known by name.")
app.add_typer(lessons.app, name="lessons", help="Claims about attention, shown by experiments.")


@app.callback(invoke_without_command=True)
def transduce(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(
            help="A Python file with parts of your own (encoders, metrics, …), which is run first; "
            "may be repeated. See docs/guides/extending.md."
        ),
    ] = None,
) -> None:
    if plugin or os.environ.get(VARIABLE):
        pass_to_children(plugin or [])
        load_from_environment()
    if version:
        print(__version__)
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line; user errors end in a one-sentence message, not in a traceback."""
    # OpenMP threads that busy-wait take cores from each other as soon as anything else runs: on
    # two cores training became several times slower. It must be set before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # At its end Python looks for garbage in all modules, of which torch has thousands: most of a
    # second. With everything frozen it does not.
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    warnings.showwarning = show_warning
    with guarded():
        _run()


def commands(asked: str = "") -> typer.Typer:
    """The command that is asked for, or else all: typer takes a while for the options of each."""
    found, alone, groups = copy(app), app.registered_commands, app.registered_groups
    if asked in [*(one.name for one in alone), *(one.name for one in groups)]:
        alone = [one for one in alone if one.name == asked]
        groups = [one for one in groups if one.name == asked]
    found.registered_commands, found.registered_groups = [copy(one) for one in alone], groups
    for one in found.registered_commands:
        assert one.callback is not None
        one.callback = expanded(one.callback)
    return found


def _asked(words: list[str]) -> str:
    """The command among these words: the first after the options that all commands have."""
    rest = iter(words)
    for word in rest:
        if word == "--plugin":
            next(rest, None)
        elif not word.startswith("--plugin="):
            return word
    return ""


def _run() -> NoReturn:
    code = 0
    try:
        try:
            words = sys.argv[1:] or ["--help"]
            command = typer.main.get_command(commands(_asked(words)))
            with command.make_context("transduce", words) as context:
                command.invoke(context)
        except typer.Exit as end:
            code = end.exit_code
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk may show only now
    except (KeyboardInterrupt, typer.Abort):
        _leave(130)
    except BrokenPipeError:
        # The reader (head, less) has seen enough; nothing more can be written to it.
        _drop_output()
        sys.exit(0)
    except SystemExit:
        raise
    except BaseException as error:
        message = user_message(error)
        if message is None and _single_process():
            raise
        if message is None:
            traceback.print_exc()
            _leave(1)
        for line in message.splitlines():
            say(line)
        if isinstance(error, OSError) and error.errno in WRITE_ERRORS:
            _drop_output()  # flushing at exit would fail again
        _leave(2)
    sys.exit(code)


def _drop_output() -> None:
    """Redirect standard output to /dev/null: writing the rest would fail again."""
    with suppress(io.UnsupportedOperation):  # it was closed from the beginning
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(code: int) -> NoReturn:
    """Exit; at once in a distributed run, where a thread may wait for a process that is gone."""
    if _single_process():
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _single_process() -> bool:
    return os.environ.get("WORLD_SIZE", "1") == "1"


if __name__ == "__main__":
    main()
