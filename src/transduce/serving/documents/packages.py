"""Documents of word processors, .docx and .odt: a zip archive with XML inside.

Paragraphs are segments. All else, in the XML and in the archive, is kept.
"""

from __future__ import annotations

import io
import lzma
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from transduce.serving.documents.html import Piece, add_run, xml_segments_by
from transduce.serving.documents.markup import tokens
from transduce.serving.documents.segments import Segments
from transduce.serving.errors import BadRequest
from transduce.serving.limits import Limits
from transduce.serving.threads import check_wanted

# What Python's zipfile raises on one kind or another of damage.
BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)
BETWEEN = "\0"  # parts of a document; XML cannot have it
DOCX_PARTS = re.compile(r"word/(document|header\d*|footer\d*|footnotes|endnotes)\.xml")
ODT_PARTS = re.compile(r"(content|styles)\.xml")
# Elements of OpenDocument within a paragraph.
ODT_INLINE = re.compile(
    r"text:(span|a|soft-page-break|bookmark.*|reference-mark.*|change.*|ruby.*)"
)
ODT_SPACES = re.compile(r"<text:s(?: [^<>]*)?/>")


@dataclass
class Package:
    """An archive whose parts are translated."""

    contents: bytes
    names: list[str]
    """Of the parts, in the order of the segments."""
    segments: Segments

    def write(self, translated: str) -> bytes:
        """The archive with its parts translated, as `segments.join` gives them."""
        parts = dict(zip(self.names, translated.split(BETWEEN), strict=True))
        made = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(self.contents)) as source,
            zipfile.ZipFile(made, "w") as target,
        ):
            for entry in source.infolist():  # in its order: an .odt begins with its type
                part = parts.get(entry.filename)
                data = source.read(entry) if part is None else part.encode("utf-8")
                target.writestr(entry, data, entry.compress_type)
        return made.getvalue()


def read_package(path: Path, ending: str, limits: Limits) -> Package:
    """Raises BadRequest for what is no such document, and TooLarge."""
    contents = path.read_bytes()
    pattern, cut = (DOCX_PARTS, _cut_docx) if ending == ".docx" else (ODT_PARTS, _cut_odt)
    segments = Segments()
    names: list[str] = []
    segments.in_order = ending == ".docx"
    try:
        with zipfile.ZipFile(io.BytesIO(contents)) as archive:
            _check_size(archive, limits)
            for entry in archive.infolist():
                check_wanted()
                data = _read(archive, entry)
                if pattern.fullmatch(entry.filename) is None or entry.filename in names:
                    continue
                text = data.decode("utf-8-sig")
                if BETWEEN in text:
                    raise BadRequest(f"{entry.filename} in the document is not XML")
                if names:
                    segments.keep(BETWEEN)
                names.append(entry.filename)
                cut(text, segments)
    except UnicodeDecodeError:
        raise BadRequest("the document is not UTF-8 XML; save it again") from None
    except BROKEN:
        raise BadRequest(f"the file is damaged, or no {ending} document") from None
    if not names:
        raise BadRequest(f"the file is no {ending} document: it has no text inside")
    return Package(contents, names, segments)


def _check_size(archive: zipfile.ZipFile, limits: Limits) -> None:
    count = len(archive.infolist())
    limits.check("document_entries", count, f"the document has {count:,} files inside")
    size = sum(entry.file_size for entry in archive.infolist())
    limits.check("unpacked_bytes", size, f"the document has {size:,} bytes when it is unpacked")


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The bytes of an entry, no more than it says that there are."""
    with archive.open(entry) as file:
        return file.read(entry.file_size)


def _cut_odt(source: str, segments: Segments) -> None:
    source = ODT_SPACES.sub(" ", source)
    xml_segments_by(source, lambda name: ODT_INLINE.fullmatch(name) is not None, segments)


def _cut_docx(source: str, segments: Segments) -> None:
    """Word's text is in <w:t>, and nowhere else may there be any. What stands between two of these
    in a paragraph stays between two words."""
    run: list[Piece] = []
    inside = paragraph = False
    markup: list[str] = []

    def end_markup(kept: bool) -> None:
        raw = "".join(markup)
        markup.clear()
        if kept and not run:
            segments.keep(raw)
        elif raw:
            run.append(Piece(raw, "break"))

    for token in tokens(source, xml=True):
        check_wanted()
        raw = source[token.start : token.end]
        if token.name == "w:p":
            end_markup(kept=True)
            add_run(segments, run)
            run = []
            paragraph = token.kind == "start"
        if token.name == "w:t" and token.kind == "start" and not raw.endswith("/>"):
            inside = paragraph
            # Spaces at the edges of a text count only then.
            raw = raw if "xml:space" in raw else raw[:-1] + ' xml:space="preserve">'
        elif token.name == "w:t":
            inside = False
        if inside and token.kind == "text":
            end_markup(kept=False)
            run.append(Piece(raw, "text"))
        else:
            markup.append(raw)
    end_markup(kept=True)
    add_run(segments, run)
