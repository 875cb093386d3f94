"""The links of Markdown files: found, checked, and rewritten for the site."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^|(?<=\n\n))(?: {4}.*\n)+", re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"(?P<start>\]\()(?P<target>[^)\s]+)(?P<end>\))")
HEADING = re.compile(r"^#{1,6} +(?P<text>.+?)\s*#*$", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z]+:", re.IGNORECASE)


def blank(match: re.Match[str]) -> str:
    """As many characters and lines, none of them of use."""
    return re.sub(r"[^\n]", " ", match[0])


def prose(text: str) -> str:
    """A page without its code; places in it stay the same."""
    for pattern in (FENCE, INDENTED, CODE):
        text = pattern.sub(blank, text)
    return text


def slug(heading: str) -> str:
    """The anchor that GitHub and the site give a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[`*]", "", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The anchors of a page; the second heading of a name has `-1` at its end."""
    found: set[str] = set()
    without_blocks = FENCE.sub(blank, text)
    for heading in HEADING.finditer(without_blocks):
        name, number = slug(heading["text"]), 0
        while (f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(f"{name}-{number}" if number else name)
    return found


def links(text: str) -> Iterator[tuple[int, str]]:
    """The line and the target of each link and picture that is not elsewhere."""
    for match in LINK.finditer(prose(text)):
        if not ELSEWHERE.match(match["target"]):
            yield text.count("\n", 0, match.start()) + 1, match["target"]


def dead_links(pages: list[Path]) -> list[str]:
    """A sentence for each link of these files to a file or a heading that does not exist."""
    found = []
    for page in pages:
        for line, target in links(page.read_text("utf-8")):
            name, _, anchor = target.partition("#")
            other = page.parent / name if name else page
            if not other.exists():
                found.append(f"{page}:{line}: there is no {name}")
            elif anchor and other.suffix == ".md" and anchor not in anchors(other.read_text()):
                found.append(f"{page}:{line}: {other.name} has no heading #{anchor}")
    return found


def rewritten(text: str, change: Callable[[str], str]) -> str:
    """The page with each link changed; what is in code stays."""
    parts, last = [], 0
    for match in LINK.finditer(prose(text)):
        if not ELSEWHERE.match(match["target"]):
            parts += [text[last : match.start("target")], change(match["target"])]
            last = match.end("target")
    return "".join([*parts, text[last:]])
