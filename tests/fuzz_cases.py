"""Cases for the command line that a person, a broken disk or an attacker may make, by number.

A case is made of its number alone, so that one that fails can be made again.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fuzz_world import CORPORA, MODELS, RECIPES, SOUNDS
from transduce.recipe.keys import dotted_keys

HOSTILE = [
    "",
    " ",
    "\t",
    "\n",
    "\x00",
    "\x1b]0;t\x07",
    "\ud800",
    "\u2028",
    "﻿",
    "٣",
    "½",
    "🎉" * 9,
    "a" * 3000,
    "0",
    "-1",
    "1",
    "2",
    "1e99",
    "1e999",
    "-1e999",
    "nan",
    ".nan",
    ".inf",
    "9" * 30,
    "9" * 5000,
    "0x10",
    "1.5",
    "1e-300",
    "true",
    "null",
    "~",
    "[]",
    "{}",
    "[[]]",
    "[" * 200,
    "{a: " * 60,
    "*a",
    "&a [*a]",
    "!!python/object:os.system",
    "!!binary aGk=",
    "!!int a",
    "!!timestamp 2001-01-01",
    "? a : b",
    "- a",
    "<<: {a: 1}",
    "a: b: c",
    "'",
    '"\\ud800"',
    '"\\x00"',
    "/",
    "..",
    "~nobody/x",
    "/dev/null",
    "/proc/self/mem",
    "a.tsv",
    "a.*",
    "[a-",
    "{name: copy, split: train}",
    "{of: [{of: []}]}",
    "meta",
    "cpu",
    "cuda:99",
    "<pad>",
    "</s>",
    "<s>",
    "%s",
    "{0}",
    "\\",
    "`",
    "$HOME",
    "é",
    "e\u0301",
    "\u202e",
    "\r",
    "\x85",
    *("1000", "1000000", "100000000", "4294967296", "9223372036854775807"),
]
PLAUSIBLE = [
    *("0", "1", "2", "3", "7", "0.5", "1.5", "1e-300", "1e-9", "0.999999", "1000", "true", "null"),
    *("byte", "label", "word", "symbol", "character", "subword", "unigram", "nfd", "lines"),
    *("none", "rotary", "learned", "fourier", "concatenate", "relative", "gelu", "swiglu", "rms"),
    *("all", "target", "joined", "apart", "recurrent", "pooled", "conformer", "transformer"),
    *("elman", "gru", "lstm-peephole", "cosine", "additive", "location", "average", "attention"),
    *("last", "best", "auto", "bfloat16", "skip", "cut", "perplexity", "exact", "[exact, cer]"),
]
OPTIONS = [
    *("--beam", "--nbest", "--length-penalty", "--coverage-penalty", "--groups", "--diversity"),
    *("--temperature", "--top-k", "--top-p", "--seed", "--mbr", "--samples", "--no-repeat-ngram"),
    *("--min-length", "--max-length", "--only", "--prefix", "--include", "--exclude", "--tag"),
    *("--rerank", "--rerank-weight", "--language-model", "--lm-weight", "--ctc-weight"),
    *("--format", "--output", "--engine", "--device", "--precision", "--ensemble", "--input"),
]
COMMANDS = [
    *("run", "run", "run", "run", "evaluate", "score", "check", "export", "align", "prompts"),
    *("recipes", "corpus", "trian", ""),
]
FLAGS = [
    *("--sample", "--scores", "--json", "--geometric", "--no-unknown", "--unknown"),
    *("--help", "--sampel", "-x"),
]


@dataclass(frozen=True)
class Case:
    kind: str
    arguments: list[str]
    stdin: bytes = b""


def make_case(number: int, world: Path, scratch: Path) -> Case:
    """Case `number`, with its files in `scratch`, which is empty."""
    draw = random.Random(number)
    make = draw.choices(list(KINDS), weights=list(KINDS.values()))[0]
    return make(draw, world, scratch)


# ---------------------------------------------------------------------------------------- damage


def damaged(draw: random.Random, raw: bytes) -> bytes:
    """Bytes with some flipped, cut off, repeated, moved, or hostile ones put in."""
    data = bytearray(raw)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        place = draw.randrange(len(data) + 1)
        size = draw.choice((1, 2, 8, 64))
        how = draw.randrange(7)
        if how == 0 and place < len(data):
            data[place] ^= 1 << draw.randrange(8)
        elif how == 1:
            del data[place:]
        elif how == 2:
            del data[place : place + size]
        elif how == 3:
            data[place:place] = data[place : place + size] * draw.choice((1, 3))
        elif how == 4:
            data[place:place] = draw.choice(HOSTILE).encode("utf-8", "surrogatepass")
        elif how == 5:
            data[place : place + size] = draw.randbytes(size)
        else:
            lines = data.split(b"\n")
            draw.shuffle(lines)
            data = bytearray(b"\n".join(lines))
    return bytes(data)


def text_of(draw: random.Random) -> str:
    some = draw.choices(HOSTILE, k=draw.choice((1, 1, 2, 5)))
    return draw.choice(("", " ", "a")).join(some)


def argument(draw: random.Random) -> str:
    """A text as it can come to a command: no NUL, and no half characters."""
    return text_of(draw).replace("\x00", "").encode("utf-8", "ignore").decode()


# ----------------------------------------------------------------------------------------- kinds


def recipe_case(draw: random.Random, world: Path, scratch: Path) -> Case:
    text = (world / f"{draw.choice(list(RECIPES))}.yaml").read_bytes()
    (scratch / "r.yaml").write_bytes(damaged(draw, text))
    return Case("recipe", ["check", str(scratch / "r.yaml"), f"data.folder={world}"])


def override_case(draw: random.Random, world: Path, scratch: Path) -> Case:
    keys = dotted_keys()
    values = [draw.choice((argument(draw), draw.choice(PLAUSIBLE))) for _ in range(3)]
    some = values[: draw.choice((1, 1, 2, 3))]
    overrides = [f"{draw.choice(keys)}={value}" for value in some]
    recipe = str(world / f"{draw.choice(list(RECIPES))}.yaml")
    if draw.random() < 0.3:  # it does more with a value than to check it
        folder = ["--output", str(scratch / "run")]
        return Case("train", ["train", recipe, *overrides, "train.steps=2", *folder])
    return Case("override", ["check", recipe, *overrides])


def corpus_case(draw: random.Random, world: Path, scratch: Path) -> Case:
    name = draw.choice(list(RECIPES))
    for file in (*CORPORA, *SOUNDS):
        shutil.copy(world / file, scratch / file)
    used = [file for file in CORPORA if file in RECIPES[name]]
    hit = scratch / draw.choice(used)
    hit.write_bytes(damaged(draw, hit.read_bytes()))
    recipe = str(world / f"{name}.yaml")
    if draw.random() < 0.05:
        folder = str(scratch / "run")
        return Case("train", ["train", recipe, f"data.folder={scratch}", "--output", folder])
    return Case("corpus", ["check", recipe, f"data.folder={scratch}"])


def audio_case(draw: random.Random, world: Path, scratch: Path) -> Case:
    source = world / draw.choice(SOUNDS)
    name = draw.choice([source.name, *SOUNDS])
    (scratch / name).write_bytes(damaged(draw, source.read_bytes()))
    part = draw.choice(("", "", "#t=0.1,0.2", "#t=9", "#t=.,", "#t=1e9"))
    form = draw.choice(("text", "json", "srt", "textgrid"))
    given = ["run", str(world / "listener"), f"{scratch / name}{part}", "--format", form]
    return Case("audio", given)


def input_case(draw: random.Random, world: Path, scratch: Path) -> Case:
    model = str(world / draw.choice(MODELS[:3]))
    how = draw.choice(("arguments", "stdin", "input", "jsonl", "score", "prompts"))
    raw = damaged(draw, (world / "a.txt").read_bytes())
    if how == "arguments":
        return Case(how, ["run", model, "--", *(argument(draw) for _ in range(3))])
    if how == "stdin":
        return Case(how, ["run", model, "--workers", "1"], raw)
    if how == "jsonl":
        lines = b"\n".join(
            b'{"source": "tea", "%s": %s}'
            % (draw.choice((b"prefix", b"include", b"exclude", b"x\\ud800")), _json(draw))
            for _ in range(3)
        )
        raw = lines if draw.random() < 0.5 else damaged(draw, lines)
    path = scratch / ("in.jsonl" if how == "jsonl" else "in.txt")
    path.write_bytes(raw)
    if how == "score":
        (scratch / "out.txt").write_bytes(damaged(draw, (world / "b.txt").read_bytes()))
        return Case(how, ["score", model, str(path), str(scratch / "out.txt")])
    if how == "prompts":
        return Case(how, ["prompts", str(world / "speaker"), str(path), "--length", "3"])
    return Case(how, ["run", model, "--input", str(path), "--workers", "1"])


def _json(draw: random.Random) -> bytes:
    return draw.choice(
        (b'"te"', b'["a"]', b'[["a"]]', b"[1]", b"null", b'"\\ud800"', b"9" * 5000, b"[" * 99_999,
         b"NaN", b'{"a": 1}', b'[""]', b'["\\u0000"]', b'"\\u001b[2J"', b'"' + b"a" * 9999 + b'"')
    )  # fmt: skip


def option_case(draw: random.Random, world: Path, scratch: Path) -> Case:
    command = draw.choice(COMMANDS)
    given = [command] if command else []
    given.append(draw.choice([str(world / draw.choice(MODELS)), argument(draw), str(scratch)]))
    given += [draw.choice(("tea", str(world / "a.wav"), str(world / "a.txt"), argument(draw)))]
    for _ in range(draw.choice((1, 2, 3))):
        value = draw.choice((argument(draw), "1", "2", "0.5", str(world / draw.choice(MODELS))))
        given += [draw.choice(FLAGS)] if draw.random() < 0.2 else [draw.choice(OPTIONS), value]
    if command == "export":
        given += ["--output", str(scratch / "export"), "--to", draw.choice(("native", "onnx", "x"))]
    return Case("options", given, b"tea\n")


def folder_case(draw: random.Random, world: Path, scratch: Path) -> Case:
    name = draw.choice(MODELS)
    folder = scratch / name
    shutil.copytree(world / name, folder)
    files = sorted(file for file in folder.iterdir() if file.is_file())
    hit = draw.choice(files)
    how = draw.randrange(4)
    if how == 0:
        other = world / draw.choice(MODELS) / draw.choice(files).name
        shutil.copy(other, hit)
    elif how == 1:
        hit.unlink()
        if draw.random() < 0.5:
            hit.mkdir()
    else:
        hit.write_bytes(damaged(draw, hit.read_bytes()))
    source = str(world / "a.wav") if name == "listener" else "tea"
    return Case("folder", ["run", str(folder), source])


Make = Callable[[random.Random, Path, Path], Case]
KINDS: dict[Make, int] = {
    recipe_case: 20,
    override_case: 20,
    corpus_case: 20,
    audio_case: 10,
    input_case: 15,
    option_case: 15,
    folder_case: 20,
}
