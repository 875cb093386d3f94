"""Mboshi, a Bantu language, spoken; its transcript and its French translation (Godard 2018).

Of the authors' two parts the smaller is the test. About one in twenty of the larger is for
validation, all utterances of a sentence on the same side.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from transduce.corpora.entry import File, Form, Listing
from transduce.corpora.unpack import members, read_bytes
from transduce.recipe import Recordings

SOUND = re.compile(r"(?:\./)?(?P<name>\w+)\.opus")
ARCHIVES = ("audio_train_a.tar", "audio_train_b.tar", "audio_dev.tar")
COLUMNS = ("path", "speaker", "seconds", "mb", "fr", "mb_written", "fr_written")


def _make(files: Mapping[str, Path], folder: Path) -> None:
    (folder / "sounds").mkdir()
    for archive in ARCHIVES:
        for found, contents in members(files[archive], SOUND):
            (folder / "sounds" / f"{found['name']}.opus").write_bytes(contents)
    tables = {split: "\t".join(COLUMNS) + "\n" for split in MBOSHI.splits}
    for line in read_bytes(files["transcripts.tsv"]).decode("utf-8").split("\n")[1:]:
        if not line:
            continue
        name, part, speaker, seconds, mb, mb_clean, fr, fr_clean = line.split("\t")[:8]
        row = (f"sounds/{name}.opus", speaker, seconds, mb_clean, fr_clean, mb, fr)
        split = "test" if part == "dev" else _split(mb_clean)
        tables[split] += "\t".join(row) + "\n"
    for split, table in tables.items():
        (folder / f"{split}.tsv").write_bytes(table.encode("utf-8"))


def _split(sentence: str) -> str:
    place = int.from_bytes(sha256(sentence.encode()).digest()[:8], "big") % 20
    return "train" if place else "valid"


def _read(split: str, language: str) -> Recordings:
    said = None if language == "mb" else "mb"
    return Recordings(file=f"mboshi/{split}.tsv", audio="path", target=language, transcript=said)


MBOSHI = Listing(
    name="mboshi",
    about="4 hours of Mboshi, transcribed and translated into French",
    licence="research use",
    terms="no licence is given; made available for experiments in language documentation",
    home="https://github.com/besacier/mboshi-french-parallel-corpus",
    size=40_977_828,
    splits={"train": 4_365, "valid": 251, "test": 514},
    forms=(Form(tuple(File(name) for name in (*ARCHIVES, "transcripts.tsv")), _make),),
    read=_read,
    key="language",
    example="mb",
    unit="recordings",
    languages=lambda folder: ("mb", "fr"),
)
