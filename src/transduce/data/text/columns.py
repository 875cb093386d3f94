"""Files with columns for source and target: TSV, CSV, JSONL, Parquet, CoNLL-U, CoNLL."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from transduce.data.text.conll import COLUMNS, read_conll, read_sentences
from transduce.data.text.files import Some, Span, locate, read_blocks, read_lines, suffix_of
from transduce.data.text.manifests import FORMATS as MANIFESTS
from transduce.data.text.manifests import manifest_rows
from transduce.data.text.parquet import (
    RowGroup,
    check_parquet_column,
    load_pyarrow,
    opened_parquet,
)
from transduce.data.text.split import LinesOfPart
from transduce.errors import DataError
from transduce.recipe import Column, Columns, Where
from transduce.recipe.corpus import conditions
from transduce.storage.positions import Version, check_version, version_of

FORMATS = (".tsv", ".csv", ".jsonl", ".parquet", ".conllu", ".conll")
SAID = (*FORMATS, *MANIFESTS)  # those that format: may say, and no name does
NUMBERED = (".tsv", ".csv")  # formats whose columns may be given by number
PARQUET_ROWS = 8192
ADVICE = ("write header: false", "write header: true, or name the columns")

Rows = Iterator[tuple[int, list[str]]]
"""Line numbers from 1, and the text of each wanted column."""

Say = Callable[[str], object]
"""Takes a sentence about what was assumed."""


def format_of(name: str, file_format: str | None = None) -> str:
    """The format that is said, or else by the file name, without .gz or .xz; as a suffix.

    Raises DataError for an unknown one.
    """
    found = suffix_of(name)
    suffix = f".{file_format}" if file_format else found
    if suffix not in (SAID if file_format else FORMATS):
        raise DataError(
            f"{name}: the format is not clear from the name: say it, as in format: tsv, or end the "
            f"name in {', '.join(FORMATS)} (and .gz or .xz where it is compressed)"
        )
    return suffix


def read_columns(
    name: str,
    folder: str | None,
    corpus: Columns,
    say: Say | None = None,
    span: Span | RowGroup | None = None,
    part: str | None = None,
) -> Rows:
    """Sources, targets and, where the corpus has them, tags, whatever the format of a file; of a
    corpus with `where`, of these rows alone. span: a block of a TSV, JSONL or Parquet file. part:
    of a TSV file, rows whose source is in no such part need not come.

    All columns of a row are read at once, so that one check decides whether there is a header.
    Raises DataError.
    """
    kind, where = format_of(name, corpus.format), conditions(corpus.where)
    if kind in (".conllu", ".conll") and where:
        raise DataError(f"{name}: where is for tables; a {kind[1:]} file has no columns of rows")
    if kind == ".conllu":
        return _conllu_rows(name, folder, _names(name, corpus, "form", "upos"))
    tags = [] if corpus.tags is None else [corpus.tags]
    if kind == ".conll":
        return _conll_rows(name, folder, [corpus.source, corpus.target, *tags])
    if kind in NUMBERED:
        wanted = [corpus.source, corpus.target, *tags]
        return read_rows(
            name,
            folder,
            wanted,
            corpus.format,
            corpus.header,
            say=say,
            where=where,
            span=span,
            part=part,
        )
    names = _names(name, corpus, "source", "target")
    # The targets of a classifier may be numbers or truth values.
    labels = (names[1],)
    return read_rows(name, folder, names, corpus.format, labels=labels, where=where, span=span)


def read_rows(
    name: str,
    folder: str | None,
    wanted: Sequence[Column],
    file_format: str | None = None,
    header: bool | None = None,
    numbers: bool = False,
    labels: Sequence[str] = (),
    say: Say | None = None,
    advice: tuple[str, str] = ADVICE,
    where: Sequence[Where] = (),
    span: Span | RowGroup | None = None,
    part: str | None = None,
) -> Rows:
    """The wanted columns of a table; with `numbers`, JSONL and Parquet may hold them too, and in
    the columns `labels` truth values, too.

    file_format: where the name does not say it. header: whether TSV and CSV begin with one; None:
    decided by their first lines, and `say` is told of it. where: of the rows alone for which all of
    these hold. span: a block of a TSV, JSONL or Parquet file, in place of all of it. part: of a TSV
    file, rows that begin with a source of another part need not come.
    """
    if where:
        columns = [one.column for one in where]
        more, counted = [*wanted, *columns], (*labels, *map(str, columns))
        rows = read_rows(
            name, folder, more, file_format, header, numbers, counted, say, advice, (), span, part
        )
        allowed, count = [one.values for one in where], len(wanted)
        return (
            (line, cells[:count])
            for line, cells in rows
            if all(cell.strip() in of for cell, of in zip(cells[count:], allowed, strict=True))
        )
    kind = format_of(name, file_format)
    if kind in MANIFESTS:
        return manifest_rows(name, folder, kind, wanted)
    if kind in NUMBERED:
        lines = span if isinstance(span, Span) else None
        separator = "commas" if kind == ".csv" else "tabs"
        named = [column for column in wanted if isinstance(column, str)]
        if named and header is False:
            raise DataError(
                f"{name}: header: false says that there are no column names, but {named[0]} is "
                f"one; give its number, or leave header out"
            )
        told = True if named else header
        some = None
        if part is not None and kind == ".tsv":
            above = _names_above(name, folder, told, version_of(locate(name, folder)))
            places = _places(name, wanted, above)
            some = LinesOfPart(part, places[0], max(places) + 1, above[0] if above else "")
        records = _records(name, folder, kind, lines, some)
        if lines is None:
            names, records = without_header(name, records, told, say, advice)
        else:
            names = _names_above(name, folder, told, lines.version)
            if names is not None and lines.line == 1:
                next(records)
            if names is not None:
                records = without_repeated(name, records, names, 1, say)
        places = _places(name, wanted, names)
        return _numbered_rows(name, records, places, separator)
    keys = [str(column) for column in wanted]
    if kind == ".jsonl":
        lines = span if isinstance(span, Span) else None
        return _jsonl_rows(name, folder, keys, numbers, labels, lines)
    group = span if isinstance(span, RowGroup) else None
    return _parquet_rows(name, folder, keys, numbers, labels, group)


def _places(name: str, wanted: Sequence[Column], names: list[str] | None) -> list[int]:
    """The numbers of columns, from 0. names: those of the header, if there is one."""
    return [
        column if isinstance(column, int) else _column(name, column, names or [])
        for column in wanted
    ]


def _records(
    name: str, folder: str | None, kind: str, span: Span | None, some: Some | None = None
) -> Rows:
    """The lines of a TSV or CSV file as cells; span, some: of TSV, these lines alone."""
    if kind == ".csv":
        return csv_records(read_lines(name, folder, table=True), name)
    blocks = read_blocks(name, folder, table=True, span=span, some=some)
    return (
        (line, text.split("\t"))
        for _, numbers, lines in blocks
        for line, text in zip(numbers, lines, strict=True)
    )


@lru_cache(maxsize=1024)
def _names_above(
    name: str, folder: str | None, header: bool | None, version: Version
) -> list[str] | None:
    """The header of a TSV file of which a block is read; None where it has none.

    version: so that what is remembered is of this version of the file.
    """
    return without_header(name, _records(name, folder, ".tsv", None), header)[0]


def without_header(
    name: str,
    records: Rows,
    header: bool | None = None,
    say: Say | None = None,
    advice: tuple[str, str] = ADVICE,
) -> tuple[list[str] | None, Rows]:
    """The header of a file and the records after it; None and all records, where it has none.

    The one place that decides this. header: what the user says of it. `say` is told what was
    assumed, and `advice` how to say otherwise: that it is data, or a header.
    """
    ahead: list[tuple[int, list[str]]] = []
    problem: DataError | None = None
    try:
        for record in records:
            ahead.append(record)
            if header is not None or len(ahead) > LOOKED_AT:
                break
    except DataError as error:  # it is raised when its turn comes: a limit may end before
        problem = error

    def rest(start: int) -> Rows:
        yield from ahead[start:]
        if problem is not None:
            raise problem
        yield from records

    if not ahead:
        return None, rest(0)
    line, first = ahead[0]
    found = FirstLine(header is True)
    if header is None:
        found = first_line(first, [fields for _, fields in ahead[1:]])
        if say is not None and (sentence := found.sentence(name, first, *advice)):
            say(sentence)
    if not found.is_header:
        return None, rest(0)
    return first, without_repeated(name, rest(1), first, line, say)


SAID_REPEATED = 3  # lines that repeat the header and are named
MARK = "\ufeff"  # a byte order mark, as text


def without_repeated(
    name: str, records: Rows, header: Sequence[str], first: int, say: Say | None = None
) -> Rows:
    """The records without those that repeat the header, as where files were joined by `cat`; `say`
    is told of their lines. first: the line of the header."""
    found, names = 0, list(header)
    for line, cells in records:
        # The first cell of a joined file may begin with a byte order mark.
        if not cells[0].endswith(names[0]) or [cells[0].removeprefix(MARK), *cells[1:]] != names:
            yield line, cells
            continue
        found += 1
        if say is not None and found <= SAID_REPEATED:
            say(f"{name}:{line}: the line repeats the header (line {first}), and is left out")
        elif say is not None and found == SAID_REPEATED + 1:
            say(f"{name}: further lines repeat the header, and are left out")


def _numbered_rows(name: str, records: Rows, places: Sequence[int], separator: str) -> Rows:
    """The cells of each record in these places."""
    last = max(places)
    for line, fields in records:
        if last >= len(fields):
            place = next(place for place in places if place >= len(fields))
            noun = "column" if len(fields) == 1 else "columns"
            raise DataError(
                f"{name}:{line}: the line has {len(fields)} {noun} (separated by {separator}), "
                f"but column {place} (counted from 0) is asked for; correct the line or the "
                f"number"
            )
        yield line, [fields[place] for place in places]


def _jsonl_rows(
    name: str,
    folder: str | None,
    keys: list[str],
    numbers: bool,
    labels: Sequence[str],
    span: Span | None,
) -> Rows:
    lines = read_lines(name, folder, table=True, span=span)
    start = 1 if span is None else span.line
    unknown = set(keys) if start == 1 else set[str]()  # keys that no record has had so far
    seen, above = 0, (0, "")
    for line, text in enumerate(lines, start=start):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name}:{line}: this is not valid JSON: {error}") from None
        if not isinstance(record, dict):
            raise DataError(f"{name}:{line}: each line must be a JSON object, as in {{...}}")
        if unknown:
            seen, above = seen + 1, above if seen else (line, ", ".join(record) or "none")
            unknown = {key for key in unknown if not _has(record, key)}
            if unknown and seen == KEY_WITHIN:
                raise _no_key(name, unknown, above)
        found = []
        for key in keys:
            value = value_of(record, key)
            cell = text_of_value(value, numbers, key in labels)
            if cell is None:
                raise DataError(
                    f"{name}:{line}: the value of {key} is {json.dumps(value)[:40]}, not text"
                )
            if not cell.isascii() and any("\ud800" <= letter <= "\udfff" for letter in cell):
                raise DataError(
                    f"{name}:{line}: the value of {key} holds half of a surrogate pair, which is "
                    "not a character; correct the \\u escape"
                )
            found.append(cell)
        yield line, found
    if unknown and seen:
        raise _no_key(name, unknown, above)


KEY_WITHIN = 1000  # records, one of which has a key: in others it may be missing


def _no_key(name: str, unknown: set[str], above: tuple[int, str]) -> DataError:
    line, there = above
    return DataError(f"{name}:{line}: there is no key {min(unknown)}; there are: {there}")


def _has(record: dict[str, Any], key: str) -> bool:
    outer, _, inner = key.partition(".")
    value = record.get(outer)
    return key in record or (inner != "" and isinstance(value, dict) and inner in value)


def value_of(record: dict[str, Any], key: str) -> Any:
    """The value of a key, or for translation.en that of a key of an object; None: it has none."""
    if key in record:
        return record[key]
    outer, _, inner = key.partition(".")
    value = record.get(outer)
    return value.get(inner) if inner and isinstance(value, dict) else None


def text_of_value(value: Any, numbers: bool, labels: bool) -> str | None:
    """A value of JSON or Parquet as a cell: what is missing is empty, a list of words has a space
    between them. None: it is no text.

    numbers: whether numbers are allowed; 1.0 is 1, as integers with gaps become floats in a data
    frame. labels: whether truth values are, too.
    """
    if isinstance(value, str):
        return value
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, list):
        words = [text_of_value(word, numbers, labels) for word in value]
        return None if None in words else " ".join(map(str, words))
    if isinstance(value, bool):
        return str(value).lower() if labels else None
    if isinstance(value, int | float) and (numbers or labels):
        whole = isinstance(value, float) and value.is_integer()
        return str(int(value) if whole else value)
    return None


def _parquet_rows(
    name: str,
    folder: str | None,
    keys: list[str],
    numbers: bool,
    labels: Sequence[str],
    group: RowGroup | None,
) -> Rows:
    pyarrow = load_pyarrow(name)
    line = 0
    groups = None
    if group is not None:
        check_version(locate(name, folder), group.version)
        line, groups = group.first, [group.number]
    try:
        with opened_parquet(str(locate(name, folder)), name) as file:
            for key in keys:
                check_parquet_column(file, key, name, numbers, key in labels)
            there = file.schema_arrow.names
            # Of translation.en, the column is translation, and en is a field of it.
            outer = {key: key if key in there else key.partition(".")[0] for key in keys}
            wanted = list(dict.fromkeys(keys))
            for batch in file.iter_batches(PARQUET_ROWS, row_groups=groups, columns=wanted):
                columns = []
                for key in keys:
                    values = batch.column(outer[key]).to_pylist()
                    if outer[key] != key:
                        inner = key.partition(".")[2]
                        values = [None if value is None else value[inner] for value in values]
                    known = key in labels
                    columns.append([text_of_value(value, numbers, known) for value in values])
                for cells in zip(*columns, strict=True):
                    line += 1
                    yield line, [str(cell) for cell in cells]
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{name}: the Parquet file is damaged at row {line + 1} "
            f"({' '.join(str(error).split())}); download it again"
        ) from None
    if line == 0 and group is None:  # a row group may be empty
        raise DataError(f"{name} is empty; give a file with at least one row")


def _conllu_rows(name: str, folder: str | None, columns: list[str]) -> Rows:
    """The words of each sentence, and the wanted columns of them."""
    for column in columns:
        _column(name, column, list(COLUMNS))
    for sentence in read_sentences(read_lines(name, folder, table=True), name):
        yield sentence.line, [" ".join(sentence.column(column)) for column in columns]


def _conll_rows(name: str, folder: str | None, columns: list[Column]) -> Rows:
    for column in columns:
        if isinstance(column, str):
            raise DataError(
                f"{name}: the columns of CoNLL have no names, so there is no {column}; give its "
                f"number, from 0"
            )
    wanted = [int(column) for column in columns]
    yield from read_conll(read_lines(name, folder, table=True), name, wanted)


def _names(name: str, corpus: Columns, source: str, target: str) -> list[str]:
    """Column names for a format without column numbers; TSV's default numbers mean the usual
    names.
    """
    found = [
        corpus.source if isinstance(corpus.source, str) else source,
        corpus.target if isinstance(corpus.target, str) else target,
    ]
    if corpus.tags is None:
        return found
    if not isinstance(corpus.tags, str):
        raise DataError(
            f"{name}: the column of tags is the number {corpus.tags}, but only TSV and CSV "
            f"have numbered columns; give its name"
        )
    return [*found, corpus.tags]


def _column(name: str, wanted: str, there: list[str]) -> int:
    if wanted not in there:
        raise DataError(f"{name}:1: there is no column {wanted}; there are: {', '.join(there)}")
    return there.index(wanted)


# ----------------------------------------------------------------------------------------------
# CSV: cells separated by commas, in double quotes where they hold commas, quotes or line breaks.
#
# After RFC 4180. A quote inside a cell that does not begin with one is an ordinary character.


def csv_records(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """The line in which each record begins, and its cells; empty lines are skipped.

    `lines` come without their ends. Raises DataError, with the line, for a quote that is not
    closed, or that is followed by anything but a comma, and for a record that has more or fewer
    cells than the first.
    """
    rest = iter(lines)
    ahead: list[str] = []
    problem: DataError | None = None
    try:
        ahead += islice(rest, LOOKED_AT)
    except DataError as error:  # raised when its turn comes
        problem = error
    separator = separator_of(ahead)

    def ended() -> Iterator[str]:
        yield from (f"{line}\n" for line in ahead)
        if problem is not None:
            raise problem
        yield from (f"{line}\n" for line in rest)

    quoting: Any = csv.QUOTE_NONE if separator == "|" else csv.QUOTE_MINIMAL  # as LJSpeech has it
    reader = csv.reader(ended(), strict=True, delimiter=separator, quoting=quoting)
    width = 0
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{name}:{line}: {problem_of(error, separator)}") from None
        if not cells:
            continue
        width = width or len(cells)
        if len(cells) != width:
            raise DataError(f"{name}:{line}: {wrong_width(len(cells), width, separator)}")
        yield line, cells


SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}


def separator_of(lines: Sequence[str]) -> str:
    """What separates the cells of CSV, by its first lines: a comma, unless each record has as many
    cells by another sign, as programs write it where the comma is in numbers."""
    for sign in SEPARATORS:
        widths = set[int]()
        quoting: Any = csv.QUOTE_NONE if sign == "|" else csv.QUOTE_MINIMAL
        reader = csv.reader(
            (f"{line}\n" for line in lines), strict=True, delimiter=sign, quoting=quoting
        )
        try:
            widths |= {len(cells) for cells in reader if cells}
        except csv.Error:
            # A quoted cell may go on after these lines; else records differ by this sign.
            widths = widths if reader.line_num >= len(lines) else {0}
        if len(widths) == 1 and min(widths) > 1:
            return sign
    return ","


def wrong_width(cells: int, width: int, separator: str = ",") -> str:
    """A comma in a cell without quotes would shift all cells behind it."""
    noun = SEPARATORS[separator]
    return (
        f"the line has {cells} {'column' if cells == 1 else 'columns'} (separated by {noun}s), but "
        f"the first has {width}; put a cell that holds a {noun} in double quotes"
    )


def problem_of(error: csv.Error, separator: str = ",") -> str:
    """What is wrong with a record, and how to mend it."""
    if "expected after" in str(error):
        noun = SEPARATORS[separator]
        return f"a closing quote is followed by text, not by a {noun}; double the quotes in a cell"
    if "end of data" in str(error):
        return "a quote that begins here is not closed; close it, or double it inside quotes"
    if "field larger" in str(error):
        limit = csv.field_size_limit()
        return (
            f"a cell that begins here has more than {limit:,} characters; is a quote not closed? "
            f"Close it, or split the cell"
        )
    return f"this is not valid CSV ({error})"


# ----------------------------------------------------------------------------------------------
# Whether a TSV or CSV file begins with a header, where no column is named; and columns of ids.
#
# It is one where a column of numbers begins with a word, or where its cells are usual names of
# columns: all of them, or most and at least two. Else it is read as data, and a sentence says so
# where it may be one.

LOOKED_AT = 50  # rows after the first line
SHOWN = 5  # cells of a line in a message
LONGEST_NAME = 40  # characters of a column name
FEWEST = 2  # rows of numbers that tell their first cell from them
FEWEST_SPACED = 10  # rows of several words that do
MOST_LABELS, LEAST_OF_LABEL = 5, 5  # labels of a column, and rows of each, that do

# Whole words only: a name such as source_text is split first.
_USUAL = (
    "id ids idx index no nr number row line key uuid guid name title "
    "src source sources tgt trg target targets input inputs output outputs in out "
    "text texts sentence sentences sent segment phrase question answer query prompt response "
    "word words token tokens lemma lemmas form forms inflected feature features feats tag tags "
    "pos upos xpos ner entity entities "
    "grapheme graphemes phoneme phonemes phone phones pronunciation pron ipa spelling "
    "label labels class classes category sentiment intent topic score rating stars "
    "review comment tweet message body content instruction utterance description "
    "command keyword transliteration "
    "translation translations reference references ref hypothesis summary document article "
    "audio path file filename wav duration seconds start end speaker group split "
    "transcript transcription language lang locale dialect code date time author user url "
    "arabic basque bengali bulgarian catalan chinese croatian czech danish dutch english estonian "
    "finnish french german greek hebrew hindi hungarian icelandic indonesian irish italian "
    "japanese korean latin latvian lithuanian norwegian persian polish portuguese romanian russian "
    "serbian slovak slovenian spanish swahili swedish tamil thai turkish ukrainian urdu vietnamese "
    "welsh "
    # In these languages themselves
    "deutsch englisch französisch spanisch italienisch russisch anglais français allemand espagnol "
    "italien inglés español francés alemán inglês português francês italiano"
)
NAMES = frozenset(_USUAL.split())
# Of languages, as in many tables of translations.
_CODES = (
    "ar bg bn ca cs da de el en es et fa fi fr he hi hr hu id it ja ko lt lv nl pl pt ro ru sk sl "
    "sr sv sw ta th tr uk ur vi zh eng deu ger fra fre spa ita rus por nld pol ces"
)
CODES = frozenset(_CODES.split())
NUMBER = re.compile(r"\s*[-+]?\d+([.,]\d+)?\s*")
COUNTED = re.compile(r"(\D*)(\d{1,15})")
_NAME = re.compile(r"[^\W\d]\w*([ \-][^\W\d]\w*)*")  # what a person calls a column
UUID = re.compile(r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class FirstLine:
    """What the first line is taken for."""

    is_header: bool
    unsure: bool = False
    """Whether it is read as data, but may be a header."""

    def sentence(self, name: str, cells: Sequence[str], if_data: str, if_header: str) -> str:
        """What was assumed of a file, and how to say otherwise; empty where it is clear."""
        line = f"{name}:1: the first line ({_shown(cells)}) is read as"
        if self.is_header:
            return f"{line} a header; if it is data, {if_data}"
        return f"{line} data; if it is a header, {if_header}" if self.unsure else ""


def first_line(first: Sequence[str], following: Sequence[Sequence[str]]) -> FirstLine:
    """Whether the first record is a header, by its cells and the first of those that follow."""
    cells = [cell.strip() for cell in first]
    while len(cells) > 1 and not cells[-1] and _is_blank(following, len(cells) - 1):
        cells.pop()  # a spreadsheet's, with a name no more than a text
    numbers = [row[0] for row in following if row]
    numbered = len(numbers) >= FEWEST and all(map(NUMBER.fullmatch, numbers))
    if numbered and not cells[0]:
        cells[0] = "id"  # row numbers, which pandas and R give no name
    if not all(cells):
        return FirstLine(False)  # a header names each column
    if len({cell.lower() for cell in cells}) < len(cells):  # each otherwise
        return FirstLine(False, all(map(_is_usual_name, cells)))
    if any(NUMBER.fullmatch(cell) or len(cell) > LONGEST_NAME for cell in cells):
        return FirstLine(False)
    for place in range(len(cells)):
        column = [row[place] for row in following if place < len(row)]
        if len(column) >= FEWEST and all(NUMBER.fullmatch(cell) for cell in column):
            return FirstLine(True)
    usual = sum(map(_is_usual_name, cells))
    codes = sum(cell.lower() in CODES and not _is_usual_name(cell) for cell in cells)
    usual += codes if codes >= 2 else 0  # one alone may be a word
    # A row of data hardly has two of them (an inflected form may: name, names, N;PL).
    several = usual >= 2 and 2 * usual > len(cells) and all(map(_NAME.fullmatch, cells))
    header = several or usual == len(cells)
    shorter = all(map(_NAME.fullmatch, cells)) and _is_shorter(cells, following)
    header = header or (shorter and _has_labels_below(cells, following))
    return FirstLine(header, not header and (usual > 0 or shorter))


def _is_blank(following: Sequence[Sequence[str]], place: int) -> bool:
    """Whether a column is empty in nearly all rows."""
    filled = sum(bool(row[place].strip()) for row in following if place < len(row))
    return 10 * filled <= len(following)


def _has_labels_below(cells: Sequence[str], following: Sequence[Sequence[str]]) -> bool:
    """Whether a column has few labels, each again and again, and its first cell is none of them."""
    for place, cell in enumerate(cells):
        counts = Counter(row[place].strip() for row in following if place < len(row))
        few = 1 < len(counts) <= MOST_LABELS and min(counts.values()) >= LEAST_OF_LABEL
        if few and cell not in counts:
            return True
    return False


def _is_shorter(cells: Sequence[str], following: Sequence[Sequence[str]]) -> bool:
    """Whether a column of several words or phones, in most rows, begins with a single one."""
    for place, cell in enumerate(cells):
        column = [row[place] for row in following if place < len(row)]
        several = sum(len(text.split()) > 1 for text in column)
        most = len(column) >= FEWEST_SPACED and 10 * several >= 9 * len(column)
        if most and len(cell.split()) == 1:
            return True
    return False


def _is_usual_name(cell: str) -> bool:
    words = re.sub(r"([a-z])([A-Z])", r"\1 \2", cell).lower()
    found = re.findall(r"[^\W\d_]+", words)
    return bool(found) and len(found) <= 3 and all(word in NAMES for word in found)


def _shown(cells: Sequence[str]) -> str:
    """The cells of a line, in a message."""
    short = [cell if len(cell) <= 20 else f"{cell[:19]}…" for cell in cells[:SHOWN]]
    return ", ".join(short) + (", …" if len(cells) > SHOWN else "")


class IdWatch:
    """Notices a column whose texts are row numbers or ids: 1, 2, 3 or utt-007, utt-008, or UUIDs.

    Numbers that are the task itself, such as 4 1 2 to be sorted, do not count upwards.
    """

    MOST = 1000  # rows that are looked at
    LEAST = 4
    SHARE = 0.9

    def __init__(self) -> None:
        self.rows = self.counted = self.unique = 0
        self._before: tuple[str, int] | None = None

    def add(self, text: str) -> None:
        """Look at the cell of one more row."""
        if self.rows >= self.MOST:
            return
        self.rows += 1
        found = COUNTED.fullmatch(text.strip())
        now = (found[1], int(found[2])) if found else None
        before, self._before = self._before, now
        if now and before and now == (before[0], before[1] + 1):
            self.counted += 1
        self.unique += UUID.fullmatch(text.strip()) is not None

    @property
    def found(self) -> bool:
        """Whether the rows so far are ids."""
        enough = self.rows >= self.LEAST
        return enough and max(self.counted + 1, self.unique) >= self.SHARE * self.rows
