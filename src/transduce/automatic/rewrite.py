"""Files in forms that are read once and written as a table beside them: translation memories (TMX,
XLIFF, gettext), subtitles, SGML, sheets (.xlsx, .ods), one JSON array, pronunciation lexicons,
fastText's labels, a word and its tag in each row, UTF-16.

A recipe can then name the table, and it is read as any other. It is made anew each time.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from transduce.automatic.columns import SOUND_ENDINGS, format_by_name
from transduce.automatic.forms import (
    lines_of,
    paired_cues,
    read_catalogue,
    read_segments,
    read_sheet,
    read_subtitles,
)
from transduce.automatic.found import Side
from transduce.automatic.siblings import siblings
from transduce.automatic.word_rows import sentences, word_rows
from transduce.corpora.unpack import DAMAGED, open_compressed
from transduce.data.text.columns import LOOKED_AT as SEPARATED
from transduce.data.text.columns import SEPARATORS, csv_records, first_line, separator_of
from transduce.data.text.files import BOM, UTF16, read_lines
from transduce.errors import CheckpointError, DataError
from transduce.storage import write_file

# How files begin that are no text, and what to do with them.
MAGIC = {
    b"\x1f\x8b": ("compressed by gzip", "call it {}.gz"),
    b"\xfd7zXZ\0": ("compressed by xz", "call it {}.xz"),
    b"BZh": ("compressed by bzip2", "decompress it"),
    b"(\xb5/\xfd": ("compressed by zstd", "decompress it"),
    b"PK\3\4": ("a ZIP archive", "unpack it, or give it the ending of the program that wrote it"),
    b"%PDF": ("a PDF", "save its text as .txt in UTF-8"),
    b"\x89PNG": ("a picture", "give text or a table"),
    b"\xff\xd8\xff": ("a picture", "give text or a table"),
}
PREFIX = "transduce-"  # of the names of tables that are written
LARGEST = 1 << 31  # bytes of a JSON array, or of a sheet once it is unpacked
FEWEST = 40  # lines of a lexicon
SUBTITLES, SGML = ("srt", "vtt"), ("sgm", "sgml")
XML = ("tmx", "xlf", "xliff", "sdlxliff")
JSON = ("json", "jsonl", "ndjson")
TABLES = ("", "txt", "tsv", "dict", "lex", "lexicon", "pron")
SENTENCES = "-sentences.tsv"  # how the name of a table ends that was made of rows of words
LOOKED_AT = 2000  # lines


@dataclass
class Rewritten:
    """A table that was written, and what it was made of."""

    path: Path
    header: bool | None
    """Whether it begins with one; None: as any other table."""
    seen: list[str]


@contextmanager
def named_as(given: str, table: Path) -> Iterator[None]:
    """What is wrong with a table is said of the file that it was made of; lines are those of the
    table."""
    try:
        yield
    except DataError as error:
        raise DataError(
            re.sub(rf"{re.escape(table.name)}(?!:\d)", lambda _: given, str(error))
        ) from None


@dataclass
class _Form:
    """What a file is, the lines of the table, and what is said once they were read."""

    title: str
    lines: Iterable[str]
    header: bool | None = True
    suffix: str = ".tsv"
    about: list[str] = field(default_factory=list)
    words: str = ""
    """The column of the file that has a word in each row."""


def rewritten(
    path: Path,
    hints: Mapping[str, Any],
    parts: bool = True,
    as_table: bool = True,
    commas: bool = False,
    words: str | None = "",
) -> Rewritten | None:
    """The table that is written beside a file of such a form; None: it is of another form, or the
    person has said its format. Raises DataError.

    parts: whether to write those of the other parts, too. as_table: whether plain lines may be
    columns, such as a word and its phones. commas: whether CSV with another separator is written
    anew. words: the name of the column of a model whose rows are words, each with its tag; "": a
    table may be one; None: it is none.
    """
    if "format" in hints or not path.is_file():
        return None
    words = None if hints.get("task") not in (None, "tag") else words
    form = _form_of(path, as_table, commas, words)
    if form is None:
        return None
    place = _written(path, form)
    words = form.words or words  # parts of it may be too short to look so
    others = siblings(path, {"file": path.name}) if parts else {}
    for name in {corpus["file"] for corpus in others.values()}:
        if (other := _form_of(path.parent / name, words=words)) is not None:
            _written(path.parent / name, other)
    return Rewritten(
        place, form.header, [f"{path.name}: {form.title}; written as {place.name}.", *form.about]
    )


def rewritten_pair(first: Path, second: Path, parts: bool = True) -> Rewritten | None:
    """The table of two files of subtitles or of SGML that belong together, and with `parts` of
    those of the other parts; None: they are of other forms. Raises DataError."""
    form = _pair_form(first, second)
    if form is None:
        return None
    place = _written(_joint(first, second), form)
    if parts and first.parent == second.parent:
        names = {"source": first.name, "target": second.name}
        for other in siblings(first, names).values():
            sides = [first.parent / other[side] for side in names]
            if (more := _pair_form(*sides)) is not None:
                _written(_joint(*sides), more)
    title = f"{first.name} and {second.name}: {form.title}; written as {place.name}."
    return Rewritten(place, form.header, [title, *form.about])


def _joint(first: Path, second: Path) -> Path:
    """movie-en-de.tsv of movie.en.srt and movie.de.srt."""
    one, other = (_stem(path) for path in (first, second))
    shared = one.partition(".")[0]
    both = f"{one}-{other.removeprefix(f'{shared}.')}".replace(".", "-")
    return first.with_name(f"{both}.tsv")


def _pair_form(first: Path, second: Path) -> _Form | None:
    endings = {format_by_name(path).lower() for path in (first, second)}
    header = line_of(("source", "target"))
    if endings <= {*SUBTITLES}:
        cues = [read_subtitles(path) for path in (first, second)]
        pairs, alone = paired_cues(*cues)
        counts = f"{len(cues[0]):,} and {len(cues[1]):,}"
        title = f"subtitles, {counts} in all, {len(pairs):,} pairs shown at the same time"
        about = [f"{alone:,} have none in the other language, and are left out."] if alone else []
        return _Form(title, chain([header], map(line_of, pairs)), about=about)
    if endings <= {*SGML}:
        one, other = (read_segments(path) for path in (first, second))
        both = [(one[key], other[key]) for key in one if key in other]
        alone = len(one) + len(other) - 2 * len(both)
        about = [f"{alone:,} are in one file alone, and are left out."] if alone else []
        title = f"SGML, {len(both):,} segments that are in both"
        return _Form(title, chain([header], map(line_of, both)), about=about)
    return None


def _stem(path: Path) -> str:
    """The name without its ending, nor that of a compressed one."""
    ending = "".join(path.suffixes[-2:]) if path.suffix in (".gz", ".xz") else path.suffix
    return path.name.removesuffix(ending)


def _written(path: Path, form: _Form) -> Path:
    place = path.with_name(f"{PREFIX}{_stem(path)}{form.suffix}")

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in form.lines)

    try:
        write_file(place, write)
    except CheckpointError as error:
        raise DataError(
            f"{path.name} is {form.title}, of which a table is written beside it: {error}"
        ) from None
    return place


def line_of(cells: Iterable[str]) -> str:
    """A line of TSV, whose cells have neither tabs nor line breaks."""
    return "\t".join(" ".join(cell.split()) for cell in cells)


def _form_of(
    path: Path, as_table: bool = True, commas: bool = False, words: str | None = None
) -> _Form | None:
    ending = format_by_name(path).lower()
    if ending in XML:
        return _translation_memory(path, ending)
    if ending == "xlsx":
        return _sheet(path)
    if ending == "ods":
        return _open_sheet(path)
    if ending == "po":
        return _messages(path)
    if ending in SUBTITLES:
        texts = [cue.text for cue in read_subtitles(path)]
        return _Form(f"subtitles, {len(texts):,} in all", texts, None, ".txt")
    if ending in SGML:
        segments = list(read_segments(path).values())
        return _Form(f"SGML with {len(segments):,} segments", segments, None, ".txt")
    beginning = _beginning(path)
    if beginning.startswith(b"version https://git-lfs"):
        raise DataError(
            f"{path.name} only says where Git keeps the file; fetch the file itself: git lfs pull"
        )
    if re.match(rb"\s*<(!doctype html|html)\b", beginning, re.IGNORECASE):
        raise DataError(
            f"{path.name} is a web page, perhaps of a download that failed; download the file again"
        )
    if ending != "parquet":
        _check_is_text(path, beginning)
    if beginning.startswith(UTF16) and ending != "parquet":
        return _Form("text in UTF-16", lines_of(path), None, f".{ending}" if ending else "")
    if b"\r" in beginning and b"\n" not in beginning and ending in (*TABLES, "csv"):
        return _Form("text with old line ends (CR)", _old_lines(path), None, f".{ending or 'txt'}")
    if ending in JSON and beginning.removeprefix(BOM).lstrip()[:1] == b"[":
        return _array(path)
    if ending == "json" and beginning.removeprefix(BOM).lstrip()[:1] == b"{" and _is_one(path):
        return _array(path)
    if words is not None and ending in ("csv", "tsv"):
        form = _word_rows(path, ending, words)
        if form is not None:
            return form
    if commas and ending == "csv":
        return _other_csv(path)
    if not as_table or ending not in TABLES or b"\0" in beginning:
        return None
    try:
        lines = list(islice(read_lines(path.name, str(path.parent), table=True), LOOKED_AT))
    except DataError:
        return None  # reading it as a table says what is wrong, and where
    filled = [line for line in lines if line.strip()]
    if not filled:
        return None
    if 2 * sum(line.startswith(LABEL) for line in filled) > len(filled):
        return _fasttext(path, filled)
    bars = {line.count(BARS) for line in filled}
    if len(filled) >= FEWEST and len(bars) == 1 and 0 not in bars:
        return _Form("columns separated by |||", _between_bars(path), None)
    first = [line.split(" ", 1)[0].lower() for line in filled]
    if 10 * sum(one.endswith(SOUND_ENDINGS) for one in first) >= 9 * len(first):
        return _recordings(path)
    return _lexicon(path, filled)


def _check_is_text(path: Path, beginning: bytes) -> None:
    """Raise DataError for a file of another kind that is called as if it were text."""
    for start, (what, how) in MAGIC.items():
        if beginning.startswith(start):
            raise DataError(f"{path.name} is {what}, despite its name; {how.format(path.name)}")
    wide = beginning.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff"))
    zeros = beginning.count(b"\0")
    if wide or (zeros > len(beginning) // 8 and not beginning.startswith(UTF16)):
        raise DataError(
            f"{path.name} has many zero bytes: if it is text in UTF-16 or UTF-32, save it in UTF-8 "
            f"(`iconv -f UTF-{32 if wide else '16LE'} -t UTF-8 {path.name} > NEW`); else it is no "
            f"text"
        )


def _other_csv(path: Path) -> _Form | None:
    """CSV whose cells another sign than a comma separates."""
    lines = list(islice(read_lines(path.name, str(path.parent), table=True), SEPARATED))
    sign = separator_of(lines)
    if sign == ",":
        return None
    records = csv_records(read_lines(path.name, str(path.parent), table=True), path.name)
    rows = (line_of(cells) for _, cells in records)
    return _Form(f"CSV separated by {SEPARATORS[sign]}s", rows, None)


def _word_rows(path: Path, kind: str, expected: str) -> _Form | None:
    """A word and its tag in each row."""
    try:
        found = word_rows(path, kind, expected)
    except DataError:
        return None  # reading it as a table says what is wrong, and where
    if found is None:
        return None
    lines = chain([line_of(found.columns)], map(line_of, sentences(path, kind, found)))
    title = f"a word in each row; {found.ends}"
    about = [] if expected else ["(If each row is an example of its own, say task=classify.)"]
    return _Form(title, lines, suffix=SENTENCES, about=about, words=found.columns[0])


BARS = " ||| "


def _between_bars(path: Path) -> Iterator[str]:
    """As fast_align and Moses have it."""
    for line in read_lines(path.name, str(path.parent), table=True):
        yield line_of(line.split(BARS))


def _beginning(path: Path) -> bytes:
    try:
        with open_compressed(path) as file:
            return file.read(1 << 12)
    except (OSError, *DAMAGED):
        return b""


def _old_lines(path: Path) -> Iterator[str]:
    try:
        with open_compressed(path) as raw:
            text = TextIOWrapper(raw, encoding="utf-8-sig", newline="\r")
            yield from (line.removesuffix("\r") for line in text)
    except UnicodeError as error:
        raise DataError(f"{path.name} is not UTF-8 ({error}); save it in UTF-8") from None


# ------------------------------------------------------------------------- translation memories

# Of inline markup, these hold codes, not text.
CODES = frozenset(("bpt", "ept", "ph", "it", "ut", "x", "bx", "ex"))
LANG = "{http://www.w3.org/XML/1998/namespace}lang"


def _translation_memory(path: Path, ending: str) -> _Form:
    """The languages as columns, that of the sources first; in each row, a unit."""
    read = _tmx_units if ending == "tmx" else _xliff_units
    names: list[str] = []
    units = 0
    for unit in read(path):
        units += 1
        names += [name for name in unit if name not in names]
    if units == 0 or len(names) < 2:
        raise DataError(
            f"{path.name} has {units:,} translation units"
            f"{f' in {names[0]} alone' if names else ''}; give one with texts in two languages"
        )
    rows = (line_of(unit.get(name, "") for name in names) for unit in read(path))
    title = f"{'TMX' if ending == 'tmx' else 'XLIFF'} with {units:,} units in {' and '.join(names)}"
    return _Form(title, chain([line_of(names)], rows))


def _tmx_units(path: Path) -> Iterator[dict[str, str]]:
    """The segments of each unit by language, such as de-at; that of the sources first."""
    first = ""
    for element in _elements(path, ("header", "tu")):
        if _name(element) == "header":
            first = str(element.get("srclang") or "").lower().partition("-")[0]
            continue
        unit: dict[str, str] = {}
        for variant in element:
            language = str(variant.get(LANG) or variant.get("lang") or "").lower()
            segment = next((one for one in variant if _name(one) == "seg"), None)
            if language and segment is not None:
                unit.setdefault(language, _text_of(segment))
        ordered = sorted(unit, key=lambda language: language.partition("-")[0] != first)
        yield {language: unit[language] for language in ordered}


SIDES = (("source-language", "srcLang"), ("target-language", "trgLang"))


def _xliff_units(path: Path) -> Iterator[dict[str, str]]:
    names = ["source", "target"]
    for element in _elements(path, ("file", "xliff", "trans-unit", "segment"), ("file", "xliff")):
        if _name(element) in ("file", "xliff"):
            for place, keys in enumerate(SIDES):
                names[place] = next(filter(None, map(element.get, keys)), names[place])
            continue
        found = {_name(one): _text_of(one) for one in element if _name(one) in ("source", "target")}
        yield {names[0]: found.get("source", ""), names[1]: found.get("target", "")}


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _elements(
    path: Path, wanted: Sequence[str], opened: Sequence[str] = ()
) -> Iterator[ElementTree.Element]:
    """The elements with these names when they end, or those of `opened` when they begin; memory
    does not grow with the file."""
    try:
        with open_compressed(path) as file:
            events = ElementTree.iterparse(file, ("start", "end"))
            above: list[ElementTree.Element] = []
            for event, element in events:
                if event == "start":
                    above.append(element)
                    if _name(element) in opened:
                        yield element
                    continue
                above.pop()
                if _name(element) in wanted and _name(element) not in opened:
                    yield element
                    element.clear()
                    if above:
                        above[-1].remove(element)
    except ElementTree.ParseError as error:
        raise DataError(f"{path.name} is not valid XML ({error}); export it again") from None
    except (OSError, *DAMAGED) as error:
        raise DataError(f"{path.name} cannot be read: {error}") from None


def _text_of(element: ElementTree.Element) -> str:
    """The text of a segment without codes of inline markup."""
    parts = [element.text or ""]
    for one in element:
        parts += ["" if _name(one) in CODES else _text_of(one), one.tail or ""]
    return "".join(parts)


def _messages(path: Path) -> _Form:
    """Of gettext: messages and their translations."""
    found = read_catalogue(path)
    title = f"gettext's messages, {len(found.pairs):,} translated"
    left = [(found.empty, "are not translated"), (found.fuzzy, "are marked as fuzzy")]
    about = [f"{count:,} {what}, and are left out." for count, what in left if count]
    lines = chain([line_of(("source", "target"))], map(line_of, found.pairs))
    return _Form(title, lines, about=about)


# --------------------------------------------------------------------------------- spreadsheets


def _sheet(path: Path) -> _Form:
    """The first sheet of a workbook of Excel (ECMA-376, part 1, 18.3)."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename: member for member in archive.infolist()}
            sheets = sorted(
                (name for name in members if re.fullmatch(r"xl/worksheets/sheet\d+\.xml", name)),
                key=lambda name: int(re.sub(r"\D", "", name)),
            )
            if not sheets:
                raise DataError(f"{path.name} has no sheet; save it as CSV or TSV in UTF-8")
            if members[sheets[0]].file_size > LARGEST:
                raise DataError(f"{path.name} is too large; save it as CSV or TSV in UTF-8")
            shared: list[str] = []
            if (table := members.get("xl/sharedStrings.xml")) and table.file_size <= LARGEST:
                with archive.open(table) as file:
                    root = ElementTree.parse(file).getroot()
                shared = [_said(one) for one in root]
            with archive.open(sheets[0]) as file:
                rows = list(_rows_of_sheet(ElementTree.parse(file).getroot(), shared))
    except (zipfile.BadZipFile, ElementTree.ParseError, OSError, ValueError, IndexError) as error:
        raise DataError(
            f"{path.name} is not a workbook that can be read ({error}); save it as CSV or TSV in "
            f"UTF-8"
        ) from None
    return _table_form("a workbook of Excel", rows, len(sheets))


def _said(element: ElementTree.Element) -> str:
    """The text of a string, without phonetic hints."""
    return "".join(
        one.text or ""
        for part in element
        if _name(part) in ("t", "r")
        for one in part.iter()
        if _name(one) == "t"
    )


def _rows_of_sheet(root: ElementTree.Element, shared: Sequence[str]) -> Iterator[list[str]]:
    for row in (one for one in root.iter() if _name(one) == "row"):
        cells: list[str] = []
        for cell in row:
            letters = re.match(r"[A-Z]+", str(cell.get("r") or ""))
            place = len(cells)
            if letters:
                place = 0
                for letter in letters[0]:
                    place = 26 * place + ord(letter) - 64
                place -= 1
            value = next((one.text or "" for one in cell if _name(one) == "v"), "")
            kind = cell.get("t")
            if kind == "s":
                value = shared[int(value)]
            elif kind == "inlineStr":
                value = "".join(_said(one) for one in cell if _name(one) == "is")
            elif kind == "b":
                value = "true" if value == "1" else "false"
            cells += [""] * (place - len(cells))
            cells.append(value)
        yield cells


def _open_sheet(path: Path) -> _Form:
    rows, sheets = read_sheet(path, LARGEST)
    return _table_form("a sheet of OpenDocument", rows, sheets)


def _table_form(title: str, rows: Sequence[Sequence[str]], sheets: int) -> _Form:
    """The rows of a sheet that are not empty, of one width: without blank columns at its end, such
    as those that only have a format."""
    ends = [max((n for n, cell in enumerate(row, 1) if cell.strip()), default=0) for row in rows]
    width = max(ends, default=0)
    lines = [
        line_of([*row[:end], *[""] * (width - end)])
        for row, end in zip(rows, ends, strict=True)
        if end
    ]
    about = [] if sheets == 1 else [f"Of its {sheets} sheets, the first is read."]
    return _Form(f"{title} with {len(lines):,} rows", lines, None, about=about)


# ------------------------------------------------------------------------------------ JSON arrays


def _is_one(path: Path) -> bool:
    """Whether a file is one JSON object, and not one in each line."""
    read = read_lines(path.name, str(path.parent), table=True)
    first, *others = islice((line for line in read if line.strip()), 2)
    try:
        json.loads(first)
    except (ValueError, RecursionError):  # it goes on in the next line
        if path.stat().st_size > LARGEST:
            return False
        try:
            json.loads("".join((first, *others, *read)))
        except (ValueError, RecursionError):
            return False
        return True
    return not others


def _array(path: Path) -> _Form:
    """An array of objects, or the only one in an object, as in {"version": 1, "data": [...]}."""
    try:
        with open_compressed(path) as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise DataError(
                f"{path.name} is one JSON array of more than 2 GB; write an object in each line "
                f"(JSON Lines), for example with `jq -c '.[]' {path.name} > {path.stem}.jsonl`"
            )
        records = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError, OSError, *DAMAGED) as error:
        deep = isinstance(error, RecursionError)
        why = "brackets in brackets without end" if deep else error
        raise DataError(f"{path.name} is not valid JSON: {why}") from None
    title, what = "one JSON array", "one JSON array, but not of objects"
    if isinstance(records, dict):
        arrays = [(key, value) for key, value in records.items() if _has_objects(value)]
        what = f"one JSON object with {len(arrays)} arrays of objects"
        key, records = arrays[0] if len(arrays) == 1 else ("", [])
        title = f"a JSON object, in its {key} an array"
    if not _has_objects(records):
        raise DataError(
            f"{path.name} is {what}; write an object with a source and a target for each row, as "
            f'in [{{"source": "...", "target": "..."}}]'
        )
    lines = (json.dumps(record, ensure_ascii=False) for record in records)
    return _Form(f"{title} of {len(records):,} objects", lines, None, ".jsonl")


def _has_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


# ----------------------------------------------------------------------------------------- labels

LABEL = "__label__"


def _fasttext(path: Path, sample: Sequence[str]) -> _Form:
    several = sum(line.count(LABEL) > 1 for line in sample)
    if 10 * several > len(sample):
        raise DataError(
            f"{path.name} is in fastText's form with several labels in a line, of which one can be "
            f"learnt; write one label in each line"
        )

    def lines() -> Iterator[str]:
        yield "text\tlabel"
        for line in read_lines(path.name, str(path.parent), table=True):
            words = line.split()
            labels = [word for word in words if word.startswith(LABEL)]
            texts = [word for word in words if not word.startswith(LABEL)]
            yield line_of([" ".join(texts), labels[0].removeprefix(LABEL) if labels else ""])

    return _Form("fastText's form, labels and texts", lines())


# -------------------------------------------------------------------------------------- recordings


def _recordings(path: Path) -> _Form:
    """A recording at the beginning of each line, and its text or label after a space."""

    def lines() -> Iterator[str]:
        yield "path\ttext"
        for line in read_lines(path.name, str(path.parent), table=True):
            name, _, text = line.strip().partition(" ")
            yield line_of([name, text])

    return _Form("a recording and its text in each line", lines())


# ---------------------------------------------------------------------------------------- lexicons

ALTERNATIVE = re.compile(r"(.+)\(\d{1,2}\)")
REMARK = re.compile(r"\s#.*")
PROBABILITY = re.compile(r"[01]\.\d+")
SHOWN = 4  # entries that are no words


def _lexicon(path: Path, filled: Sequence[str]) -> _Form | None:
    """A word and its phones in each line, separated by spaces or tabs; of CMU, with ;;; and
    WORD(2), or of Kaldi, with probabilities and entries such as <UNK>.

    Evidence: nearly all first pieces differ, and the others are of a small inventory. A table of
    tabs stays one, if it has no such alternatives.
    """
    entries = [one for line in filled if (one := _entry(line)) is not None]
    if len(entries) < FEWEST or not all(phones for _, phones in entries):
        return None
    words = Counter(word for word, _ in entries)
    alternatives = [word for word in words if _base(word, words) != word]
    plain = all(line.count("\t") == 1 for line in filled)
    header = plain and first_line(filled[0].split("\t"), []).is_header
    if plain and not alternatives:
        return None
    weighted = all(len(found) > 1 and PROBABILITY.fullmatch(found[0]) for _, found in entries)
    phones = Side.of([" ".join(found[weighted:]) for _, found in entries])
    if 10 * len(words) < 7 * len(entries) or not phones.is_symbols:
        return None
    about = []
    if alternatives:
        shown = alternatives[0]
        about.append(f"{shown} is another pronunciation of {_base(shown, words)}, and so on.")
    if marks := [word for word in words if _is_mark(word)]:
        more = ", …" if len(marks) > SHOWN else ""
        about.append(f"Left out, as they are no words: {', '.join(marks[:SHOWN])}{more}.")
    if weighted:
        about.append("The numbers after the words are taken for probabilities, and left out.")
    about.append("(If it is running text, say data.train.format=text.)")

    def lines() -> Iterator[str]:
        yield "word\tphones"
        known: set[str] = set()
        read = read_lines(path.name, str(path.parent), table=True)
        for line in islice(read, int(header), None):
            entry = _entry(line)
            if entry is not None and not _is_mark(entry[0]):
                known.add(entry[0])
                yield line_of([_base(entry[0], known), " ".join(entry[1][weighted:])])

    return _Form("a lexicon, a word and its phones in each line", lines(), about=about)


def _entry(line: str) -> tuple[str, list[str]] | None:
    """A word and its phones; None of a comment and an empty line. Another tab than the one after
    the word separates columns: there are no phones then."""
    if line.startswith((";;;", "#")) or not line.strip():
        return None
    word, *rest = REMARK.sub("", line).strip().split(None, 1)
    return word, [] if not rest or "\t" in rest[0] else rest[0].split()


def _base(word: str, words: Iterable[str]) -> str:
    """READ of READ(2), where READ is there."""
    found = ALTERNATIVE.fullmatch(word)
    return found[1] if found and found[1] in words else word


def _is_mark(word: str) -> bool:
    """Of Kaldi: <UNK>, !SIL, [noise]."""
    return len(word) > 2 and (word[0] + word[-1] in ("<>", "[]") or word.startswith("!"))
