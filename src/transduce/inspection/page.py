"""Pages for a browser: one HTML file each, which loads and sends nothing.

Texts of data and models are untrusted. In HTML whatever is not Markup is escaped. The data of a
script are a JSON block, escaped so that nothing can end the block, and scripts insert them as text
only. The Content-Security-Policy allows the style and the script of the page by their hashes, and
nothing else: injected markup would neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

#: The colours of all pages, light and dark. On paper they are light.
COLOURS = {
    "paper": ("#fbfaf6", "#14171f"),
    "ink": ("#1b1e26", "#e8e6e1"),
    "soft": ("#5c6270", "#a3a8b4"),
    "hair": ("#dcd8d0", "#2f3440"),
    "card": ("#ffffff", "#1b1f29"),
    "accent": ("#b3470b", "#ff9d4d"),
    "focus": ("#b3470b", "#ff9d4d"),
    "line": ("#1f4e96", "#ffe066"),
    "bar": ("#4275b7", "#c6ae60"),
    "good": ("#1b6e50", "#6fcfa5"),
    "bad": ("#b03060", "#f08bb0"),
    "first": ("#3b6fb6", "#82aee8"),
    "second": ("#c2571a", "#f0a06a"),
    "third": ("#2f7f5f", "#7fcfae"),
    "fourth": ("#8a5fb0", "#c5a2e6"),
}
# In a <script> only these could end it or be read as more than data.
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
# The ▁ of subwords would look like a line under one label or over the next.
SIGNS = str.maketrans({" ": "␣", "▁": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"})


class Markup(str):
    """HTML that is safe as it stands."""


def safe(text: object) -> Markup:
    """A text as HTML shows it; Markup as it is."""
    return text if isinstance(text, Markup) else Markup(escape(str(text)))


def visible(token: str) -> str:
    """A token as a label: white space and control characters made visible."""
    if not token:
        return "∅"
    return "".join(
        character if character.isprintable() else repr(character)[1:-1]
        for character in token.translate(SIGNS)
    )


# ---------------------------------------------------------------------------- parts of a page


def table(head: Sequence[object], rows: Sequence[Sequence[object]], text: int = 1) -> Markup:
    """A table whose first `text` columns hold words, the others numbers."""

    def cells(kind: str, row: Sequence[object]) -> str:
        of_text = ' class="text"'
        return "".join(
            f"<{kind}{of_text if place < text else ''}>{safe(cell)}</{kind}>"
            for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    made = f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"
    return Markup(f'<div class="scroll">{made}</div>')


def paragraph(text: object, kind: str = "") -> Markup:
    return Markup(f'<p class="{safe(kind)}">{safe(text)}</p>' if kind else f"<p>{safe(text)}</p>")


def section(title: str, *parts: Markup) -> Markup:
    return Markup(f"<section><h2>{safe(title)}</h2>{''.join(parts)}</section>")


def folded(title: str, text: str) -> Markup:
    """A long text that a click unfolds."""
    return Markup(f"<details><summary>{safe(title)}</summary><pre>{safe(text)}</pre></details>")


# ----------------------------------------------------------------------------------- the page


def document(title: str, lead: str, sections: Sequence[Markup]) -> str:
    """A page of tables and drawings, without a script."""
    body = f"<h1>{safe(title)}</h1>{paragraph(lead, 'note')}{''.join(sections)}"
    return html_page(title, Markup(body), styles=("document.css",))


def html_page(
    title: str,
    body: Markup,
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
) -> str:
    """A page of files in `web/`; its scripts find `data` in the element with the id data."""
    return assembled(title, body, stylesheet(styles), joined(scripts) if scripts else "", data)


def assembled(
    title: str,
    body: Markup,
    style: str,
    script: str = "",
    data: Mapping[str, Any] | None = None,
    *,
    blocks: Mapping[str, str] | None = None,
    policy: Mapping[str, str] | None = None,
) -> str:
    """A page of a style and a script.

    blocks: texts that it finds in elements with these ids, none of which may hold the end of a
    script element. policy: what else each directive of the Content-Security-Policy allows.
    """
    allowed = {
        "default-src": "'none'",
        "style-src": _hash(style),
        "img-src": "data:",
        "media-src": "blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    if script:
        script = f'"use strict";\n(() => {{\n{script}}})();\n'
        allowed["script-src"] = _hash(script)
        kept = "".join(
            f'<script id="{name}" type="text/plain">{text}</script>'
            for name, text in (blocks or {}).items()
        )
        body = Markup(
            "<noscript>This page needs JavaScript; all of it is inside this file.</noscript>"
            f'{body}<script id="data" type="application/json">{as_json(data or {})}</script>'
            f"{kept}<script>{script}</script>"
        )
    for name, more in (policy or {}).items():
        allowed[name] = f"{allowed.get(name, '')} {more}".strip()
    rules = "; ".join(f"{name} {value}" for name, value in allowed.items())
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{rules}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{safe(title)}</title><style>{style}</style></head><body>{body}</body></html>\n"
    )
    return page.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair


def framed(page: str, height: int = 480, scripts: bool = False) -> str:
    """A page in a frame of its own, as a notebook shows it: neither can reach the other."""
    allowed = "allow-scripts" if scripts else ""
    return (
        f'<iframe sandbox="{allowed}" width="100%" height="{height}" style="border: 0" '
        f'srcdoc="{escape(page, quote=True)}"></iframe>'
    )


def as_json(data: Mapping[str, Any]) -> str:
    """JSON escaped for a <script> element."""
    written = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign, escaped in UNSAFE.items():
        written = written.replace(sign, escaped)
    return written


def stylesheet(names: Sequence[str]) -> str:
    """The colours, what all pages have, and the named files of `web/`."""
    light, dark = (
        " ".join(f"--{name}: {pair[place]};" for name, pair in COLOURS.items()) for place in (0, 1)
    )
    palette = (
        f":root {{ color-scheme: light; {light} }}\n"
        "@media screen and (prefers-color-scheme: dark) "
        f'{{ :root:not([data-theme="light"]) {{ color-scheme: dark; {dark} }} }}\n'
        f':root[data-theme="dark"] {{ color-scheme: dark; {dark} }}\n'
    )
    return palette + joined(("common.css", *names))


def joined(names: Sequence[str]) -> str:
    """The text of files in `web/`, one after the other."""
    folder = resources.files("transduce.inspection").joinpath("web")
    return "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
