"""HTML: the text between tags is translated; tags, attributes, comments and scripts are kept.

Markup is never written anew: it is copied from the source, character for character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from html import unescape
from html.parser import HTMLParser

from transduce.serving.documents.segments import Segments

# Content that is not prose. HTML's own `translate="no"` is obeyed as well.
SKIPPED = frozenset(
    [
        "script",
        "style",
        "code",
        "pre",
        "kbd",
        "samp",
        "var",
        "math",
        "svg",
        "template",
        "textarea",
        "noscript",
        "iframe",
    ]
)
VOID = frozenset(
    [
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "param",
        "source",
        "track",
        "wbr",
    ]
)  # elements that have no end tag
REFERENCE = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);")
SPACES = re.compile(r"[ \t\n\r\f]+")  # not the no-break space


def html_segments(source: str, skipped: Collection[str] = SKIPPED) -> Segments:
    """The segments of an HTML document or fragment, well-formed or not.

    skipped: elements whose content is not translated, in lower case.
    """
    parser = _Parser(source, skipped)
    parser.feed(source)
    parser.close()
    return parser.finish()


def escape_like(text: str) -> Callable[[str], str]:
    """Escapes a translation with the character references that its source has."""
    named = {unescape(found): found for found in REFERENCE.findall(text)}
    table = {
        ord(character): found
        for character, found in named.items()
        if len(character) == 1 and not character.isascii()
    }
    table |= {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
    return lambda translation: translation.translate(table)


class _Parser(HTMLParser):
    """Notes where text is: the source between two events of the parser is markup or text."""

    def __init__(self, source: str, skipped: Collection[str]) -> None:
        super().__init__(convert_charrefs=False)
        self._source, self._never = source, skipped
        self._lines = [0]
        for line in source.split("\n")[:-1]:
            self._lines.append(self._lines[-1] + len(line) + 1)
        self._segments = Segments()
        self._skipped: list[str] = []
        """The open elements from the first one that is not translated."""
        self._text_start: int | None = None
        self._done = 0

    def finish(self) -> Segments:
        self._flush(len(self._source))
        self._segments.keep(self._source[self._done :])
        return self._segments

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._markup()
        told = {name: value or "" for name, value in attrs}
        closed = (self.get_starttag_text() or "").endswith("/>")
        if tag in VOID or (closed and tag not in self._never):
            return
        marked = told.get("translate") == "no" or "notranslate" in told.get("class", "").split()
        if self._skipped or tag in self._never or marked:
            self._skipped.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self._markup()
        if tag in self._skipped:  # what was left open inside is closed with it
            del self._skipped[len(self._skipped) - 1 - self._skipped[::-1].index(tag) :]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._markup()

    def handle_data(self, data: str) -> None:
        self._text()

    def handle_entityref(self, name: str) -> None:
        self._text()

    def handle_charref(self, name: str) -> None:
        self._text()

    def handle_comment(self, data: str) -> None:
        self._markup()

    def handle_decl(self, decl: str) -> None:
        self._markup()

    def handle_pi(self, data: str) -> None:
        self._markup()

    def unknown_decl(self, data: str) -> None:
        self._markup()

    @property
    def _place(self) -> int:
        line, column = self.getpos()
        return self._lines[line - 1] + column

    def _text(self) -> None:
        if self._text_start is None:
            self._text_start = self._place
            self._segments.keep(self._source[self._done : self._text_start])
            self._done = self._text_start

    def _markup(self) -> None:
        """Markup begins here: what was text before it is a segment."""
        self._flush(self._place)

    def _flush(self, end: int) -> None:
        if self._text_start is None:
            return
        raw = self._source[self._text_start : end]
        self._text_start, self._done = None, end
        if self._skipped:
            self._segments.keep(raw)
            return
        # White space around a segment stays as it is; within it, line breaks are spaces.
        bare = raw.strip(" \t\n\r\f")
        before = raw[: len(raw) - len(raw.lstrip(" \t\n\r\f"))]
        plain = SPACES.sub(" ", unescape(bare))
        if not any(c.isalnum() for c in plain):
            self._segments.keep(raw)
            return
        self._segments.keep(before)
        self._segments.add(plain, escape_like(bare))
        self._segments.keep(raw[len(before) + len(bare) :])
