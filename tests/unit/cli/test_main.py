"""The command line: what a person types, sees and gets wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from command_line import Transduce, sentence
from transduce.cli import main as cli

COMMANDS = [
    *("demo", "new", "train", "tune", "run", "batch", "back-translate", "score", "look", "prompts"),
    "evaluate",
    *(
        "compare",
        "ablate",
        "import",
        "export",
        "publish",
        "merge",
        "serve",
        "align",
        "check",
        "recipes",
    ),
    "corpus",
    "lessons",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_option(transduce: Transduce, command: str) -> None:
    shown = transduce(command, "--help")
    assert shown.status == 0
    described = re.sub(r"\n {20,}", " ", shown.out.partition("Options:")[2])
    options = re.findall(r"^  (?:-\w, )?(--[\w-]+)(?: <\w+>)?(.*)$", described, re.MULTILINE)
    assert options
    for name, about in options:
        assert len(about.split()) >= 2, f"{command} {name} is not explained"


def test_the_parser_of_one_command_is_the_one_among_all() -> None:
    everything = get_command(cli.commands("--help")).commands
    assert list(everything) == COMMANDS
    for name, whole in everything.items():
        alone = get_command(cli.commands(name)).commands
        assert list(alone) == [name]
        assert [option.name for option in alone[name].params] == [o.name for o in whole.params]


def test_help_lists_every_command(transduce: Transduce) -> None:
    for shown in (transduce("--help"), transduce()):
        assert shown.status == 0
        assert re.findall(r"^  (\w[\w-]*)  ", shown.out, re.MULTILINE) == COMMANDS
        assert "..." not in shown.out.partition("Commands:")[2].replace("translate, ...", "")


def test_version(transduce: Transduce) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", transduce("--version").out)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["train"], "Missing argument 'RECIPE'; see transduce train --help"),
        (["run"], "Missing argument 'MODEL'; see transduce run --help"),
        (["evaluate"], "Missing argument 'MODEL'; see transduce evaluate --help"),
        (["run", "x", "--nbst", "3"], "No such option: --nbst; did you mean --nbest?"),
        (["run", "x", "--quiet"], "No such option: --quiet; see transduce run --help"),
        (["train", "x", "--set", "a.b=3"], "--set; a key of the recipe is set by its name alone:"),
        (["check", "."], "is a folder without a run in it, and neither recordings"),
        (["run", "x", "--beam", "many"], "'--beam': it must be a valid integer; see transduce run"),
        (["train", "pronounce", "--train.lr=3"], "overrides have no dashes: train.lr=..."),
        (["train", "pronounce", "train.lr"], "'train.lr' is not of the form train.lr=3e-4"),
        (["train", "pronouce"], "no recipe file pronouce and no shipped recipe of that name; did"),
        (["train", "nowhere.tsv"], "there is no file nowhere.tsv; check its name and the folder"),
        (["train", "pronounce", "trian.lr=3"], "on the command line: unknown key trian; did you"),
        (["check", "pronouce"], "did you mean pronounce?"),
        (["recipes", "pronouce"], "there is no shipped recipe pronouce; did you mean pronounce?"),
        (["corpus"], "Missing command; see transduce corpus --help"),
        (["corpus", "gte"], "No such command 'gte'. Did you mean 'get'?"),
        (["corpus", "get", "multi3k"], "no corpus named multi3k; did you mean multi30k?"),
        (["run", "/no/where", "x"], "there is no folder /no/where"),
        (["evaluate", "/no/where"], "there is no folder /no/where"),
        (["run", "/", "x"], "/ is not a model folder: it has no model.safetensors"),
    ],
)
def test_a_mistake_is_one_sentence(transduce: Transduce, typed: list[str], said: str) -> None:
    assert said in sentence(transduce(*typed))


def test_our_own_mistakes_keep_their_traceback(
    transduce: Transduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, str]:
        raise ZeroDivisionError

    monkeypatch.setattr("transduce.cli.printing.shipped", broken)
    with pytest.raises(ZeroDivisionError):
        transduce("recipes")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory: 9 bytes")])
def test_too_little_memory_says_what_to_try(
    transduce: Transduce, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def greedy() -> dict[str, str]:
        raise error

    monkeypatch.setattr("transduce.cli.printing.shipped", greedy)
    said = sentence(transduce("recipes"))
    assert "train.batch_tokens" in said
    assert "a smaller beam" in said


@pytest.mark.parametrize(
    "said",
    [
        "libtorch_cpu.so: failed to map segment from shared object",
        "Importing failed.\n\nOriginal error was: libblas.so: cannot allocate memory\n",
    ],
)
def test_too_little_memory_for_the_libraries(
    transduce: Transduce, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    def unloaded() -> dict[str, str]:
        raise ImportError(said)

    monkeypatch.setattr("transduce.cli.printing.shipped", unloaded)
    assert "not enough memory to load" in sentence(transduce("recipes"))


def test_a_library_that_is_missing_is_no_matter_of_memory(
    transduce: Transduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unloaded() -> dict[str, str]:
        raise ImportError("No module named torch")

    monkeypatch.setattr("transduce.cli.printing.shipped", unloaded)
    with pytest.raises(ImportError):
        transduce("recipes")


@pytest.mark.slow  # starts a Python of its own
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the address space")
def test_an_import_with_a_real_limit_of_memory(tmp_path: Path) -> None:
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, (2 << 27, 2 << 27)); "
        "runpy.run_module('transduce', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "import", ".", "--output", str(tmp_path / "ours")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("transduce: there is not enough memory to load")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c(transduce: Transduce, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> dict[str, str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("transduce.cli.printing.shipped", interrupted)
    assert transduce("recipes") == (130, "", "")
