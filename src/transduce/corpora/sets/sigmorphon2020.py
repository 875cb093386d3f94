"""SIGMORPHON 2020, task 1: spelling to phones in fifteen languages (Gorman et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transduce.corpora.entry import File, Form, Listing
from transduce.corpora.unpack import read_bytes
from transduce.recipe import Columns, Mixture

ADDRESS = "https://raw.githubusercontent.com/sigmorphon/2020/master/task1/data"
CODES = "ady arm bul dut fre geo gre hin hun ice jpn kor lit rum vie"
LANGUAGES = CODES.split()
ALL = "all"
THEIR_NAMES = {"train": "train", "valid": "dev", "test": "test"}


def _make(files: Mapping[str, Path], folder: Path) -> None:
    for split, theirs in THEIR_NAMES.items():
        for language in LANGUAGES:
            text = read_bytes(files[f"{language}_{theirs}.tsv"])
            (folder / f"{split}.{language}.tsv").write_bytes(text)


def _read(split: str, language: str) -> Columns | Mixture:
    """One language; or all, which take turns, each word with its language as a tag."""
    if language == ALL:
        return Mixture(
            of=[Columns(file=f"sigmorphon2020/{split}.{one}.tsv", tag=one) for one in LANGUAGES]
        )
    return Columns(file=f"sigmorphon2020/{split}.{language}.tsv")


SIGMORPHON2020 = Listing(
    name="sigmorphon2020",
    about="spelling to phones in 15 languages, 3,600 words each",
    licence="CC BY-SA",
    terms="from Wiktionary, whose text is CC BY-SA 3.0; the task itself states no licence",
    home="https://github.com/sigmorphon/2020",
    size=2196783,
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
