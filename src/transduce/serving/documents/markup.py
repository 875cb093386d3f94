"""Markup cut into tokens: text, tags, comments and declarations, each with its place in the source.

The rules are those of browsers (https://html.spec.whatwg.org/multipage/parsing.html#tokenization).
A token goes to its end or, where it has none, to the end of the source, and nothing is looked at
twice: the time is linear in the length, whatever the source is. The parsers of other packages,
lxml and selectolax, say where nothing in the source is, so a document could not be kept as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

SPACE = " \t\n\r\f"  # not the no-break space
# An attribute: its value, if it has one, is quoted or ends with white space. The possessive
# quantifiers never try a second way.
_VALUE = r"""(?:"[^"]*+"|'[^']*+'|[^\t\n\r\f >"'][^\t\n\r\f >]*+|(?=>))"""
_ATTRIBUTE = (
    rf"""[^\t\n\r\f />][^\t\n\r\f />=]*+(?:[{SPACE}]*+=[{SPACE}]*+{_VALUE}|(?![{SPACE}]*+=))"""
)
STARTS = re.compile(r"</?+[a-zA-Z]")
TAG = re.compile(rf"</?+([a-zA-Z][^{SPACE}/>]*+)(?:[{SPACE}/]++|{_ATTRIBUTE})*+>")
_XML_NAME = rf"[^{SPACE}/<>&!?=\d.-]"
XML_STARTS = re.compile(rf"</?+{_XML_NAME}")
XML_TAG = re.compile(rf"</?+({_XML_NAME}[^{SPACE}/>]*+)(?:[{SPACE}/]++|{_ATTRIBUTE})*+>")
ATTRIBUTE = re.compile(rf"[{SPACE}/]({_ATTRIBUTE})")
COMMENT_END = re.compile(r"--!?>")
# Elements whose content is text alone, up to their end tag.
_RAW = "script style textarea title xmp iframe noembed noframes"
RAW = {name: re.compile(rf"</{name}(?=[{SPACE}/>])", re.IGNORECASE) for name in _RAW.split()}


class Token(NamedTuple):
    """A stretch of the source."""

    kind: str
    """text; raw (text that is no prose, as a script); start, end; comment; declaration."""
    start: int
    end: int
    name: str = ""
    """Of an element; in lower case, except in XML."""


def tokens(source: str, xml: bool = False) -> Iterator[Token]:
    """The tokens of a document or fragment, well-formed or not; together they are the source."""
    place, size = 0, len(source)
    pattern, starts = (XML_TAG, XML_STARTS) if xml else (TAG, STARTS)
    text = 0  # where the text that goes on here began
    while True:
        place = source.find("<", place)
        if place < 0:
            break
        follows = source[place + 1 : place + 2]
        found = None
        if follows == "!":
            kind, end = _declaration(source, place, xml)
        elif follows == "?":
            kind, end = "declaration", _after(source, "?>" if xml else ">", place)
        elif starts.match(source, place) is not None:
            found = pattern.match(source, place)
            kind = "end" if follows == "/" else "start"
            if found is None:  # it never ends
                kind = "declaration"
            end = size if found is None else found.end()
        elif follows == "/" and not xml:
            kind, end = "comment", _after(source, ">", place)
        else:
            place += 1
            continue
        if text < place:
            yield Token("text", text, place)
        name = "" if found is None else found[1] if xml else found[1].lower()
        yield Token(kind, place, end, name)
        place = text = end
        if kind == "start" and not xml and (closes := RAW.get(name)) is not None:
            closing = closes.search(source, place)
            place = text = size if closing is None else closing.start()
            if end < place:
                prose = name == "title"
                yield Token("text" if prose else "raw", end, place)
    if text < size:
        yield Token("text", text, size)


def _declaration(source: str, place: int, xml: bool) -> tuple[str, int]:
    """The kind and the end of what begins with <!."""
    if source.startswith("<!--", place):
        if not xml and source.startswith((">", "->"), place + 4):
            return "comment", source.index(">", place) + 1
        found = COMMENT_END.search(source, place + 4)
        return "comment", len(source) if found is None else found.end()
    if xml and source.startswith("<![CDATA[", place):
        return "comment", _after(source, "]]>", place)
    return "declaration", _after(source, ">", place)


def _after(source: str, mark: str, place: int) -> int:
    """The place after the next mark; without one, the end."""
    found = source.find(mark, place)
    return len(source) if found < 0 else found + len(mark)


def attributes(tag: str) -> dict[str, str]:
    """The attributes of a start tag; names in lower case, values as they are written."""
    found: dict[str, str] = {}
    for one in ATTRIBUTE.findall(tag):
        name, _, value = one.partition("=")
        value = value.strip(SPACE)
        quoted = value[:1] in ("'", '"')
        found.setdefault(name.rstrip(SPACE).lower(), value[1:-1] if quoted else value)
    return found
