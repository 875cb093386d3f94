"""A corpus `udhr` of some words in three languages, as `transduce corpus get udhr` leaves it."""

from __future__ import annotations

from pathlib import Path

from transduce.corpora.location import METADATA, metadata_of
from transduce.corpora.udhr import SPLITS
from transduce.storage import write_json

TEXTS = {
    "train": {
        0: ("Now, therefore,", "Nun denn,", "今"),
        10: ("We are free.", "Wir sind frei.", ""),
    },
    "valid": {0: ("We have a right.", "Wir haben ein Recht.", "今")},
    "test": {0: ("All are equal; all.", "Alle sind gleich.", "今")},
}
NAMES = [
    ("eng", "eng", "en", "ltr", "English", "60"),
    ("deu_1996", "deu", "de-1996", "ltr", "German", "50"),
    ("jpn", "jpn", "ja", "ltr", "Japanese", "50"),
    ("tlh", "tlh", "xx", "ltr", "Unheard", "50"),
]


def write_declaration(shelf: Path) -> None:
    folder = shelf / "udhr"
    folder.mkdir(parents=True)
    for split, count in SPLITS.items():
        rows = [["eng", "deu_1996", "jpn", "tlh"]]
        rows += [[*TEXTS[split].get(n, ("", "", "")), "qap"] for n in range(count)]
        (folder / f"{split}.tsv").write_text("".join("\t".join(r) + "\n" for r in rows), "utf-8")
    head = ("code", "iso639-3", "bcp47", "direction", "name", "paragraphs")
    names = "".join("\t".join(row) + "\n" for row in [head, *NAMES])
    (folder / "languages.tsv").write_text(names, "utf-8")
    write_json(folder / METADATA, metadata_of(folder, name="udhr"))
