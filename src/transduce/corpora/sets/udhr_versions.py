"""One version of the Declaration of Human Rights, out of the corpus `udhr`, in its order."""

from __future__ import annotations

from dataclasses import dataclass

from transduce.corpora.catalogue import check_language, find
from transduce.corpora.sets.udhr import LANGUAGES, SPLIT_OF, SPLITS, UDHR, read_rows

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
