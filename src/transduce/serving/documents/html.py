"""HTML and XML: text is translated; tags, attributes, comments and scripts are kept.

Markup is never written anew: it is copied from the source, character for character. Text with
inline elements, such as <b>, is one segment. All of it takes time that is linear in the length.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from html import unescape

from transduce.serving.documents.markup import SPACE, Token, attributes, tokens
from transduce.serving.documents.segments import Segments, Tag, has_words
from transduce.serving.threads import check_wanted

# Content that is not prose. HTML's own `translate="no"` is obeyed as well.
_SKIPPED = "script style code pre kbd samp var math svg template textarea noscript iframe xmp"
SKIPPED = frozenset(f"{_SKIPPED} noembed noframes".split())
# Elements within a sentence.
_INLINE = "a abbr b bdi bdo big cite data del dfn em font i ins mark q s small span strike strong"
INLINE = frozenset(f"{_INLINE} sub sup time tt u code kbd samp var img wbr".split())
# Elements that have no end tag.
_VOID = "area base br col embed hr img input link meta param source track wbr"
VOID = frozenset(_VOID.split())
REFERENCE = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);")
SPACES = re.compile(f"[{SPACE}]+")


def html_segments(source: str, skipped: Collection[str] = SKIPPED) -> Segments:
    """The segments of an HTML document or fragment, well-formed or not.

    skipped: elements whose content is not translated, in lower case.
    """
    found = list(_checked(tokens(source)))
    reader = _Reader(source, [token.name in INLINE for token in found], skipped, xml=False)
    return reader.read(found)


def xml_segments(
    source: str,
    skipped: Collection[str] = (),
    splitting: Collection[str] = (),
    non_splitting: Collection[str] = (),
    outline: bool = True,
) -> Segments:
    """The segments of XML, well-formed or not.

    Elements in `splitting` end a sentence, those in `non_splitting` never do. outline: of all
    others, those that stand beside text are within its sentence; without it, all of them are.
    """
    found = list(_checked(tokens(source, xml=True)))
    beside = _beside_text(source, found) if outline else [True] * len(found)
    inline = [
        token.name not in splitting and (token.name in non_splitting or near)
        for token, near in zip(found, beside, strict=True)
    ]
    return _Reader(source, inline, skipped, xml=True).read(found)


def xml_segments_by(
    source: str,
    is_inline: Callable[[str], bool],
    segments: Segments,
) -> None:
    """Add the segments of XML in which the name of an element says whether it is inline."""
    found = list(_checked(tokens(source, xml=True)))
    inline = [is_inline(token.name) for token in found]
    reader = _Reader(source, inline, (), xml=True, segments=segments)
    reader.read(found)


def _checked(found: Iterator[Token]) -> Iterator[Token]:
    for token in found:
        check_wanted()
        yield token


def _beside_text(source: str, found: list[Token]) -> list[bool]:
    """Of each tag, whether text with words stands directly in the element that it is in."""
    parent = 0
    waiting: list[tuple[str, int]] = []
    names: Counter[str] = Counter()
    parents, has_text = [], [False]
    for token in found:
        if token.kind == "end" and names[token.name]:
            name = ""
            while name != token.name:  # what was left open inside is closed with it
                name, parent = waiting.pop()
                names[name] -= 1
        parents.append(parent)
        if token.kind == "text" and not has_text[parent]:
            has_text[parent] = has_words(source[token.start : token.end])
        elif token.kind == "start" and source[token.end - 2] != "/":
            waiting.append((token.name, parent))
            names[token.name] += 1
            parent = len(has_text)
            has_text.append(False)
    return [has_text[one] for one in parents]


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
class Piece:
    """A stretch of the source: text, or inline markup."""

    raw: str
    kind: str
    """text; start or end of an element; alone (an image, a comment, what is not translated); break,
    which is alone and between two characters."""
    name: str = ""


class _Reader:
    """A run of text and inline markup is one segment."""

    def __init__(
        self,
        source: str,
        inline: list[bool],
        skipped: Collection[str],
        xml: bool,
        segments: Segments | None = None,
    ) -> None:
        """inline: of each token, whether it is a tag within a sentence. segments: to which they
        are added."""
        self._source, self._inline, self._never, self._xml = source, inline, skipped, xml
        self._segments = Segments() if segments is None else segments
        self._open: list[str] = []
        """The open elements from the first one that is not translated."""
        self._names: Counter[str] = Counter()
        """How many of each name are among them."""
        self._inside = "block"
        """What is in an element that is not translated belongs to it, inline or not."""
        self._run: list[Piece] = []
        self._begin, self._kind = 0, "block"
        """The start and the kind of what is not yet in the run."""

    def read(self, found: list[Token]) -> Segments:
        for number, token in enumerate(found):
            check_wanted()
            kind = self._kind_of(token, self._inline[number])
            if kind != self._kind or kind not in ("text", "skipped", "block"):
                self._cut(token.start)
            self._kind = kind
            if kind in ("start", "end", "alone"):
                raw = self._source[token.start : token.end]
                self._run.append(Piece(raw, kind, token.name))
                self._begin = token.end
        self._cut(len(self._source))
        add_run(self._segments, self._run)
        return self._segments

    def _kind_of(self, token: Token, inline: bool) -> str:
        """text, block, skipped; start, end, alone for pieces of their own."""
        if token.kind == "start":
            return self._kind_of_start(token, inline)
        if token.kind == "end":
            return self._kind_of_end(token, inline)
        if self._open:
            return self._inside
        if token.kind == "comment":
            return "alone"
        return "text" if token.kind == "text" else "block"

    def _kind_of_start(self, token: Token, inline: bool) -> str:
        name = token.name
        closed = self._source[token.end - 2] == "/"
        alone = closed if self._xml else name in VOID or (closed and name not in self._never)
        if self._open:
            if not alone:
                self._enter(name)
            return self._inside
        if not alone and (name in self._never or self._is_marked(token)):
            self._inside = "skipped" if inline else "block"
            self._enter(name)
            return self._inside
        if not inline:
            return "block"
        return "alone" if alone else "start"

    def _kind_of_end(self, token: Token, inline: bool) -> str:
        if not self._open:
            return "end" if inline else "block"
        if self._names[token.name]:  # what was left open inside is closed with it
            name = ""
            while name != token.name:
                name = self._open.pop()
                self._names[name] -= 1
        return self._inside

    def _enter(self, name: str) -> None:
        self._open.append(name)
        self._names[name] += 1

    def _is_marked(self, token: Token) -> bool:
        raw = self._source[token.start : token.end]
        if "translate" not in raw.lower():  # as in notranslate
            return False
        values = attributes(raw)
        return values.get("translate") == "no" or "notranslate" in values.get("class", "").split()

    def _cut(self, end: int) -> None:
        """The source up to here is what began before."""
        raw, self._begin = self._source[self._begin : end], end
        if not raw:
            return
        if self._kind == "block":
            add_run(self._segments, self._run)
            self._run = []
            self._segments.keep(raw)
        else:
            self._run.append(Piece(raw, "text" if self._kind == "text" else "alone"))


def add_run(segments: Segments, run: list[Piece]) -> None:
    """A block ends: what ran up to here is a segment."""
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
        segments.keep(piece.raw)
    if first < last:
        _add(segments, run[first:last])
    for piece in run[last:]:
        segments.keep(piece.raw)


def _add(segments: Segments, run: list[Piece]) -> None:
    raw = "".join(piece.raw for piece in run if piece.kind == "text")
    if not has_words(unescape(raw)):
        segments.keep("".join(piece.raw for piece in run))
        return
    before = _margin(run[0].raw) if run[0].kind == "text" else ""
    after = _margin(run[-1].raw[::-1])[::-1] if run[-1].kind == "text" else ""
    text, tags = _marked(run)
    segments.keep(before)
    markup = sum(len(piece.raw) for piece in run) - len(raw)
    segments.add_marked(text, tags, escape_like(raw), markup)
    segments.keep(after)


def has_text(piece: Piece) -> bool:
    return piece.kind == "text" and bool(piece.raw.strip(SPACE))


def _margin(raw: str) -> str:
    return raw[: len(raw) - len(raw.lstrip(SPACE))]


def _partners(run: list[Piece]) -> list[int | None]:
    """The place of the end tag of each start tag, and the other way round; None: without one."""
    found: list[int | None] = [None] * len(run)
    waiting: list[int] = []
    names: Counter[str] = Counter()
    for place, piece in enumerate(run):
        if piece.kind == "start":
            waiting.append(place)
            names[piece.name] += 1
        elif piece.kind == "end" and names[piece.name]:
            name = ""
            while name != piece.name:  # what was opened after it stays alone
                start = waiting.pop()
                name = run[start].name
                names[name] -= 1
            found[start], found[place] = place, start
    return found


def _marked(run: list[Piece]) -> tuple[str, list[Tag]]:
    """The text of a run with single spaces, and its tags with their places in the text."""
    partner = _partners(run)
    parts: list[str] = []
    length = 0
    spaced = True  # white space at the start is outside
    top: list[Tag] = []
    stack = [top]
    for place, piece in enumerate(run):
        if piece.kind == "text":
            text = SPACES.sub(" ", unescape(piece.raw))
            if spaced:
                text = text.removeprefix(" ")
            if text:
                parts.append(text)
                length += len(text)
                spaced = text.endswith(" ")
        elif piece.kind == "start" and partner[place] is not None:
            tag = Tag(length, piece.raw)
            stack[-1].append(tag)
            stack.append(tag.inside)
        elif piece.kind == "end" and partner[place] is not None:
            stack.pop()
            stack[-1][-1].end, stack[-1][-1].close = length, piece.raw
        else:
            ends = bool(length) and spaced  # the text so far ends with its space
            apart = ends and piece.kind != "break"
            stack[-1].append(Tag(length - ends, piece.raw, spaced=apart))
    return "".join(parts).rstrip(), top
