"""Telephone prompts of Asterisk: one voice in a studio, with transcripts.

Transcripts as spoken: lower case, digits as words, no punctuation. Equal texts are in one split:
about a tenth of the texts are for validation, another tenth for the test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from transduce.corpora.entry import File, Form, Listing
from transduce.corpora.unpack import members, read_bytes
from transduce.recipe import Recordings

SOUND = re.compile(r"en/(?P<name>[\w-]+)\.flac")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPOKEN = {**{str(digit): word for digit, word in enumerate(DIGITS)}, "*": "star", "#": "pound"}


def spoken(text: str) -> str:
    """A prompt as it is spoken: "Press 1." becomes "press one"."""
    text = re.sub(r"\[.*?\]", "", text.lower())
    text = re.sub(r"[0-9*#]", lambda sign: f" {SPOKEN[sign[0]]} ", text)
    return " ".join(re.sub(r"[^a-z' ]", " ", text).split())


def _make(files: Mapping[str, Path], folder: Path) -> None:
    (folder / "sounds").mkdir()
    for found, contents in members(files["en_flac_8k.tar"], SOUND):
        (folder / "sounds" / f"{found['name']}.flac").write_bytes(contents)
    tables = dict.fromkeys(ASTERISK.splits, "path\ttext\tprompt\n")
    for line in read_bytes(files["transcripts.tsv"]).decode("utf-8").split("\n")[1:]:
        if not line:
            continue
        prompt, english = line.split("\t")[:2]
        path = f"sounds/{prompt.replace('/', '__')}.flac"
        if spoken(english) and (folder / path).is_file():
            tables[_split(spoken(english))] += f"{path}\t{spoken(english)}\t{english}\n"
    for split, table in tables.items():
        (folder / f"{split}.tsv").write_bytes(table.encode("utf-8"))


def _split(text: str) -> str:
    place = int.from_bytes(sha256(text.encode()).digest()[:8], "big") % 10
    return {0: "test", 1: "valid"}.get(place, "train")


ASTERISK = Listing(
    name="asterisk",
    about="24 minutes of telephone prompts in English, one voice, to recognise",
    licence="CC BY-SA 3.0",
    terms="CC BY-SA 3.0, spoken by Allison Smith",
    home="https://packages.debian.org/stable/asterisk-core-sounds-en-wav",
    size=14_735_539,
    splits={"train": 432, "valid": 62, "test": 57},
    forms=(Form((File("en_flac_8k.tar"), File("transcripts.tsv")), _make),),
    read=lambda split, _: Recordings(file=f"asterisk/{split}.tsv", audio="path", target="text"),
    unit="recordings",
)
