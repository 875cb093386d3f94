"""Corpora of speech: recordings with their texts, downloaded, or read aloud here by espeak."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from transduce.corpora.entry import File, Form, Listing
from transduce.corpora.location import read_metadata
from transduce.corpora.unpack import members, part_of, read_rows, write_rows
from transduce.errors import DataError
from transduce.recipe import Recordings

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def _sounds(archive: Path, wanted: re.Pattern[str], folder: Path) -> Iterator[re.Match[str]]:
    """Write the matching recordings of an archive to sounds/, by their group `name`."""
    (folder / "sounds").mkdir(exist_ok=True)
    for found, contents in members(archive, wanted):
        (folder / "sounds" / found["name"]).write_bytes(contents)
        yield found


def _write_tables(tables: Mapping[str, Sequence[Sequence[str]]], folder: Path) -> None:
    for split, rows in tables.items():
        write_rows(folder / f"{split}.tsv", rows)


# ------------------------------------------------------------------------------------ Asterisk
# Telephone prompts: one voice in a studio, with transcripts as spoken: lower case, digits as
# words, no punctuation. Equal texts are in one split: about a tenth of the texts are for
# validation, another tenth for the test.

SPOKEN = {**{str(digit): word for digit, word in enumerate(DIGITS)}, "*": "star", "#": "pound"}


def spoken(text: str) -> str:
    """A prompt as it is spoken: "Press 1." becomes "press one"."""
    text = re.sub(r"\[.*?\]", "", text.lower())
    text = re.sub(r"[0-9*#]", lambda sign: f" {SPOKEN[sign[0]]} ", text)
    return " ".join(re.sub(r"[^a-z' ]", " ", text).split())


def _make_asterisk(files: Mapping[str, Path], folder: Path) -> None:
    sounds = re.compile(r"en/(?P<name>[\w-]+\.flac)")
    there = {found["name"] for found in _sounds(files["en_flac_8k.tar"], sounds, folder)}
    tables = {split: [("path", "text", "prompt")] for split in ASTERISK.splits}
    for prompt, english, *_ in read_rows(files["transcripts.tsv"])[1:]:
        name, text = f"{prompt.replace('/', '__')}.flac", spoken(english)
        if text and name in there:
            split = {0: "test", 1: "valid"}.get(part_of(text, 10), "train")
            tables[split].append((f"sounds/{name}", text, english))
    _write_tables(tables, folder)


ASTERISK = Listing(
    name="asterisk",
    about="24 minutes of telephone prompts in English, one voice, to recognise",
    licence="CC BY-SA 3.0",
    terms="CC BY-SA 3.0, spoken by Allison Smith",
    home="https://packages.debian.org/stable/asterisk-core-sounds-en-wav",
    size=14_735_539,
    splits={"train": 432, "valid": 62, "test": 57},
    forms=(Form((File("en_flac_8k.tar"), File("transcripts.tsv")), _make_asterisk),),
    read=lambda split, _: Recordings(file=f"asterisk/{split}.tsv", audio="path", target="text"),
    unit="recordings",
)

# -------------------------------------------------------------------------------------- Mboshi
# A Bantu language, spoken; its transcript and its French translation (Godard 2018). Of the
# authors' two parts the smaller is the test. About one in twenty of the larger is for validation,
# all utterances of a sentence on the same side.

MBOSHI_ARCHIVES = ("audio_train_a.tar", "audio_train_b.tar", "audio_dev.tar")
MBOSHI_COLUMNS = ("path", "speaker", "seconds", "mb", "fr", "mb_written", "fr_written")


def _make_mboshi(files: Mapping[str, Path], folder: Path) -> None:
    for archive in MBOSHI_ARCHIVES:
        for _ in _sounds(files[archive], re.compile(r"(?:\./)?(?P<name>\w+\.opus)"), folder):
            pass
    tables: dict[str, list[Sequence[str]]] = {split: [MBOSHI_COLUMNS] for split in MBOSHI.splits}
    for row in read_rows(files["transcripts.tsv"])[1:]:
        name, part, speaker, seconds, mb, mb_clean, fr, fr_clean = row[:8]
        split = "test" if part == "dev" else "train" if part_of(mb_clean, 20) else "valid"
        tables[split].append((f"sounds/{name}.opus", speaker, seconds, mb_clean, fr_clean, mb, fr))
    _write_tables(tables, folder)


def _read_mboshi(split: str, language: str) -> Recordings:
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
    forms=(
        Form(tuple(File(name) for name in (*MBOSHI_ARCHIVES, "transcripts.tsv")), _make_mboshi),
    ),
    read=_read_mboshi,
    key="language",
    example="mb",
    unit="recordings",
    languages=lambda folder: ("mb", "fr"),
)

# ------------------------------------------------------------------------------- spoken digits
# The Free Spoken Digit Dataset (Jackson et al. 2018): digits spoken in English by six people, to
# recognise, or to tell who speaks. The authors' split: of the 50 recordings that a speaker has of
# a digit, the first five are the test. The next five are for validation.

DIGITS_HOME = "https://github.com/Jakobovski/free-spoken-digit-dataset"
DIGITS_VERSION = "1.0.10"
DIGIT_SOUND = re.compile(
    r"(?:[\w.-]+/)*recordings/(?P<name>(?P<digit>\d)_(?P<speaker>[a-z]+)_(?P<number>[1-4]?\d)\.wav)"
)
HELD_OUT = 5  # recordings of a digit by a speaker, for the test and as many for validation


def _make_digits(files: Mapping[str, Path], folder: Path) -> None:
    """From the archive of the repository, or from a folder that it was unpacked to."""
    (origin,) = files.values()
    rows: dict[str, list[tuple[str, str, int, str]]] = {split: [] for split in SPOKEN_DIGITS.splits}
    for found in _sounds(origin, DIGIT_SOUND, folder):
        number = int(found["number"])
        split = "test" if number < HELD_OUT else "valid" if number < 2 * HELD_OUT else "train"
        rows[split].append((found["speaker"], found["digit"], number, found["name"]))
    for split, some in rows.items():
        if len(some) != SPOKEN_DIGITS.splits[split]:
            raise DataError(
                f"{origin} has {len(some):,} recordings for {split} instead of "
                f"{SPOKEN_DIGITS.splits[split]:,}; get version {DIGITS_VERSION} from {DIGITS_HOME}"
            )
        lines = [(f"sounds/{n}", DIGITS[int(d)], s) for s, d, _, n in sorted(some)]
        write_rows(folder / f"{split}.tsv", [("path", "text", "speaker"), *lines])


def _read_digits(split: str, _: str) -> Recordings:
    file = f"spoken-digits/{split}.tsv"
    return Recordings(file=file, audio="path", target="text", group="speaker")


SPOKEN_DIGITS = Listing(
    name="spoken-digits",
    about="digits spoken in English by six people, 22 minutes, to recognise",
    licence="CC BY-SA 4.0",
    terms="CC BY-SA 4.0, the Free Spoken Digit Dataset by Zohar Jackson and others",
    home=DIGITS_HOME,
    size=21_643_442,
    splits={"train": 2_400, "valid": 300, "test": 300},
    forms=tuple(
        Form((file,), _make_digits)
        for file in (
            File(
                f"v{DIGITS_VERSION}.tar",
                f"{DIGITS_HOME}/archive/refs/tags/v{DIGITS_VERSION}.tar.gz",
            ),
            File(f"free-spoken-digit-dataset-{DIGITS_VERSION}.tar"),
            File("recordings"),
        )
    ),
    read=_read_digits,
    unit="recordings",
)

# ------------------------------------------------------------------------------- announcements
# Of a railway station that was never built: `transduce demo speech` has espeak's voices read them.
# The test has voices and announcements that training has not.

ANNOUNCEMENT_COLUMNS = ("audio", "text", "voice", "seconds")
ANNOUNCEMENT_COUNTS = {"train": 920, "valid": 46, "test": 100}
STATIONS = "athens berlin cairo dublin lisbon london madrid oslo paris prague rome vienna"
# The next word cannot be guessed: a recogniser must listen to every word.
PARTS = {
    "service": ["train", "express", "bus", "tram", "ferry"],
    "place": STATIONS.split(),
    "digit": [*DIGITS[1:], DIGITS[0]],
}
FORMS = [
    "{service} {digit} {digit} to {place} platform {digit}",
    "{service} to {place} calling at {place} {place} and {place}",
    "{place} {service} {digit} minutes late",
    "change at {place} for {place} {place} and {place}",
    "window {digit} for tickets to {place} and {place}",
]


def announcements() -> dict[str, list[str]]:
    """The announcements of each split; no two are equal."""
    # random() is the only method whose sequence Python guarantees for a seed.
    draw = random.Random(18250927).random

    def one_of(choices: list[str]) -> str:
        return choices[int(draw() * len(choices))]

    found: dict[str, None] = {}
    while len(found) < sum(ANNOUNCEMENT_COUNTS.values()):
        text = one_of(FORMS)
        while "{" in text:
            name = text[text.index("{") + 1 : text.index("}")]
            text = text.replace(f"{{{name}}}", one_of(PARTS[name]), 1)
        found[text] = None
    texts = iter(found)
    return {
        split: [next(texts) for _ in range(count)] for split, count in ANNOUNCEMENT_COUNTS.items()
    }


def _read_announcements(split: str, _: str) -> Recordings:
    return Recordings(file=f"announcements/{split}.tsv", audio="audio", target="text")


ANNOUNCEMENTS = Listing(
    name="announcements",
    about="announcements of a railway station, read by espeak's voices",
    licence="Apache-2.0",
    terms="made by transduce, read by espeak-ng",
    home="https://github.com/espeak-ng/espeak-ng",
    size=0,
    splits=ANNOUNCEMENT_COUNTS,
    forms=(),
    read=_read_announcements,
    unit="recordings",
    languages=lambda folder: ["en"] if read_metadata(folder) else [],
    command="transduce demo speech",
)

# ---------------------------------------------------------------------------- the Declaration
# The Declaration of Human Rights as espeak's voices read it. `transduce corpus udhr` makes it, a
# folder a language. Voices and articles are held out: validation and both tests have articles
# that training has not, `test-voices` also voices that it has not.

ALL = "all"
READING_SPLITS = ("train", "valid", "test-articles", "test-voices")
READING_COLUMNS = ("audio", "text", "phones", "language", "voice", "segment", "seconds")


def _languages_made(folder: Path) -> Sequence[str]:
    found = sorted(path.name for path in folder.glob("*") if read_metadata(path))
    return [*found, ALL] if found else []


def _read_declaration(split: str, language: str) -> Recordings:
    folder = "*" if language == ALL else language
    file = f"udhr-spoken/{folder}/{split}.tsv"
    return Recordings(file=file, audio="audio", target="phones", group="language")


UDHR_SPOKEN = Listing(
    name="udhr-spoken",
    about="the Declaration read aloud by espeak's voices, and its phones",
    licence="free",
    terms="the Declaration is free of copyright; it is read by espeak-ng",
    home="https://github.com/espeak-ng/espeak-ng",
    size=0,
    splits=dict.fromkeys(READING_SPLITS, 0),
    forms=(),
    read=_read_declaration,
    key="language",
    example="eng",
    unit="recordings",
    languages=_languages_made,
    command="transduce corpus udhr",
)
