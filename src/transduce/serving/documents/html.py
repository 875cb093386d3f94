"""HTML: text is translated; tags, attributes, comments and scripts are kept.

Markup is never written anew: it is copied from the source, character for character. Text with
inline elements, such as <b>, is one segment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser

from transduce.serving.documents.inline import Tag
from transduce.serving.documents.segments import Segments, has_words

# Content that is not prose. HTML's own `translate="no"` is obeyed as well.
_SKIPPED = "script style code pre kbd samp var math svg template textarea noscript iframe"
SKIPPED = frozenset(_SKIPPED.split())
# Elements within a sentence.
_INLINE = "a abbr b bdi bdo big cite data del dfn em font i ins mark q s small span strike strong"
INLINE = frozenset(f"{_INLINE} sub sup time tt u code kbd samp var img wbr".split())
# Elements that have no end tag.
_VOID = "area base br col embed hr img input link meta param source track wbr"
VOID = frozenset(_VOID.split())
REFERENCE = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);")
SPACE = " \t\n\r\f"  # not the no-break space
SPACES = re.compile(f"[{SPACE}]+")


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


@dataclass
class _Piece:
    """A stretch of the source: text, or inline markup."""

    raw: str
    kind: str
    """text; start or end of an element; alone (an image, a comment, what is not translated)."""
    name: str = ""


class _Parser(HTMLParser):
    """Cuts the source where the parser's events begin; a run of text and inline markup is one
    segment."""

    def __init__(self, source: str, skipped: Collection[str]) -> None:
        super().__init__(convert_charrefs=False)
        self._source, self._never = source, skipped
        self._lines = [0]
        for line in source.split("\n")[:-1]:
            self._lines.append(self._lines[-1] + len(line) + 1)
        self._segments = Segments()
        self._skipped: list[str] = []
        """The open elements from the first one that is not translated."""
        self._run: list[_Piece] = []
        self._next = ("block", "")
        """The kind and name of what begins at `_start`."""
        self._start = 0

    def finish(self) -> Segments:
        self._cut(len(self._source))
        self._flush()
        return self._segments

    # --------------------------------------------------------------------- events

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        raw = self.get_starttag_text() or ""
        alone = tag in VOID or (raw.endswith("/>") and tag not in self._never)
        marked = told.get("translate") == "no" or "notranslate" in told.get("class", "").split()
        inline = tag in INLINE
        if self._skipped:
            self._begin(self._inside)
            self._skipped += [] if alone else [tag]
        elif not alone and (tag in self._never or marked):
            self._begin("skipped" if inline else "block")
            self._skipped.append(tag)
        elif not inline:
            self._begin("block")
        else:
            self._begin("alone" if alone else "start", tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self._skipped:
            self._begin("end" if tag in INLINE else "block", tag)
            return
        self._begin(self._inside)
        if tag in self._skipped:  # what was left open inside is closed with it
            del self._skipped[len(self._skipped) - 1 - self._skipped[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        self._begin(self._inside if self._skipped else "text")

    def handle_entityref(self, name: str) -> None:
        self.handle_data(name)

    def handle_charref(self, name: str) -> None:
        self.handle_data(name)

    def handle_comment(self, data: str) -> None:
        self._begin(self._inside if self._skipped else "alone")

    def handle_decl(self, decl: str) -> None:
        self._begin("block")

    def handle_pi(self, data: str) -> None:
        self._begin("block")

    def unknown_decl(self, data: str) -> None:
        self._begin("block")

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """<![ up to the next >, as browsers read it; Python's own fails on what is not SGML."""
        end = self.rawdata.find(">", i)
        if end >= 0:
            self.unknown_decl(self.rawdata[i:end])
        return end + 1 or -1

    # ---------------------------------------------------------------------- cutting

    @property
    def _inside(self) -> str:
        """What is in an element that is not translated belongs to it, inline or not."""
        return "skipped" if self._skipped[0] in INLINE else "block"

    def _begin(self, kind: str, name: str = "") -> None:
        line, column = self.getpos()
        self._cut(self._lines[line - 1] + column)
        self._next = (kind, name)

    def _cut(self, end: int) -> None:
        """The source up to here is what began before."""
        kind, name = self._next
        raw, self._start = self._source[self._start : end], end
        if not raw:
            return
        if kind == "block":
            self._flush()
            self._segments.keep(raw)
        elif self._run and kind == self._run[-1].kind and kind in ("text", "skipped"):
            self._run[-1].raw += raw
        else:
            self._run.append(_Piece(raw, kind, name))

    def _flush(self) -> None:
        """A block ends: what ran up to here is a segment."""
        run, self._run = self._run, []
        partner = _partners(run)
        first, last = 0, len(run)
        while first < last:
            if partner[first] == last - 1:  # an element around all the rest
                first, last = first + 1, last - 1
            elif partner[first] is None and not has_text(run[first]):
                first += 1
            elif partner[last - 1] is None and not has_text(run[last - 1]):
                last -= 1
            else:
                break
        for piece in run[:first]:
            self._segments.keep(piece.raw)
        if first < last:
            self._add(run[first:last])
        for piece in run[last:]:
            self._segments.keep(piece.raw)

    def _add(self, run: list[_Piece]) -> None:
        raw = "".join(piece.raw for piece in run if piece.kind == "text")
        if not has_words(unescape(raw)):
            self._segments.keep("".join(piece.raw for piece in run))
            return
        before = _margin(run[0].raw) if run[0].kind == "text" else ""
        after = _margin(run[-1].raw[::-1])[::-1] if run[-1].kind == "text" else ""
        text, tags = _marked(run)
        self._segments.keep(before)
        self._segments.add_marked(text, tags, escape_like(raw))
        self._segments.keep(after)


def has_text(piece: _Piece) -> bool:
    return piece.kind == "text" and bool(piece.raw.strip(SPACE))


def _margin(raw: str) -> str:
    return raw[: len(raw) - len(raw.lstrip(SPACE))]


def _partners(run: list[_Piece]) -> list[int | None]:
    """The place of the end tag of each start tag, and the other way round; None: without one."""
    found: list[int | None] = [None] * len(run)
    waiting: list[int] = []
    for place, piece in enumerate(run):
        if piece.kind == "start":
            waiting.append(place)
        elif piece.kind == "end":
            fits = [n for n, start in enumerate(waiting) if run[start].name == piece.name]
            if fits:  # what was opened after it stays alone
                start = waiting[fits[-1]]
                found[start], found[place] = place, start
                del waiting[fits[-1] :]
    return found


def _marked(run: list[_Piece]) -> tuple[str, list[Tag]]:
    """The text of a run with single spaces, and its tags with their places in the text."""
    partner = _partners(run)
    text = ""
    spaced = True  # white space at the start is outside
    top: list[Tag] = []
    stack = [top]
    for place, piece in enumerate(run):
        if piece.kind == "text":
            for character in SPACES.sub(" ", unescape(piece.raw)):
                if character != " " or not spaced:
                    text += character
                spaced = character == " "
        elif piece.kind == "start" and partner[place] is not None:
            tag = Tag(len(text), piece.raw)
            stack[-1].append(tag)
            stack.append(tag.inside)
        elif piece.kind == "end" and partner[place] is not None:
            stack.pop()
            stack[-1][-1].end, stack[-1][-1].close = len(text), piece.raw
        else:
            stack[-1].append(Tag(len(text.rstrip()), piece.raw, spaced=spaced and bool(text)))
    return text.rstrip(), top
