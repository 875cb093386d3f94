"""A corpus of two small files that a server on this machine has; as a script, the command line.

python tiny_corpus.py http://127.0.0.1:8000 corpus get tiny
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from transduce.corpora import catalogue
from transduce.corpora import entry as listing
from transduce.corpora.entry import Checksum, File, Form, Listing
from transduce.corpora.unpack import read_bytes
from transduce.recipe import ParallelFiles

ENGLISH = "".join(f"{n} dogs and {n * n} cats\n" for n in range(5000)).encode()
GERMAN = "".join(f"{n} Hunde und {n * n} Kätzchen\n" for n in range(5000)).encode()
CONTENTS = {"one.en": ENGLISH, "one.de": GERMAN}
SERVED = {"one.en.gz": gzip.compress(ENGLISH, mtime=0), "one.de": GERMAN}
THERE = {"one.en": "one.en.gz", "one.de": "one.de"}
SUMS = {
    ("tiny", name): Checksum(len(text), sha256(text).hexdigest(), len(SERVED[THERE[name]]))
    for name, text in CONTENTS.items()
}


def make(files: Mapping[str, Path], folder: Path) -> None:
    for name, path in files.items():
        (folder / name.replace("one", "train")).write_bytes(read_bytes(path))


def tiny_listing(address: str) -> Listing:
    files = tuple(File(name, f"{address}/{there}") for name, there in THERE.items())
    return Listing(
        name="tiny",
        about="dogs and cats",
        licence="public domain",
        terms="in the public domain",
        home="https://example.org",
        size=sum(map(len, CONTENTS.values())),
        splits={"train": 5000},
        forms=(Form(files, make),),
        read=lambda split, pair: ParallelFiles(source="tiny/train.en", target="tiny/train.de"),
        key="pair",
        example="en-de",
        languages=lambda folder: ("en", "de"),
    )


if __name__ == "__main__":
    from transduce.cli.main import main

    catalogue.FETCHED["tiny"] = tiny_listing(sys.argv.pop(1))
    listing._checksums = lambda: SUMS  # type: ignore[assignment]
    main()
