"""CMUdict 0.7b in the split of the literature on spelling to phones.

The test words are those of Chen (2003), taken again from this version of the dictionary. The
corpus `cmudict` is another: today's dictionary, split by a hash (see made.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transduce.corpora.entry import File, Form, Listing
from transduce.corpora.unpack import read_bytes
from transduce.recipe import Columns

ADDRESS = (
    "https://raw.githubusercontent.com/microsoft/CNTK/master/"
    "Examples/SequenceToSequence/CMUDict/Data"
)
THEIR_NAMES = {
    "train": "cmudict-0.7b.train-dev-20-21",
    "valid": "cmudict-0.7b.train-dev-1-21",
    "test": "cmudict-0.7b.test",
}


def _make(files: Mapping[str, Path], folder: Path) -> None:
    for split, theirs in THEIR_NAMES.items():
        rows = []
        for line in read_bytes(files[theirs]).decode("ascii").splitlines():
            word, phones = line.split("  ")
            rows.append(f"{word.lower()}\t{phones}\n")
        (folder / f"{split}.tsv").write_bytes("".join(rows).encode("ascii"))


CMUDICT = Listing(
    name="cmudict-0.7b",
    about="English spelling to phones, in the split of the literature",
    licence="BSD",
    terms="BSD 2-clause, copyright 1993-2015 Carnegie Mellon University",
    home="https://github.com/microsoft/CNTK/tree/master/Examples/SequenceToSequence/CMUDict",
    size=3_045_047,
    splits={"train": 108_952, "valid": 5_447, "test": 12_855},
    forms=(Form(tuple(File(name, f"{ADDRESS}/{name}") for name in THEIR_NAMES.values()), _make),),
    read=lambda split, _: Columns(file=f"cmudict-0.7b/{split}.tsv"),
    unit="pronunciations",
)
