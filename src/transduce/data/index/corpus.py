"""The index of a corpus: its blocks, wherever their files lie, read one by one in any order.

Parallel text, text, TSV, JSONL and Parquet are read from their files. What has no blocks of its own
(CSV and CoNLL, whose records span lines; a dataset of the hub; a corpus with a limit; part of a
running text; large row groups) is copied into the cache once, as JSON, a pair a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from transduce.data.cache.eviction import note_use
from transduce.data.cache.tokenised import content_key
from transduce.data.index.files import (
    FileIndex,
    Say,
    index_groups,
    index_lines,
    index_texts,
    say_all,
)
from transduce.data.text.columns import format_of
from transduce.data.text.files import Span, locate, read_lines
from transduce.data.text.hub import hub_version
from transduce.data.text.pairs import (
    FileBlock,
    Pair,
    PairColumns,
    ReadingCounts,
    corpus_files,
    corpus_name,
    matched_files,
    read_block,
    read_pairs,
    read_plain_block,
    resolved,
    tagged,
    uneven,
)
from transduce.recipe import Columns, Corpus, Data, Hub, Mixture, ParallelFiles, Text
from transduce.storage.positions import version_of
from transduce.storage.remote import RemotePath

PLACES = 256  # blocks of a pool: from so many places of the corpus
MAX_BLOCK = 4096  # rows
LINED = (".tsv", ".jsonl")  # formats with a record a line
AT_ONCE = 16  # requests to a store


@dataclass(frozen=True)
class Section:
    """A file of a corpus, or a source file and its target file, and how they are read."""

    files: tuple[FileIndex, ...]
    corpus: ParallelFiles | Columns | Text | None
    """None: pairs as JSON, which are complete."""
    folder: str | None
    tags: tuple[str, ...]
    """Of the corpus: they come before those of a row."""
    outer: tuple[str, ...]
    """Of the list of corpora that it is in."""
    part: int
    """Which corpus of a list it belongs to."""

    def read(self, block: int, counts: ReadingCounts) -> PairColumns:
        if self.corpus is not None:
            tags = (*self.outer, *self.tags)
            place = self._place(block)
            found = read_plain_block(self.corpus, self.folder, place, tags, counts)
            if found is not None:
                return found
        return PairColumns.of(self.pairs(block, counts))

    def pairs(self, block: int, counts: ReadingCounts) -> Iterator[Pair]:
        """The same with their tags."""
        place = self._place(block)
        pairs: Iterator[Pair]
        if self.corpus is None:
            (name,), (span,) = place.names, place.spans
            assert isinstance(span, Span)
            pairs = map(_pair, read_lines(name, None, table=True, span=span))
        else:
            pairs = read_block(self.corpus, self.folder, place, self.tags, counts)
        if not self.outer:
            return pairs
        return (tagged(pair, self.outer, pair.tags) for pair in pairs)

    def remote_spans(self, block: int) -> Iterator[tuple[RemotePath, Span]]:
        """The parts of remote files that a block is read from."""
        for file in self.files:
            span = file.span(block)
            place = locate(file.name, self.folder)
            if isinstance(place, RemotePath) and isinstance(span, Span) and span.copy is None:
                yield place, span

    def _place(self, block: int) -> FileBlock:
        # A run may last longer than the cache keeps what is not used.
        note_use(*(file.copy for file in self.files if file.copy is not None))
        names = tuple(file.name for file in self.files)
        return FileBlock(names, tuple(file.span(block) for file in self.files))


class CorpusIndex:
    """The blocks of a corpus, numbered from 0."""

    def __init__(self, sections: list[Section]) -> None:
        self.sections = sections
        self.starts = np.cumsum([0, *(len(section.files[0]) for section in sections)])
        """The first block of each section, and the number of all blocks."""
        self.rows = np.concatenate([section.files[0].sizes for section in sections])
        """Rows of each block, before any is skipped."""
        found = [section.part for section in sections]
        self.parts = [
            range(*self.starts[[found.index(part), found.index(part) + found.count(part)]].tolist())
            for part in dict.fromkeys(found)
        ]
        """The blocks of each corpus of a list."""

    def read(self, block: int, counts: ReadingCounts) -> PairColumns:
        """The pairs of a block. Raises DataError where its file has changed."""
        section, within = self._place(block)
        return section.read(within, counts)

    def pairs(self, block: int, counts: ReadingCounts) -> Iterator[Pair]:
        """The same with their tags, one by one, which takes longer."""
        section, within = self._place(block)
        return section.pairs(within, counts)

    def identity(self) -> list[object]:
        """What the pairs depend on: the versions of all files, and how they are read; as JSON."""
        return [
            [
                None if section.corpus is None else section.corpus.model_dump(mode="json"),
                str(Path(section.folder or ".").absolute()),
                section.tags,
                section.outer,
                [[file.name, vars(file.version), file.block, file.rows] for file in section.files],
            ]
            for section in self.sections
        ]

    def _place(self, block: int) -> tuple[Section, int]:
        """The section that a block is in, and its number there."""
        section = int(np.searchsorted(self.starts, block, side="right")) - 1
        return self.sections[section], block - int(self.starts[section])

    def fetch(self, blocks: Sequence[int]) -> None:
        """Fetch what blocks are read from into the cache, all at once; nothing of local files.

        A store answers a request in tens of milliseconds, whatever its size.
        """
        places = map(self._place, blocks)
        wanted = [part for section, within in places for part in section.remote_spans(within)]
        if not wanted:
            return
        with ThreadPoolExecutor(AT_ONCE) as threads:
            asked = [threads.submit(at.read, s.start, s.end, s.version) for at, s in wanted]
            for one in asked:
                one.result()


def index_stream(corpus: Corpus, data: Data, cache: Path, say: Say) -> CorpusIndex:
    """The index of a streamed corpus in the blocks of its pools, from the cache or made."""
    block = max(1, min(MAX_BLOCK, data.shuffle_buffer // PLACES))
    return index_corpus(corpus, data.folder, block, cache, say)


def index_corpus(
    corpus: Corpus, folder: str | None, block: int, cache: Path, say: Say
) -> CorpusIndex:
    """The index of a corpus in blocks of so many rows (of Parquet, as its row groups are).

    say: takes sentences about what is made, and made again.
    """
    make = partial(_sections, block=block, cache=cache, say=say)
    found, place = resolved(corpus, folder)
    own = _own_tags(corpus)
    if isinstance(found, Mixture) and corpus.limit is None and found.limit is None:
        numbered = enumerate(found.of)
        sections = chain.from_iterable(make(one, place, own, part) for part, one in numbered)
        return CorpusIndex(list(sections))
    return CorpusIndex(make(corpus, folder, (), 0))


def _own_tags(corpus: Corpus) -> tuple[str, ...]:
    return tuple(filter(None, [getattr(corpus, "tag", None)]))


def _sections(
    corpus: Corpus,
    folder: str | None,
    outer: tuple[str, ...],
    part: int,
    block: int,
    cache: Path,
    say: Say,
) -> list[Section]:
    """The files of one corpus of a list."""
    found, place = resolved(corpus, folder)
    if files := _files(corpus, found, place, block, cache, say):
        assert isinstance(found, ParallelFiles | Columns | Text)
        return [Section(one, found, place, _own_tags(corpus), outer, part) for one in files]
    counts = ReadingCounts()
    copied = index_texts(
        corpus_name(corpus),
        _version(corpus, found, place, folder),
        lambda: map(_text, read_pairs(corpus, folder, counts)),
        block,
        cache,
        say,
    )
    say_all(say, counts.sentences())
    return [Section((copied,), None, None, (), outer, part)]


def _files(
    corpus: Corpus, found: Corpus, folder: str | None, block: int, cache: Path, say: Say
) -> list[tuple[FileIndex, ...]]:
    """The indexes of the files of a corpus; none where it has no blocks of its own."""
    if corpus.limit is not None or found.limit is not None:
        return []

    def lines(name: str) -> FileIndex:
        return index_lines(name, folder, block, cache, say)

    if isinstance(found, ParallelFiles):
        both = [(lines(source), lines(target)) for source, target in matched_files(found, folder)]
        for source, target in both:
            if source.rows != target.rows:
                raise uneven(source.name, target.name, source.rows, target.rows)
        return list(both)
    names = corpus_files(found, folder)
    if isinstance(found, Text):
        whole = not (found.running and found.split is not None)
        return [(lines(name),) for name in names] if whole else []
    if not isinstance(found, Columns):
        return []
    formats = {format_of(name, found.format) for name in names}
    if formats <= set(LINED):
        return [(lines(name),) for name in names]
    if formats == {".parquet"}:
        groups = [index_groups(name, folder) for name in names]
        known = [(one,) for one in groups if one is not None]
        return list(known) if len(known) == len(groups) else []  # else some are too large
    return []


def _version(corpus: Corpus, found: Corpus, folder: str | None, outer: str | None) -> str:
    """What the pairs of a corpus depend on: its settings, and the versions of its files."""
    settings = [corpus.model_dump(mode="json"), outer]
    if isinstance(found, Hub):
        return json.dumps([*settings, hub_version(found)])
    parts = [resolved(one, folder) for one in found.of] if isinstance(found, Mixture) else []
    of_files = parts or [(found, folder)]
    if all(corpus_files(one, place) for one, place in of_files):
        paths = [
            locate(name, place) for one, place in of_files for name in corpus_files(one, place)
        ]
        versions = [(str(path.absolute()), vars(version_of(path))) for path in paths]
        return json.dumps([*settings, versions])
    return json.dumps([*settings, content_key(corpus, outer)])


def _text(pair: Pair) -> str:
    fields = [pair.source, pair.target, pair.file, pair.line, pair.tags]
    return json.dumps(fields)


def _pair(text: str) -> Pair:
    source, target, file, line, tags = json.loads(text)
    return Pair(source, target, file, line, tuple(tags))
