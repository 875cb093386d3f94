"""What the commands and the Python of pages need to be run (integration/test_docs_commands.py).

Models are small ones under the names of the page, files have a few lines, and training is a few
updates: what is done otherwise than the page says stands in `changes`.
"""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from docs_blocks import Block, all_blocks

TINY = "train.steps=2 validation.every=2 train.device=cpu"
SMALL = "model.width=16 'model.encoder={layers: 1, heads: 2, feed_forward: 16}'"
SMALL += " 'model.decoder={layers: 1, heads: 2, feed_forward: 16}' 'decode={beam: 1, max_extra: 2}'"
PAIRS = "".join(f"{a}{b}\t{b}{a}\n" for a in "abcde" for b in "abcde")
MANY_PAIRS = "".join(f"{a}{b}\t{b}{a}\n" for a in "abcdefghijklm" for b in "abcdefghijklm")
OF_PAIRS = "'data.train={file: pairs.tsv}' 'data.valid={file: pairs.tsv}'"
OF_PAIRS += " 'data.test={file: pairs.tsv}'"
EVALUATED = " --source pairs.tsv"
MINE = """
name: mine
data:
  train: {file: pairs.tsv}
  valid: {file: pairs.tsv}
  tokens: {both: {level: character}}
model: {width: 16, encoder: {layers: 1, heads: 2}, decoder: {layers: 1, heads: 2}}
"""
# With mistakes in its lines 12 and 17.
WRONG = MINE.strip() + "\n" * 5 + "train:\n  learning_rate: 1\n\nmetrics:\n  - bleu\n\n  - chfr\n"


@dataclass(frozen=True)
class Page:
    """What a page's commands need, and what is done otherwise than it says."""

    models: dict[str, str] = field(default_factory=dict)
    """Folders of the page, and the small model that each is a copy of."""
    files: dict[str, str] = field(default_factory=dict)
    changes: tuple[tuple[str, str], ...] = ()
    """Patterns in commands and what replaces them."""
    prepare: Callable[[Path], None] | None = None
    fails: bool = False
    """Whether commands after a `$` fail, with the sentences that the page shows."""
    runs_python: bool = False
    """Whether the page's Python is run here, in its place between the commands."""
    names: Callable[[Path], dict[str, Any]] | None = None
    """Names that it finds."""
    smaller: dict[str, str] = field(default_factory=dict)
    """What is replaced in it."""

    def code(self, block: Block) -> str:
        """Python as it is run."""
        code = block.text
        for old, new in self.smaller.items():
            code = code.replace(old, new)
        return code

    def changed(self, command: str) -> tuple[str, set[str]]:
        """A command as it is run, and the patterns that were found in it."""
        found = set()
        for pattern, replacement in self.changes:
            command, count = re.subn(pattern, replacement, command)
            found |= {pattern} if count else set()
        return command, found


def speech_files(folder: Path) -> None:
    """Recordings of tones, under the names of several pages."""
    import soundfile

    from tones import RATE, tones, write_tones

    write_tones(folder, {"train": 24, "valid": 3, "test": 2})
    for name in ("recording.wav", "call.wav", "meeting.flac", "talk.wav"):
        soundfile.write(folder / name, tones("ab"), RATE)
    for name in ("talk.mp3", "reading.mp3"):
        soundfile.write(folder / name, tones("ab").repeat(4), 4 * RATE)


def packed_lines(folder: Path) -> None:
    for number in range(2):
        with gzip.open(folder / f"part-{number}.gz", "wt") as file:
            file.write("ab\nba\n")


def marian(folder: Path) -> None:
    import hf_models

    for name, make in (
        ("opus-mt-en-de", hf_models.marian),
        ("nllb-200-distilled-600M", hf_models.nllb),
    ):
        (folder / name).mkdir()
        make(folder / name)


def dates(folder: Path) -> None:
    """The two models of the page, trained for a few updates."""
    from transduce import train
    from transduce.recipe import parse_recipe

    blocks = [block for block in all_blocks() if block.page == "fine-tuning"]
    recipes = [block.text for block in blocks if block.kind == "yaml"]
    exec(next(block.text for block in blocks if block.kind == "python"), {})
    for text in (recipes[0], recipes[2]):
        recipe = parse_recipe(text, "page", folder, [*TINY.split(), "data.train.limit=50"])
        train(recipe, folder / "runs" / recipe.name)
    shutil.copytree("runs/british", "models/british")


def plays(folder: Path) -> None:
    (folder / "plays").mkdir()
    (folder / "plays" / "one.txt").write_text("ROMEO: To be, or not to be.\n" * 40)


def whisper(folder: Path) -> None:
    import soundfile

    import tiny_whisper

    tiny_whisper.huggingface_folder(folder / "faster-whisper-base")
    soundfile.write(folder / "jfk.flac", tiny_whisper.noises(1)[0], tiny_whisper.RATE)


def ray(folder: Path) -> None:
    """Stands for the package: its decorators build the application, and change nothing."""
    (folder / "ray").mkdir()
    (folder / "ray" / "__init__.py").write_text(
        "class serve:\n"
        "    @staticmethod\n"
        "    def deployment(**options):\n"
        "        return lambda made: type('Deployment', (), {'bind': staticmethod(made)})\n"
        "    @staticmethod\n"
        "    def ingress(build):\n"
        "        assert build() is not None\n"
        "        return lambda made: made\n"
    )


def heads(folder: Path) -> dict[str, Any]:
    from transduce import load
    from transduce.evaluation.items import Item

    return {"model": load("runs/copy"), "items": [Item("ab", ["ba"]), Item("cd", ["dc"])]}


def samples(folder: Path) -> dict[str, Any]:
    from tones import tones

    return {"samples": tones("ab")}


# Any recipe for speech, trained on a few tones by a network that hears 16 bands.
TONES = " ".join(
    f"'data.{name}={{file: {name}.tsv, audio: path, target: text}}'"
    for name in ("train", "valid", "test")
)
SPEECH = (
    r"^transduce train ([a-z-]+)$",
    rf"transduce train \1 {TONES} {TINY} audio.sample_rate=4000 audio.mel_bands=16 model.width=16"
    " train.batch_tokens=600",
)
PAGES = {
    "cleaning": Page(files={"mine.tsv": PAIRS}),
    "how-to-train": Page(
        files={"my.yaml": MINE, "pairs.tsv": PAIRS},
        changes=((r"train\.minutes=5", f"train.minutes=5 {TINY}"),),
    ),
    "tuning": Page(
        files={"my.yaml": MINE, "pairs.tsv": PAIRS},
        changes=(
            (r"--trials 20", f"--trials 2 {TINY}"),
            (r" train\.steps=5000", f" --trials 1 {TINY}"),
        ),
    ),
    "your-own-file": Page(
        files={"pairs.tsv": MANY_PAIRS},
        changes=(
            (r"^(transduce train pairs\.tsv)$", rf"\1 {TINY} model.width=16"),
            (r"( data\.train\.source=1 .*)$", rf"\1 {TINY} model.width=16 name=back"),
            (r" task=transduce ", f" task=transduce {TINY} model.width=16 "),
        ),
    ),
    "README": Page(
        {"runs/demo": "translate"},
        {"pairs.tsv": MANY_PAIRS},
        (
            (r"(train pairs\.tsv .*)$", rf"\1 {TINY} model.width=16"),
            (r"(check my\.yaml)$", rf"\1 {OF_PAIRS}"),
            (r"(train my\.yaml .*)$", rf"\1 {OF_PAIRS} {TINY} model.width=16"),
            (r"(tune my\.yaml .*)$", rf"\1 --trials 1 {OF_PAIRS} {TINY} model.width=16"),
        ),
    ),
    "batch": Page({"runs/multi30k-en-de": "translate"}, prepare=packed_lines),
    "espnet": Page(changes=(SPEECH,), prepare=speech_files),
    "joey-nmt": Page(files={"my.yaml": MINE}, fails=True),
    "corpora": Page(
        files={"pairs.tsv": PAIRS},
        changes=(
            (r"(train multi30k-en-de)$", rf"\1 {OF_PAIRS} {TINY} {SMALL} train.average=null"),
            (r"(evaluate runs/multi30k-en-de) --split test-2017", rf"\1{EVALUATED}"),
        ),
    ),
    "deploying": Page(
        {"runs/en-de": "translate"},
        changes=(("CUDA_VISIBLE_DEVICES=. ", ""),),
        prepare=ray,
        runs_python=True,
        smaller={"/models/en-de": "runs/en-de"},
    ),
    "evaluation": Page(
        {"runs/lstm": "lstm"}
        | {f"runs/{name}": "translate" for name in ("en-de", "transformer", "copy", "digits")},
        {"pairs.tsv": PAIRS},
        (
            (r"^(transduce (?:evaluate|compare|ablate) .*)$", rf"\1{EVALUATED}"),
            ("--prune 12", "--prune 3"),
            ("--metric bleu", "--metric exact"),
            ("--by speaker", "--by length"),
        ),
        runs_python=True,
        names=heads,
        smaller={"keep=12": "keep=3"},
    ),
    "web": Page({"runs/demo": "translate"}),
    "export": Page(
        {"runs/multi30k-en-de": "translate"},
        {"pairs.tsv": PAIRS, "some.src": "ab\nba\n", "some.tgt": "ba\nab\n"},
        (
            (r"(train reverse)$", rf"\1 {OF_PAIRS} {TINY} {SMALL}"),
            (
                r"^(transduce export .*)$",
                r"\1 --source some.src --target some.tgt --allow-mismatch",
            ),
        ),
        runs_python=True,
    ),
    "fine-tuning": Page(prepare=dates),
    "import": Page(prepare=marian),
    "language-models": Page(
        files={
            "valid.txt": "ROMEO: or not.\n" * 9,
            "texts.txt": "or\nnot\n",
            "prompts.txt": "To\nor\n",
        },
        changes=((r"(train plays\.yaml)$", rf"\1 {TINY} model.width=24"), ("300", "20")),
        prepare=plays,
        runs_python=True,
        smaller={"max_length=1000": "max_length=20"},
    ),
    "lessons": Page(changes=((r"(lessons run \w+)", r"\1 --no-open"),)),
    "live-speech": Page(changes=(SPEECH,), prepare=speech_files),
    "looking-inside": Page(
        {f"runs/{name}": "translate" for name in ("backwards", "transformer", "m30k")}
        | {"runs/lstm": "lstm", "runs/speech": "speech"},
        changes=(('--exclude Leiter --include "blauen Hemd"', "--exclude a --include b"),),
        prepare=speech_files,
    ),
    "recipes": Page(
        {"runs/de-en": "translate"},
        {"test.de": "ab\n", "test.en": "ba\n", "my.yaml": WRONG}
        | dict.fromkeys(("pairs.tsv", "train.tsv", "valid.tsv"), PAIRS),
        (
            (r"(check my\.yaml)$", rf"\1 {OF_PAIRS}"),
            (r"(train my\.yaml)", rf"\1 {OF_PAIRS} {TINY} model.width=16 --overwrite"),
            (r"metrics=\[bleu, ter", "metrics=[bleu, ter, per"),
            ("data.folder=/new/place", "data.folder=. --split valid"),
        ),
        fails=True,
    ),
    "scaling": Page(
        files={"pairs.tsv": PAIRS, "my.yaml": MINE},
        changes=(
            ("--nproc-per-node 8", "--nproc-per-node 2"),
            ("my.yaml$", f"my.yaml {TINY} --overwrite"),
        ),
    ),
    "serving": Page(
        {"runs/multi30k-en-de": "translate", "runs/imdb-pooled": "classify"}
        | {"runs/ewt-tagger": "tag"},
        runs_python=True,
    ),
    "serving-protocols": Page(
        {"runs/multi30k-en-de": "translate", "runs/digits": "speech"}
        | {"runs/shakespeare": "language_model"}
    ),
    "speech": Page(
        changes=(SPEECH,),
        prepare=speech_files,
        runs_python=True,
        names=samples,
    ),
    "whisper": Page(
        files={"recordings.tsv": "path\ttext\njfk.flac\tand so\n"},
        prepare=whisper,
        runs_python=True,
        names=lambda folder: {"transduce": import_module("transduce")},
    ),
    "udhr": Page({"runs/udhr-small": "speech"}, {"reading.txt": "ab\n"}, prepare=speech_files),
}
