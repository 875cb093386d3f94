"""IMDB: film reviews and whether they are good or bad (Maas et al. 2011).

The authors' test set, and their training set without every tenth review, which are for validation:
the last tenth in the order of a hash of the text, so that equal reviews are on the same side. All
three are in that order, so that the first lines are a fair sample of both labels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from transduce.corpora.entry import File, Form, Listing
from transduce.corpora.unpack import members, read_bytes
from transduce.errors import DataError
from transduce.recipe import Columns

ADDRESS = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
ONE = re.compile(
    r"aclImdb/(?P<split>train|test)/(?P<label>neg|pos)/(?P<number>\d+)_(?P<rating>\d+)\.txt"
)
LABELS = ("neg", "pos")
OF_EACH = 12_500
SPLITS = {"train": 22_500, "valid": 2_500, "test": 25_000}


class Review(NamedTuple):
    text: str
    label: str
    rating: str
    number: str


Reviews = dict[str, list[Review]]


def _make_from_archive(files: Mapping[str, Path], folder: Path) -> None:
    """From the archive, or from the folder that it unpacks to."""
    (path,) = files.values()
    reviews: Reviews = {"train": [], "test": []}
    for found, contents in members(path, ONE):
        try:
            # 27 of them have tabs; a line is to hold one review.
            text = " ".join(contents.decode("utf-8").split())
        except UnicodeDecodeError:
            raise DataError(f"{found[0]} in {path} is not UTF-8; get the archive again") from None
        reviews[found["split"]].append(
            Review(text, found["label"], found["rating"], found["number"])
        )
    _write(reviews, path, folder)


def _make_from_tables(files: Mapping[str, Path], folder: Path) -> None:
    """From tables of label, number, rating and review."""
    reviews: Reviews = {}
    for split in ("train", "test"):
        lines = read_bytes(files[f"{split}.tsv"]).decode("utf-8").split("\n")
        rows = [line.split("\t") for line in lines if line]
        reviews[split] = [Review(row[3], row[0], row[2], row[1]) for row in rows]
    _write(reviews, files["train.tsv"].parent, folder)


def _write(reviews: Reviews, origin: Path, folder: Path) -> None:
    for split, some in reviews.items():
        counts = Counter(review.label for review in some)
        for label in LABELS:
            if counts[label] != OF_EACH:
                raise DataError(
                    f"{origin} has {counts[label]:,} reviews in {split}/{label} instead of "
                    f"{OF_EACH:,}; get it again"
                )
        some.sort(key=lambda review: (sha256(review.text.encode()).digest(), review.number))
    train = reviews["train"]
    parts = {"train": train[: SPLITS["train"]], "valid": train[SPLITS["train"] :]}
    for split, some in {**parts, "test": reviews["test"]}.items():
        rows: Iterable[str] = ("\t".join(review) + "\n" for review in some)
        (folder / f"{split}.tsv").write_bytes("".join(rows).encode("utf-8"))


IMDB = Listing(
    name="imdb",
    about="film reviews in English, to tell the good from the bad",
    licence="research use",
    terms="no licence is given; released for research, to be cited as Maas et al. 2011",
    home="https://ai.stanford.edu/~amaas/data/sentiment/",
    size=66_090_440,
    splits=SPLITS,
    forms=(
        Form((File("aclImdb_v1.tar.gz", ADDRESS),), _make_from_archive),
        Form((File("aclImdb"),), _make_from_archive),
        Form((File("train.tsv"), File("test.tsv")), _make_from_tables),
    ),
    read=lambda split, _: Columns(file=f"imdb/{split}.tsv"),
    unit="reviews",
)
