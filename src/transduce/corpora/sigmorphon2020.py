"""SIGMORPHON 2020, task 1: spelling to phones in fifteen languages (Gorman et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transduce.corpora.listing import File, Form, Listing
from transduce.corpora.unpack import read_bytes
from transduce.recipe import Columns

ADDRESS = "https://raw.githubusercontent.com/sigmorphon/2020/master/task1/data"
CODES = "ady arm bul dut fre geo gre hin hun ice jpn kor lit rum vie"
LANGUAGES = CODES.split()
ALL = "all"
THEIR_NAMES = {"train": "train", "valid": "dev", "test": "test"}


def _make(files: Mapping[str, Path], folder: Path) -> None:
    for split, theirs in THEIR_NAMES.items():
        texts = {
            language: read_bytes(files[f"{language}_{theirs}.tsv"]).decode("utf-8")
            for language in LANGUAGES
        }
        # The languages take turns, so that the first lines are a sample of all.
        turns = zip(*(text.strip().split("\n") for text in texts.values()), strict=True)
        tagged = [
            f"{language} {line}\n"
            for turn in turns
            for language, line in zip(LANGUAGES, turn, strict=True)
        ]
        for language, text in [*texts.items(), (ALL, "".join(tagged))]:
            (folder / f"{split}.{language}.tsv").write_bytes(text.encode("utf-8"))


def _read(split: str, language: str) -> Columns:
    return Columns(file=f"sigmorphon2020/{split}.{language}.tsv")


SIGMORPHON2020 = Listing(
    name="sigmorphon2020",
    about="spelling to phones in 15 languages, 3,600 words each",
    licence="CC BY-SA",
    terms="from Wiktionary, whose text is CC BY-SA 3.0; the task itself states no licence",
    home="https://github.com/sigmorphon/2020",
    size=4_663_566,
    splits={"train": 3_600, "valid": 450, "test": 450},
    forms=(
        Form(
            tuple(
                File(f"{language}_{theirs}.tsv", f"{ADDRESS}/{theirs}/{language}_{theirs}.tsv")
                for theirs in THEIR_NAMES.values()
                for language in LANGUAGES
            ),
            _make,
        ),
    ),
    read=_read,
    key="language",
    example="fre",
    unit="words of each language",
    languages=lambda folder: [*LANGUAGES, ALL],
)
