"""What is in files of translators, of subtitles and of OpenDocument: gettext's .po, SRT and WebVTT,
the SGML of WMT and Moses, sheets (.ods)."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import unescape
from io import TextIOWrapper
from pathlib import Path
from xml.etree import ElementTree

from transduce.corpora.unpack import DAMAGED, open_compressed
from transduce.data.text.files import UTF16, read_lines
from transduce.errors import DataError


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file in UTF-8, or in UTF-16 where it begins so. Raises DataError."""
    try:
        with open_compressed(path) as raw:
            wide = raw.read(2) in UTF16
    except (OSError, *DAMAGED):
        wide = False  # reading it says what is wrong
    if not wide:
        yield from read_lines(path.name, str(path.parent), table=True)
        return
    try:
        with open_compressed(path) as raw:
            for line in TextIOWrapper(raw, encoding="utf-16", newline="\n"):
                yield line.removesuffix("\n").removesuffix("\r")
    except UnicodeError as error:
        raise DataError(
            f"{path.name} begins as UTF-16, but is none ({error}); save it in UTF-8"
        ) from None


# ---------------------------------------------------------------------------------------- gettext

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_FIELD = re.compile(r'(msgctxt|msgid|msgid_plural|msgstr|msgstr\[\d+\])\s+"(.*)"')
_PLAIN = re.compile(r'"(.*)"')


@dataclass
class Catalogue:
    """The messages of a .po file that are translated, and how many are not."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    fuzzy: int = 0
    empty: int = 0


def read_catalogue(path: Path) -> Catalogue:
    """Each message and its translation; of a plural the two first forms. Raises DataError."""
    found = Catalogue()
    fields: dict[str, list[str]] = {}
    last, fuzzy = "", False

    def finish() -> None:
        texts = {name: "".join(parts) for name, parts in fields.items()}
        source, plural = texts.get("msgid", ""), texts.get("msgid_plural")
        forms = [text for name, text in texts.items() if name.startswith("msgstr")]
        if not source:  # the header
            return
        if fuzzy:
            found.fuzzy += 1
        elif not any(forms):
            found.empty += 1
        elif plural is None or len(forms) == 1:  # a language that has one form of all numbers
            found.pairs.append((source if plural is None else plural, forms[0]))
        else:
            found.pairs += [(source, forms[0]), (plural, forms[1])]

    for number, line in enumerate(lines_of(path), start=1):
        bare = line.strip()
        if not bare or bare.startswith(("#,", "#~")):
            if fields:
                finish()
            # A message may have several lines of flags.
            fuzzy = bare.startswith("#,") and ("fuzzy" in bare or (fuzzy and not fields))
            fields, last = {}, ""
        if not bare or bare.startswith("#"):
            continue
        if began := _FIELD.fullmatch(bare):
            name, text = began.groups()
            if name in ("msgctxt", "msgid") and any(one.startswith("msgstr") for one in fields):
                finish()
                fields, fuzzy = {}, False
            last = name
            fields[last] = [_unescaped(text)]
        elif (more := _PLAIN.fullmatch(bare)) and last:
            fields[last].append(_unescaped(more[1]))
        else:
            raise DataError(
                f'{path.name}:{number}: this is no line of a .po file, such as msgid "..." or '
                f'msgstr "..."; export it again'
            )
    if fields:
        finish()
    if not found.pairs:
        raise DataError(
            f"{path.name} has no translated messages ({found.empty:,} are empty, {found.fuzzy:,} "
            f"fuzzy); give a catalogue with translations"
        )
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text)


# -------------------------------------------------------------------------------------- subtitles

_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{2})[.,](\d{3})"
_TIMES = re.compile(rf"\s*{_TIME}\s+-->\s+{_TIME}.*")
_MARKUP = re.compile(r"</?[a-zA-Z][^>]*>|<\d[\d:.]*>|\{\\[^}]*\}")


@dataclass(frozen=True)
class Cue:
    """What is shown, from one time to another in milliseconds."""

    start: int
    end: int
    text: str


def read_subtitles(path: Path) -> list[Cue]:
    """The cues of SRT or WebVTT with text, in order, without markup. Raises DataError."""
    found: list[Cue] = []
    times: tuple[int, int] | None = None
    texts: list[str] = []

    def finish() -> None:
        text = " ".join(unescape(_MARKUP.sub("", " ".join(texts))).split())
        if times is not None and text:
            found.append(Cue(*times, text))

    for line in lines_of(path):
        if timed := _TIMES.fullmatch(line):
            numbers = [int(one or 0) for one in timed.groups()]
            # A number above the times belongs to this cue, where no empty line ends the last one.
            texts = texts[:-1] if texts and texts[-1].strip().isdecimal() else texts
            finish()
            times, texts = (_milliseconds(numbers[:4]), _milliseconds(numbers[4:])), []
        elif not line.strip():
            finish()
            times, texts = None, []
        elif times is not None:
            texts.append(line)
    finish()
    if not found:
        raise DataError(
            f"{path.name} has no subtitles, with times such as 00:01:02,500 --> 00:01:04,000 above "
            f"a text; export it again"
        )
    return sorted(found, key=lambda cue: cue.start)


def _milliseconds(parts: Sequence[int]) -> int:
    hours, minutes, seconds, rest = parts
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + rest


def paired_cues(one: Sequence[Cue], other: Sequence[Cue]) -> tuple[list[tuple[str, str]], int]:
    """Texts that are shown at the same time, and how many cues have none.

    Cues belong together that overlap by more than half of the shorter one; what one language shows
    in two, the other may show in one.
    """
    pairs: list[tuple[str, str]] = []
    alone = 0
    sides: tuple[list[str], list[str]] = ([], [])
    queue = sorted(
        [*((cue, 0) for cue in one), *((cue, 1) for cue in other)],
        key=lambda pair: (pair[0].start, pair[1]),
    )
    last: list[Cue | None] = [None, None]

    def finish() -> int:
        if sides[0] and sides[1]:
            pairs.append((" ".join(sides[0]), " ".join(sides[1])))
            return 0
        return len(sides[0]) + len(sides[1])

    for cue, side in queue:
        across = last[1 - side]
        if across is None or not _together(cue, across):
            alone += finish()
            sides, last = ([], []), [None, None]
        sides[side].append(cue.text)
        last[side] = cue
    return pairs, alone + finish()


def _together(one: Cue, other: Cue) -> bool:
    shared = min(one.end, other.end) - max(one.start, other.start)
    return 2 * shared > min(one.end - one.start, other.end - other.start)


# ------------------------------------------------------------------------------------------- SGML

_DOCUMENT = re.compile(r"<doc\b[^>]*?\b(?:docid|id)\s*=\s*[\"']?([^\"'\s>]+)", re.IGNORECASE)
_SEGMENT = re.compile(
    r"<seg\b[^>]*?\bid\s*=\s*[\"']?([^\"'\s>]+)[^>]*>(.*?)</seg>", re.IGNORECASE | re.DOTALL
)


def read_segments(path: Path) -> dict[tuple[str, str], str]:
    """The segments of SGML as of WMT and Moses by their document and number. Raises DataError."""
    found: dict[tuple[str, str], str] = {}
    text = "\n".join(lines_of(path))
    for number, part in enumerate(re.split(r"(?=<doc\b)", text, flags=re.IGNORECASE)):
        named = _DOCUMENT.match(part)
        for name, segment in _SEGMENT.findall(part):
            bare = " ".join(unescape(segment).split())
            found.setdefault((named[1] if named else str(number), name), bare)
    if not found:
        raise DataError(
            f'{path.name} has no segments, as in <seg id="1">A text.</seg>; give the SGML of a '
            f"test set, or plain text, a line for each segment"
        )
    return found


# ----------------------------------------------------------------------------------- OpenDocument

WIDEST = 1000  # columns of a sheet, and rows that repeat one: programs fill a sheet to its end


def read_sheet(path: Path, largest: int) -> tuple[list[list[str]], int]:
    """The rows of the first sheet of an .ods file (OpenDocument 1.3, part 3, 9.1), as they are
    shown, and how many sheets there are. Raises DataError."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo("content.xml")
            if member.file_size > largest:
                raise DataError(f"{path.name} is too large; save it as CSV or TSV in UTF-8")
            with archive.open(member) as file:
                root = ElementTree.parse(file).getroot()
    except (zipfile.BadZipFile, ElementTree.ParseError, OSError, KeyError, ValueError) as error:
        raise DataError(
            f"{path.name} is not a sheet that can be read ({error}); save it as CSV or TSV in UTF-8"
        ) from None
    sheets = [one for one in root.iter() if _tag(one) == "table"]
    if not sheets:
        raise DataError(f"{path.name} has no sheet; save it as CSV or TSV in UTF-8")
    rows: list[list[str]] = []
    for row in (one for one in sheets[0].iter() if _tag(one) == "table-row"):
        cells: list[str] = []
        for cell in row:
            if _tag(cell) in ("table-cell", "covered-table-cell"):
                shown = "\n".join(_shown(one) for one in cell if _tag(one) == "p")
                cells += [shown] * min(_repeated(cell, "number-columns-repeated"), WIDEST)
        while cells and not cells[-1].strip():  # often thousands in each row
            cells.pop()
        rows += [cells] * (min(_repeated(row, "number-rows-repeated"), WIDEST) if cells else 1)
    return rows, len(sheets)


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _repeated(element: ElementTree.Element, name: str) -> int:
    found = next((value for key, value in element.items() if key.endswith(f"}}{name}")), "1")
    return int(found) if found.isdecimal() else 1


def _shown(element: ElementTree.Element) -> str:
    """The text of a paragraph, whose spaces, tabs and line breaks are elements."""
    parts = [element.text or ""]
    for one in element:
        inside = {"s": " ", "tab": " ", "line-break": " ", "annotation": ""}.get(_tag(one))
        parts += [_shown(one) if inside is None else inside, one.tail or ""]
    return "".join(parts)
