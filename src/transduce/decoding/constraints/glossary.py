"""Glossaries: terms of the source, and the translations that outputs must use for them.

A glossary becomes required phrases of each output: for the terms that its source has, and no
others. `place_terms` says where they stand. All else is left to the model: articles, and what
agrees with the term.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any
from unicodedata import category, normalize

from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.decoding.constraints.read import AnyOf, Phrases
from transduce.decoding_settings import Terms
from transduce.errors import DataError, ModelError

MAX_CHARACTERS = 1000  # characters of a term or a translation
MAX_FILE_BYTES = 64 << 20
# Scripts that are written without blanks, where a word may begin at any character: Thai, Lao,
# Burmese, Khmer, kana, Chinese.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
# Accents and vowel signs, which Python does not count as part of a word.
MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0dff"
WORD = re.compile(rf"[{UNSPACED}]|(?:[^\W{UNSPACED}]|[{MARKS}])+|[^\w\s]")


class Glossary:
    """Terms with one or several translations each.

    A term is found as whole words, the longest first. One in small letters is found in any case,
    one with capitals as it is written or all in capitals.
    """

    def __init__(
        self, entries: Mapping[str, str | Sequence[str]], name: str = "the glossary"
    ) -> None:
        """name: for error messages. Raises DataError."""
        if not isinstance(entries, Mapping):
            raise DataError(f"{name} must map terms to translations, not {entries!r:.40}")
        self.name = name
        self.entries: dict[str, tuple[str, ...]] = {}
        self.characters = 0
        """Of all terms and translations."""
        self._tree = _Node()
        for term, given in entries.items():
            _check(name, term)
            several = given if isinstance(given, list | tuple) else [given]
            translations = tuple(dict.fromkeys(several))
            if not translations:
                raise DataError(f"{name}: {term[:40]!r} has no translation; give one")
            for translation in translations:
                _check(name, translation)
            self.entries[term] = translations
            self.characters += len(term) + sum(map(len, translations))
            words = WORD.findall(normalize("NFC", term))
            self._tree.add(words, translations)
        self.characters = sum(
            len(text) for term, of in self.entries.items() for text in (term, *of)
        )
        self._writable: Tokens | None = None

    @classmethod
    def of(cls, given: Terms | Glossary) -> Glossary:
        """A glossary as `run` takes it: itself, a mapping, or a file. Raises DataError."""
        if isinstance(given, Glossary):
            return given
        if isinstance(given, str | PathLike):
            return cls.read(Path(given))
        return cls(given or {})

    @classmethod
    def read(cls, path: Path) -> Glossary:
        """A .tsv or .csv file: a term and its translation a line. Raises DataError."""
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise DataError(
                    f"{path} is larger than {MAX_FILE_BYTES >> 20} MB; is it a glossary?"
                )
            text = path.read_text("utf-8-sig")
        except OSError as error:
            raise DataError(
                f"the glossary {path} cannot be read ({error.strerror}); give a file with a term, "
                f"a tab and its translation a line"
            ) from None
        except UnicodeDecodeError:
            raise DataError(f"{path} is not UTF-8; convert it first") from None
        entries: dict[str, list[str]] = {}
        for term, translation in parse(text, str(path), "csv" if path.suffix == ".csv" else "tsv"):
            entries.setdefault(term, []).append(translation)
        if not entries:
            raise DataError(f"{path} is empty; write a term, a tab and its translation a line")
        return cls(entries, str(path))

    def phrases(self, source: str) -> list[AnyOf]:
        """What the output of a source must contain: the wordings of each phrase, and where its term
        is in the source, in the normalization form NFC."""
        text = normalize("NFC", source)
        matches = list(WORD.finditer(text))
        words = [match[0] for match in matches]
        found: dict[tuple[str, ...], AnyOf] = {}
        place = 0
        while place < len(words):
            size, translations = self._tree.longest(words, place)
            if size:
                shown = " ".join(words[place : place + size])
                wordings = tuple(_cased(translations, shown))
                start, end = matches[place].start(), matches[place + size - 1].end()
                term = AnyOf(wordings, (start - len(text), end - len(text)))
                found.setdefault(wordings, term)  # a term that comes again is required once
            place += size or 1
        return list(found.values())

    def check(self, tokens: Tokens) -> None:
        """Raise DataError for a translation that a vocabulary cannot write."""
        if self._writable is tokens:
            return
        texts = list(dict.fromkeys(text for some in self.entries.values() for text in some))
        for text, ids in zip(texts, tokens.encode_batch(texts, prefixed=False), strict=True):
            if UNKNOWN in ids:
                raise DataError(
                    f"{self.name}: {text[:40]!r} has tokens that are not in this model's "
                    f"vocabulary; remove the entry, or change it"
                )
        self._writable = tokens


def with_glossary(
    include: Phrases, glossary: Terms | Glossary, sources: Sequence[str], tokens: Tokens
) -> Phrases:
    """The required phrases of each source, with those of a glossary. Raises DataError."""
    terms = Glossary.of(glossary)
    terms.check(tokens)
    given: list[Any] = [include] if isinstance(include, str) else list(include or ())
    if all(isinstance(entry, str) for entry in given):
        given = [given] * len(sources)
    if len(given) != len(sources):
        raise ModelError(f"include has {len(given)} entries, but there are {len(sources)} sources")
    found: list[Any] = [
        [*([own] if isinstance(own, str) else own or ()), *terms.phrases(source)]
        for own, source in zip(given, sources, strict=True)
    ]
    return found


def parse(text: str, name: str, kind: str) -> Iterable[tuple[str, str]]:
    """The pairs of a term and its translation in a text, tsv or csv. Raises DataError."""
    if kind == "csv":
        lines: Iterable[list[str]] = csv.reader(text.splitlines(keepends=True), strict=True)
    else:
        lines = (line.split("\t") for line in text.split("\n"))
    number = 0
    try:
        for number, cells in enumerate(lines, start=1):
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            # CSV files of DeepL may have the codes of both languages behind.
            if len(cells) != 2 and not (kind == "csv" and len(cells) == 4):
                columns = "column" if len(cells) == 1 else "columns"
                raise DataError(
                    f"{name}:{number}: {len(cells)} {columns} instead of two, a term and its "
                    f"translation; further translations are further lines"
                )
            for cell in cells[:2]:
                _check(f"{name}:{number}", cell)
            yield cells[0], cells[1]
    except csv.Error as error:
        raise DataError(f"{name}:{number + 1}: not valid CSV ({error}); correct the line") from None


class _Node:
    """A tree of the words of terms, in small letters."""

    __slots__ = ("next", "terms")

    def __init__(self) -> None:
        self.next: dict[str, _Node] = {}
        self.terms: list[tuple[list[str], tuple[str, ...]]] = []
        """Terms that end here, which differ in their case alone."""

    def add(self, words: list[str], translations: tuple[str, ...]) -> None:
        node = self
        for word in words:
            node = node.next.setdefault(word.casefold(), _Node())
        node.terms.append((words, translations))

    def longest(self, words: Sequence[str], place: int) -> tuple[int, tuple[str, ...]]:
        """The number of words of the longest term from a place on, and its translations."""
        node, size = self, 0
        found: tuple[str, ...] = ()
        for end in range(place, len(words)):
            following = node.next.get(words[end].casefold())
            if following is None:
                break
            node = following
            if node.terms and (translations := node.of(words[place : end + 1])):
                size, found = end + 1 - place, translations
        return size, found

    def of(self, words: Sequence[str]) -> tuple[str, ...]:
        """The translations of the term that fits the case of words best; empty: none fits."""
        capitals = " ".join(words).isupper()
        for fits in (
            lambda term: term == words,
            lambda term: all(word == word.lower() for word in term),
            lambda term: capitals,
        ):
            for term, translations in self.terms:
                if fits(term):
                    return translations
        return ()


def _cased(translations: Sequence[str], shown: str) -> Iterable[str]:
    """The translations, and in capitals where the term is: at the beginning, which may be that of
    a sentence, or all of it."""
    found = list(translations)
    found += [text[:1].upper() + text[1:] for text in translations if text[:1].islower()]
    if shown.isupper() and len(shown) > 1:
        found += [text.upper() for text in translations]
    return dict.fromkeys(found)


def _check(name: str, text: Any) -> None:
    """Raise DataError for what is no term and no translation."""
    if not isinstance(text, str):
        raise DataError(f"{name}: {text!r:.40} is not text; write a term and its translation")
    if len(text) > MAX_CHARACTERS:
        raise DataError(
            f"{name}: {text[:40]!r}… has {len(text):,} characters; the maximum is "
            f"{MAX_CHARACTERS:,}"
        )
    if not text.strip():
        raise DataError(f"{name} has an empty term or translation; remove it")
    if any(category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in text):
        raise DataError(
            f"{name}: {text[:40]!r} has a line end, a tab or another control character; remove it"
        )
