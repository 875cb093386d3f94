"""Reading pairs: a stream of source and target texts from files, by corpus name, or from the
hub.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, compress, islice, zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transduce.corpora import FETCHED, MADE, check_named, files_of, listing_of
from transduce.data.audio.read import place_of
from transduce.data.text.columns import IdWatch, format_of, read_columns, read_rows
from transduce.data.text.files import (
    LONGEST,
    Span,
    block_lines,
    find_files,
    is_compressed,
    locate,
    read_blocks,
    read_lines,
)
from transduce.data.text.hub import check_hub, hub_name, hub_rows
from transduce.data.text.parquet import RowGroup
from transduce.data.text.shards import expanded_braces
from transduce.data.text.split import LinesOfPart, finds_lines, in_part, place_in_corpus, places_of
from transduce.data.text.tags import tags_in, with_tags
from transduce.errors import DataError
from transduce.recipe import (
    Columns,
    Corpus,
    Hub,
    Mixture,
    Named,
    ParallelFiles,
    Recipe,
    Recordings,
    Text,
    is_tagged,
    percentages,
)
from transduce.recipe.corpus import conditions
from transduce.storage.members import TarMember
from transduce.storage.positions import version_of
from transduce.storage.remote import RemotePath

EXAMPLES = 5
CUT = 1000  # characters of a line of running text that is cut where a part of the text ends

# Line separators of str.splitlines and many editors; here only \n and \r\n end a line, otherwise
# the two sides would get out of step.
ODD_BREAK = re.compile("[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


class Pair(NamedTuple):  # of a frozen dataclass, making one takes three times as long
    """A source and its target, with their location: file as in the recipe, line from 1.

    A source with tags begins with them: `<fre> bonjour`. An audio source is the name of its file,
    with start and end for a segment: see audio/segment.py.
    """

    source: str
    target: str
    file: str
    line: int
    tags: tuple[str, ...] = ()
    transcript: str = ""
    """The transcript of an audio source."""
    group: str = ""
    """The group by which scores are reported separately, if not by tags."""


@dataclass(frozen=True, slots=True)
class PairColumns:
    """Some pairs as columns: for many of them, several times faster than one by one."""

    sources: list[str]
    targets: list[str]
    files: list[str]
    lines: list[int]

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> PairColumns:
        found = cls([], [], [], [])
        for pair in pairs:
            found.sources.append(pair.source)
            found.targets.append(pair.target)
            found.files.append(pair.file)
            found.lines.append(pair.line)
        return found

    @classmethod
    def joined(cls, several: Sequence[PairColumns]) -> PairColumns:
        """All rows of several."""
        columns = zip(([], [], [], []), *map(_columns, several), strict=True)
        return cls(*(list(chain.from_iterable(parts)) for parts in columns))

    def __len__(self) -> int:
        return len(self.lines)

    def kept(self, rows: Sequence[int]) -> PairColumns:
        """These rows alone."""
        return PairColumns(*([column[row] for row in rows] for column in _columns(self)))

    def place(self, row: int) -> str:
        """Where a pair stands, for people."""
        return f"{self.files[row]}:{self.lines[row]}"


def _columns(pairs: PairColumns) -> tuple[list[Any], ...]:
    return pairs.sources, pairs.targets, pairs.files, pairs.lines


@dataclass
class ReadingCounts:
    """Counts of problems while reading, with the first few locations of each as file:line."""

    pairs: int = 0
    empty_source: int = 0
    empty_target: int = 0
    odd_breaks: int = 0
    too_long: int = 0
    notes: list[str] = field(default_factory=list)
    """What was assumed of the files."""
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, oddity: str, file: str, line: int) -> None:
        """Count one more of `empty_source`, `empty_target`, `odd_breaks` or `too_long`."""
        setattr(self, oddity, getattr(self, oddity) + 1)
        places = self.examples.setdefault(oddity, [])
        if len(places) < EXAMPLES:
            places.append(f"{file}:{line}")

    def add(self, other: ReadingCounts) -> None:
        """Add the counts of another part of the corpus."""
        self.pairs += other.pairs
        for oddity in ("empty_source", "empty_target", "odd_breaks", "too_long"):
            setattr(self, oddity, getattr(self, oddity) + getattr(other, oddity))
            places = self.examples.get(oddity, []) + other.examples.get(oddity, [])
            if places:
                self.examples[oddity] = places[:EXAMPLES]
        for sentence in other.notes:
            self.say(sentence)

    def say(self, sentence: str) -> None:
        """Keep a sentence, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def sentences(self) -> list[str]:
        """A warning for each kind of problem."""
        oddities = {
            "empty_source": "with an empty source skipped",
            "empty_target": "with an empty target skipped",
            "odd_breaks": "with a line break other than \\n inside kept as they are",
            "too_long": f"with a side of more than {LONGEST:,} characters, truncated there",
        }
        found = list(self.notes)
        for oddity, what in oddities.items():
            found += warning_of(getattr(self, oddity), what, self.examples.get(oddity, []))
        return found


def text_of(corpus: Corpus) -> Text | None:
    """The corpus as text, whether or not it is on this machine; None if it has sources.

    A trained model asks this about its recipe, without access to the training data.
    """
    if isinstance(corpus, Mixture):
        return next(filter(None, map(text_of, corpus.of)), None)
    if isinstance(corpus, Named) and (listing := FETCHED.get(corpus.name)):
        files = listing.read(corpus.split, listing.example)
        return files if isinstance(files, Text) else None
    return corpus if isinstance(corpus, Text) else None


def audio_of(corpus: Corpus) -> Recordings | None:
    """The corpus as recordings, whether or not they are on this machine.

    Of several corpora, the first. Raises DataError if others among them are text.
    """
    if isinstance(corpus, Mixture):
        found = [audio_of(one) for one in corpus.of]
        if any(found) and not all(found):
            raise DataError(f"{corpus_name(corpus)} mixes audio and text; give corpora of one kind")
        return found[0]
    if isinstance(corpus, Named) and (listing := FETCHED.get(corpus.name)):
        files = listing.read(corpus.split, listing.example)
        if isinstance(files, Recordings) and corpus.language is not None:
            files = listing.read(corpus.split, corpus.language)
        return files if isinstance(files, Recordings) else None
    return corpus if isinstance(corpus, Recordings) else None


def is_running(corpus: Corpus) -> bool:
    """Whether the lines of a corpus are running text, line breaks and empty lines included."""
    text = text_of(corpus)
    return text is not None and text.running


def check_kind(corpus: Corpus, recipe: Recipe) -> None:
    """Raise DataError if a corpus given by name does not fit the task of a recipe.

    For files, the recipe checks this itself.
    """
    continued = recipe.task == "language_modeling"
    audio = audio_of(corpus)
    if (audio is not None) != (recipe.audio is not None):
        what = "is audio" if audio else "is text"
        remedy = "write audio: {} into the recipe" if audio else "leave audio out of the recipe"
        raise DataError(f"{corpus_name(corpus)} {what}, but the recipe expects the other: {remedy}")
    parts = [audio_of(one) for one in (corpus.of if isinstance(corpus, Mixture) else [corpus])]
    has_transcripts = any(part is not None and part.transcript is not None for part in parts)
    if has_transcripts and recipe.data.tokens.both is not None:
        raise DataError(
            f"{corpus_name(corpus)} has transcripts that differ from its targets: give each "
            f"its tokens, data.tokens.source and data.tokens.target"
        )
    if continued and text_of(corpus) is None:
        what, wanted = "has sources and targets", "learns from text alone"
    elif not continued and text_of(corpus) is not None:
        what, wanted = "is text alone", "learns from sources and targets"
    elif is_running(corpus) != is_running(recipe.data.train):
        lines = "joined" if is_running(corpus) else "apart"
        what, wanted = f"has its lines {lines}", "needs them as in data.train"
    else:
        return
    raise DataError(f"{corpus_name(corpus)} {what}, but task: {recipe.task} {wanted}")


def warning_of(count: int, what: str, places: list[str]) -> list[str]:
    """A warning about `count` pairs, with the locations of the first ones; none for zero."""
    if not count:
        return []
    noun = "pair" if count == 1 else "pairs"
    more = ", …" if count > len(places) else ""
    where = f" ({', '.join(places)}{more})" if places else ""
    return [f"{count:,} {noun} {what}{where}"]


def read_pairs(
    corpus: Corpus, folder: str | None, counts: ReadingCounts | None = None
) -> Iterator[Pair]:
    """Stream the pairs of a corpus; `folder` is where relative paths start.

    Pairs with an empty side are skipped and counted in `counts`; `corpus.limit` counts the others.
    A line of text is a target without a source; of running text, with its line break. Raises
    DataError, with file and line, for everything that cannot be read.
    """
    counts = counts if counts is not None else ReadingCounts()
    limit, own = corpus.limit, tuple(filter(None, [getattr(corpus, "tag", None)]))
    corpus, folder = resolved(corpus, folder)
    if isinstance(corpus, Mixture):
        turns = _interleaved([read_pairs(one, folder, counts) for one in corpus.of])
        turns = (tagged(pair, own, pair.tags) for pair in turns) if own else turns
        yield from islice(turns, limit)
        return
    part = corpus.split if _has_lines_by_part(corpus, folder) else None
    if isinstance(corpus, Text):
        pairs = _text_pairs(corpus, folder)
    elif isinstance(corpus, ParallelFiles):
        matched = matched_files(corpus, folder)
        pairs = chain.from_iterable(_lines_in_step(names, folder, part=part) for names in matched)
    elif isinstance(corpus, Columns):
        pairs = _column_pairs(corpus, folder, counts, part)
    elif isinstance(corpus, Recordings):
        pairs = _recording_pairs(corpus, folder, counts)
    elif isinstance(corpus, Hub):
        pairs = _numbered(hub_rows(corpus), corpus.hub)
    else:
        pairs = _numbered(MADE[corpus.name](corpus.split), corpus.name)
    if part is not None:
        inside = in_part(part)
        pairs = (pair for pair in pairs if inside(pair.source))
    elif isinstance(corpus, Columns | ParallelFiles) and corpus.split is not None:
        pairs = _part_of_files(pairs, corpus, corpus.split, folder)
    yield from islice(_usable(pairs, corpus, own, counts), limit)


@dataclass(frozen=True, slots=True)
class FileBlock:
    """A block of a file, or the same lines of a source and a target file, read by position."""

    names: tuple[str, ...]
    spans: tuple[Span | RowGroup, ...]


def read_block(
    corpus: ParallelFiles | Columns | Text,
    folder: str | None,
    block: FileBlock,
    own: tuple[str, ...],
    counts: ReadingCounts,
) -> Iterator[Pair]:
    """The pairs of a block of a corpus, as `read_pairs` reads them; its limit does not count.

    own: the tags that all pairs of the corpus have.
    """
    name, span = block.names[0], block.spans[0]
    if isinstance(corpus, Columns):
        pairs = _table_pairs(corpus, name, folder, counts, span)
    elif isinstance(corpus, ParallelFiles):
        pairs = _lines_in_step(block.names, folder, block.spans)
    else:
        pairs = _text_file_pairs(corpus, name, folder, span)
    if isinstance(corpus, Columns | ParallelFiles) and corpus.split is not None:
        inside = in_part(corpus.split)
        pairs = (pair for pair in pairs if inside(pair.source))
    return _usable(pairs, corpus, own, counts)


def read_plain_block(
    corpus: ParallelFiles | Columns | Text,
    folder: str | None,
    block: FileBlock,
    own: tuple[str, ...],
    counts: ReadingCounts,
) -> PairColumns | None:
    """The same as `read_block` as columns, of a block of parallel text in which no line is unusual;
    None of all others.
    """
    if not isinstance(corpus, ParallelFiles) or corpus.split is not None:
        return None
    sides = []
    for name, span in zip(block.names, block.spans, strict=True):
        lines = block_lines(name, folder, span) if isinstance(span, Span) else None
        if lines is None or "" in lines or any(map(str.isspace, lines)):
            return None
        sides.append(lines)
    sources, targets = sides
    assert isinstance(block.spans[0], Span)
    first = block.spans[0].line
    counts.pairs += len(sources)
    if own:
        sources = [with_tags(source, own) for source in sources]
    files = [block.names[0]] * len(sources)
    return PairColumns(sources, targets, files, list(range(first, first + len(sources))))


def _usable(
    pairs: Iterator[Pair], corpus: Corpus, own: tuple[str, ...], counts: ReadingCounts
) -> Iterator[Pair]:
    """The pairs without those with an empty side, with their tags; counted."""
    has_sources, running = not isinstance(corpus, Text), is_running(corpus)
    for pair in pairs:
        if has_sources and not pair.source.strip():
            counts.note("empty_source", pair.file, pair.line)
            continue
        if not running and not pair.target.strip():
            counts.note("empty_target", pair.file, pair.line)
            continue
        if not running and max(len(pair.source), len(pair.target)) > LONGEST:
            counts.note("too_long", pair.file, pair.line)
            pair = pair._replace(source=pair.source[:LONGEST], target=pair.target[:LONGEST])
        if _has_odd_break(pair.source + pair.target):
            counts.note("odd_breaks", pair.file, pair.line)
        counts.pairs += 1
        yield tagged(pair, (*own, *pair.tags), ()) if own or pair.tags else pair


def _has_odd_break(text: str) -> bool:
    # Few texts have a line break of any kind, which is found ten times faster.
    return text.splitlines() != [text] and ODD_BREAK.search(text) is not None


REMEMBERED = 1 << 23  # places, of 8 bytes
_places_of_files: dict[object, NDArray[np.uint64]] = {}


def _has_lines_by_part(corpus: Corpus, folder: str | None) -> bool:
    """Whether the lines of a part of it are found by their bytes, see split.py."""
    if not isinstance(corpus, Columns | ParallelFiles) or corpus.split is None or not finds_lines():
        return False
    names = corpus_files(corpus, folder)
    if isinstance(corpus, Columns) and {format_of(name, corpus.format) for name in names} != {
        ".tsv"
    }:
        return False
    places = [locate(name, folder) for name in names]
    return not any(isinstance(place, RemotePath) or is_compressed(place) for place in places)


def _part_of_files(
    pairs: Iterator[Pair], corpus: Columns | ParallelFiles, part: str, folder: str | None
) -> Iterator[Pair]:
    """The pairs that are in a part of a corpus.

    The places of all are remembered once they were read to the end, as the other parts of the same
    files come next: hashing takes about as long as all else that is done with a pair that is in
    another part.
    """
    rows = corpus.model_dump_json(exclude={"split", "limit", "tag", "weight"})
    names = corpus_files(corpus, folder)
    key = (rows, folder, tuple(version_of(locate(name, folder)) for name in names))
    first, last = places_of(part)
    if (known := _places_of_files.get(key)) is not None:
        yield from compress(pairs, ((first <= known) & (known <= last - 1)).tobytes())
        return
    places = array("Q")
    for pair in pairs:
        place = place_in_corpus(pair.source)
        if len(places) <= REMEMBERED:
            places.append(place)
        if first <= place < last:
            yield pair
    _places_of_files[key] = np.frombuffer(places, np.uint64)
    while sum(map(len, _places_of_files.values())) > REMEMBERED:
        del _places_of_files[next(iter(_places_of_files))]


def tagged(pair: Pair, tags: tuple[str, ...], others: tuple[str, ...]) -> Pair:
    """The pair with tags before its source, and before others that it begins with already."""
    return Pair(
        with_tags(pair.source, tags),
        pair.target,
        pair.file,
        pair.line,
        (*tags, *others),
        pair.transcript,
        pair.group,
    )


def _interleaved(several: list[Iterator[Pair]]) -> Iterator[Pair]:
    """Interleave: one pair of each corpus in turn, until the last of them ends."""
    while several:
        going_on = []
        for pairs in several:
            for pair in islice(pairs, 1):
                yield pair
                going_on.append(pairs)
        several = going_on


def resolved(corpus: Corpus, folder: str | None) -> tuple[Corpus, str | None]:
    """A downloaded corpus as its files, and the folder of relative names; others unchanged.

    Raises DataError if there is no such corpus, or it is not on this machine.
    """
    if not isinstance(corpus, Named):
        return corpus, folder
    check_named(corpus)
    listing = listing_of(corpus.name)
    if listing is None:
        return corpus, folder
    files, shelf = files_of(corpus, listing)
    return files, str(shelf)


def tags_of(corpus: Corpus, folder: str | None) -> list[str]:
    """All tags that sources of the corpus begin with; nothing is read where there are none, and one
    pair of each corpus whose rows have no tags of their own.
    """
    return sorted(_tags_of(corpus, folder) or ()) if _has_tags(corpus, folder) else []


def _tags_of(corpus: Corpus, folder: str | None) -> set[str] | None:
    """None of a corpus without pairs, whose tag no model learns."""
    found, place = resolved(corpus, folder)
    if isinstance(found, Mixture) and corpus.limit is None:
        each = [has for one in found.of if (has := _tags_of(one, place)) is not None]
        own = {tag} if (tag := getattr(corpus, "tag", None)) else set()
        return own.union(*each) if each else None
    pairs = read_pairs(corpus, folder)
    alike = not isinstance(found, Mixture) and getattr(found, "tags", None) is None
    tags: set[str] | None = None
    for pair in islice(pairs, 1) if alike else pairs:
        tags = (tags or set()).union(pair.tags)
    return tags


def always_tagged(corpus: Corpus) -> bool:
    """Whether every source of a corpus begins with tags, by its recipe alone; nothing is read."""
    if isinstance(corpus, Mixture):
        return all(map(always_tagged, corpus.of))
    if isinstance(corpus, Named) and not is_tagged(corpus):
        listing = FETCHED.get(corpus.name)
        chosen = corpus.language or corpus.pair
        return bool(listing and chosen and always_tagged(listing.read(corpus.split, chosen)))
    return is_tagged(corpus)


def _has_tags(corpus: Corpus, folder: str | None) -> bool:
    if is_tagged(corpus):
        return True
    found, folder = resolved(corpus, folder)
    return isinstance(found, Mixture) and any(_has_tags(one, folder) for one in found.of)


def _numbered(rows: Iterable[tuple[str, str]], name: str) -> Iterator[Pair]:
    return (Pair(source, target, name, line) for line, (source, target) in enumerate(rows, start=1))


def check_files(corpus: Corpus, folder: str | None) -> None:
    """Raise DataError if a file of the corpus is missing; nothing is read."""
    if isinstance(corpus, Mixture):
        for one in corpus.of:
            check_files(one, folder)
    elif isinstance(corpus, ParallelFiles):
        matched_files(corpus, folder)
    elif isinstance(corpus, Text):
        corpus_files(corpus, folder)
    elif isinstance(corpus, Columns | Recordings):
        for name in corpus_files(corpus, folder):
            format_of(name, corpus.format)
    elif isinstance(corpus, Named):
        check_named(corpus)
    else:
        check_hub(corpus)


def corpus_files(corpus: Corpus, folder: str | None) -> list[str]:
    """The files that a recipe names, globs expanded, sources first; none for a corpus by name."""
    if isinstance(corpus, ParallelFiles):
        return find_files(corpus.source, folder) + find_files(corpus.target, folder)
    if isinstance(corpus, Text):
        return find_files(corpus.text, folder)
    if isinstance(corpus, Recordings) and corpus.format == "kaldi":
        names = [corpus.file] if isinstance(corpus.file, str) else corpus.file
        texts = [f"{one}/text" if locate(one, folder).is_dir() else one for one in names]
        return find_files(texts, folder)
    if isinstance(corpus, Recordings) and corpus.format == "webdataset":
        names = [corpus.file] if isinstance(corpus.file, str) else corpus.file
        return find_files([one for name in names for one in expanded_braces(name)], folder)
    return find_files(corpus.file, folder) if isinstance(corpus, Columns | Recordings) else []


def corpus_name(corpus: Corpus) -> str:
    """The name of a corpus in messages: its files, or its name and split."""
    if isinstance(corpus, Mixture):
        names = list(dict.fromkeys(map(corpus_name, corpus.of)))
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    if isinstance(corpus, Named):
        chosen = corpus.pair or corpus.language
        return " ".join(filter(None, [corpus.name, chosen, f"({corpus.split})"]))
    if isinstance(corpus, Hub):
        return hub_name(corpus)
    if isinstance(corpus, ParallelFiles):
        return f"{_listed(corpus.source)} and {_listed(corpus.target)}"
    return _listed(corpus.text if isinstance(corpus, Text) else corpus.file)


def _listed(names: str | list[str]) -> str:
    return names if isinstance(names, str) else ", ".join(names)


def matched_files(corpus: ParallelFiles, folder: str | None) -> list[tuple[str, str]]:
    """Each source file with its target file. Raises DataError where one has none."""
    sources, targets = find_files(corpus.source, folder), find_files(corpus.target, folder)
    if len(sources) != len(targets):
        raise DataError(
            f"{corpus.source} gives {len(sources)} source files, {corpus.target} gives "
            f"{len(targets)} target files; they must be as many, matched in order"
        )
    return list(zip(sources, targets, strict=True))


def _lines_in_step(
    names: Sequence[str],
    folder: str | None,
    spans: Sequence[Span | RowGroup | None] = (None, None),
    part: str | None = None,
) -> Iterator[Pair]:
    """The pairs of two files; part: those of other parts need not come."""
    source_name, target_name = names
    if part is not None:
        yield from _some_lines_in_step(source_name, target_name, folder, part)
        return
    (sources, first), (targets, _) = (
        _lines(name, folder, span) for name, span in zip(names, spans, strict=True)
    )
    for line, (source, target) in enumerate(zip_longest(sources, targets), start=first):
        if source is None or target is None:
            more = 1 + sum(1 for _ in (sources if target is None else targets))
            counts = (line - 1 + more, line - 1)
            raise uneven(source_name, target_name, *(counts if target is None else counts[::-1]))
        yield Pair(source, target, source_name, line)


def _some_lines_in_step(
    source_name: str, target_name: str, folder: str | None, part: str
) -> Iterator[Pair]:
    """The same of two files on this machine, without most pairs of other parts."""
    targets, at, last = read_lines(target_name, folder), 0, 0
    for end, numbers, sources in read_blocks(source_name, folder, some=LinesOfPart(part)):
        last = end
        for line, source in zip(numbers, sources, strict=True):
            for target in islice(targets, line - at - 1, line - at):
                yield Pair(source, target, source_name, line)
                at = line
    if at + sum(1 for _ in targets) != last:
        counts = (sum(1 for _ in read_lines(name, folder)) for name in (source_name, target_name))
        raise uneven(source_name, target_name, *counts)


def uneven(source_name: str, target_name: str, sources: int, targets: int) -> DataError:
    return DataError(
        f"{source_name} has {sources:,} lines and {target_name} has {targets:,}; "
        "line n of one must belong to line n of the other, so make them equal"
    )


def _lines(
    name: str, folder: str | None, span: Span | RowGroup | None, breaks: bool = False
) -> tuple[Iterator[str], int]:
    """The lines of a file, or of a block of it, and the number of the first."""
    if not isinstance(span, Span):
        return read_lines(name, folder, breaks), 1
    return read_lines(name, folder, breaks, span=span), span.line


def _text_pairs(corpus: Text, folder: str | None) -> Iterator[Pair]:
    for name in find_files(corpus.text, folder):
        yield from _text_file_pairs(corpus, name, folder)


def _text_file_pairs(
    corpus: Text, name: str, folder: str | None, span: Span | RowGroup | None = None
) -> Iterator[Pair]:
    texts, first = _lines(name, folder, span, breaks=corpus.running)
    lines: Iterable[tuple[int, str]] = enumerate(texts, start=first)
    if corpus.split is not None and corpus.running:
        lines = _stretch(lines, _characters(name, folder), corpus.split)
    elif corpus.split is not None:
        inside = in_part(corpus.split)
        lines = ((number, text) for number, text in lines if inside(text))
    for line, text in lines:
        yield Pair("", text, name, line)


def _characters(name: str, folder: str | None) -> int:
    return sum(map(len, read_lines(name, folder, breaks=True)))


def _stretch(lines: Iterable[tuple[int, str]], size: int, part: str) -> Iterator[tuple[int, str]]:
    """The part of a running text of so many characters.

    A line is in the part in which it begins; a long one is cut at the border, as some texts are one
    line.
    """
    first, last = (round(Fraction(str(end)) / 100 * size) for end in percentages(part))
    begin = 0
    for number, text in lines:
        end = begin + len(text)
        if len(text) > CUT:
            text = text[max(first - begin, 0) : max(last - begin, 0)]
            if text:
                yield number, text
        elif first <= begin < last:
            yield number, text
        begin = end


def _column_pairs(
    corpus: Columns, folder: str | None, counts: ReadingCounts, part: str | None
) -> Iterator[Pair]:
    """With the tags of each row, not yet put before its source; part: others need not come."""
    for name in find_files(corpus.file, folder):
        ids = {"source": IdWatch(), "target": IdWatch()}
        try:
            pairs = _table_pairs(corpus, name, folder, counts, part=part)
            for pair in islice(pairs, IdWatch.MOST):
                ids["source"].add(pair.source)
                ids["target"].add(pair.target)
                yield pair
            yield from pairs
        finally:  # also where a limit ends it
            for side in (side for side, watch in ids.items() if watch.found):
                counts.say(
                    f"{name}: the {side} (column {getattr(corpus, side)}) is row numbers or ids, "
                    f"not text; choose another column with {side}: NAME, if it is not meant"
                )


def _table_pairs(
    corpus: Columns,
    name: str,
    folder: str | None,
    counts: ReadingCounts,
    span: Span | RowGroup | None = None,
    part: str | None = None,
) -> Iterator[Pair]:
    rows = read_columns(name, folder, corpus, counts.say, span, part)
    for line, (source, target, *tags) in rows:
        found = tags_in(tags[0], name, line) if tags else ()
        yield Pair(source, target, name, line, found)


def _recording_pairs(
    corpus: Recordings, folder: str | None, counts: ReadingCounts
) -> Iterator[Pair]:
    """Audio locations, targets and transcripts; tags are not yet put before their source."""
    wanted = [corpus.audio, corpus.target]
    optional = [corpus.transcript, corpus.start, corpus.end, corpus.group, corpus.tags]
    wanted += [column for column in optional if column is not None]
    inside = in_part(corpus.split or "0-100%")
    for name in corpus_files(corpus, folder):
        beside = locate(name, folder).absolute().parent
        rows = read_rows(
            name,
            folder,
            wanted,
            corpus.format,
            corpus.header,
            numbers=True,
            say=counts.say,
            where=conditions(corpus.where),
        )
        for line, (audio, target, *others) in rows:
            rest = iter(others)
            transcript = target if corpus.transcript is None else next(rest)
            start = None if corpus.start is None else _time(next(rest), corpus, name, line)
            end = None if corpus.end is None else _time(next(rest), corpus, name, line)
            group = "" if corpus.group is None else next(rest)
            tags = () if corpus.tags is None else tags_in(next(rest), name, line)
            member = TarMember.parse(audio)
            if not inside(audio if member is None else member.inside):
                continue
            source = ""
            if audio.strip():
                source = place_of(member or locate(audio, str(beside)), start, end)
            yield Pair(source, target, name, line, tags, transcript, group)


def _time(text: str, corpus: Recordings, name: str, line: int) -> float | None:
    """The seconds of a cell; None where a manifest has none, for the whole recording."""
    if not text and corpus.is_manifest:
        return None
    return seconds_in(text, name, line)


def seconds_in(text: str, name: str, line: int) -> float:
    """A time of a row. Raises DataError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise DataError(f"{name}:{line}: {text!r} is not a number of seconds; correct the line")
    return seconds
