"""What is checked of the built site: nothing loaded from elsewhere, no dead links."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes by which a browser fetches something of itself; links that a reader follows are not.
FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("video", "src"),
}
FETCHED |= {("link", "href"), ("audio", "src"), ("object", "data"), ("embed", "src")}
STYLE_FETCH = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])\s*(?://|https?:)", re.IGNORECASE)


class Page(HTMLParser):
    """The anchors of a page, what it fetches, and where it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            if (tag, name) in FETCHED:
                self.fetched.append(value)
            if tag == "a" and name == "href":
                self.links.append(value)


def _elsewhere(address: str) -> bool:
    return bool(urlsplit(address).netloc) or urlsplit(address).scheme in ("http", "https")


def complaints(folder: Path) -> list[str]:
    """A sentence for each thing that is fetched from elsewhere, and for each dead link."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder)
        found += [f"{name} loads {one}" for one in page.fetched if _elsewhere(one)]
        # The page for addresses that do not exist may be shown at any depth.
        if path.name == "404.html":
            continue
        for link in [*page.links, *page.fetched]:
            if _elsewhere(link) or urlsplit(link).scheme:
                continue
            place, anchor = unquote(urlsplit(link).path), unquote(urlsplit(link).fragment)
            other = (path.parent / place).resolve() if place else path
            other = other / "index.html" if other.is_dir() else other
            if not other.exists():
                found.append(f"{name} links to {link}, which does not exist")
            elif anchor and other in pages and anchor not in pages[other].anchors:
                found.append(f"{name} links to {link}, a heading that does not exist")
    for path in sorted(folder.rglob("*.css")):
        if STYLE_FETCH.search(path.read_text("utf-8")):
            found.append(f"{path.relative_to(folder)} loads something from elsewhere")
    return found
