"""Validation and test files beside a training file, by their names.

train.tsv has valid.tsv or dev.tsv; x_train.tsv.gz has x_dev.tsv.gz; x.tsv has x.dev.tsv;
x_small.train has x.dev and x.gold; train.en and train.de have valid.en and valid.de.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

TRAIN = ("train", "training", "trn")
OTHERS = {
    "valid": ("valid", "validation", "val", "dev", "devel", "development"),
    # gold: the answers, where a file called test has none
    "test": ("gold", "test", "tst", "eval", "evaluation"),
}
FILES = ("file", "source", "target", "text")


def siblings(path: Path, corpus: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The corpora valid and test, of those whose files are there; `corpus` is that of training."""
    named = "file" if "file" in corpus else "text" if "text" in corpus else None
    keys = [named] if named is not None else ["source", "target"]
    found = {}
    for part, words in OTHERS.items():
        for word in words:
            names = {key: _sibling(path.parent, str(corpus[key]), word) for key in keys}
            if all(names.values()):
                found[part] = {**corpus, **names}
                break
    return found


def _sibling(folder: Path, name: str, word: str) -> str | None:
    """The file of that name with another word in place of train; None: there is none."""
    pieces = re.split(r"([._\-])", name)
    places = [place for place, piece in enumerate(pieces) if piece.lower() in TRAIN]
    tried = []
    if places:
        place = places[-1]
        for spelt in (word, word.upper(), word.capitalize()):
            tried.append("".join([*pieces[:place], spelt, *pieces[place + 1 :]]))
        if place >= 4:  # x_small.train has x.dev
            tried.append(
                "".join(
                    [*pieces[: place - 3], *pieces[place - 1 : place], word, *pieces[place + 1 :]]
                )
            )
    else:
        first, *rest = name.split(".")
        ending = "." + ".".join(rest) if rest else ""
        tried += [f"{first}{sign}{word}{ending}" for sign in "._-"]
    return next((one for one in tried if one != name and (folder / one).is_file()), None)
