"""UD English EWT 2.16: words of web texts and their parts of speech (Silveira et al. 2014).

One sentence a line, words and tags separated by spaces; the CoNLL-U files lie beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transduce.corpora.entry import File, Form, Listing
from transduce.corpora.unpack import read_bytes
from transduce.recipe import Columns

ADDRESS = "https://raw.githubusercontent.com/UniversalDependencies/UD_English-EWT/r2.16"
THEIR_NAMES = {"train": "train", "valid": "dev", "test": "test"}
WORD, TAG = 1, 3  # columns: FORM and UPOS


def _make(files: Mapping[str, Path], folder: Path) -> None:
    for split, theirs in THEIR_NAMES.items():
        contents = read_bytes(files[f"en_ewt-ud-{theirs}.conllu"])
        (folder / f"{split}.conllu").write_bytes(contents)
        lines = [_line(sentence) for sentence in contents.decode("utf-8").strip().split("\n\n")]
        (folder / f"{split}.tsv").write_bytes("".join(lines).encode("utf-8"))


def _line(sentence: str) -> str:
    rows = [line.split("\t") for line in sentence.split("\n") if not line.startswith("#")]
    # 3-4 is a multiword token, repeated as words 3 and 4; 5.1 is an empty node.
    words = [row for row in rows if row[0].isdigit()]
    return " ".join(row[WORD] for row in words) + "\t" + " ".join(row[TAG] for row in words) + "\n"


EWT = Listing(
    name="ewt",
    about="English sentences and the part of speech of each word",
    licence="CC BY-SA 4.0",
    terms="CC BY-SA 4.0",
    home="https://github.com/UniversalDependencies/UD_English-EWT",
    size=20_344_462,
    splits={"train": 12_544, "valid": 2_001, "test": 2_077},
    forms=(
        Form(
            tuple(
                File(f"en_ewt-ud-{theirs}.conllu", f"{ADDRESS}/en_ewt-ud-{theirs}.conllu")
                for theirs in THEIR_NAMES.values()
            ),
            _make,
        ),
    ),
    read=lambda split, _: Columns(file=f"ewt/{split}.tsv"),
    unit="sentences",
)
