"""Pages for a browser, made of plain tables and drawings: one file, no script, nothing loaded.

Texts of data and models are untrusted: whatever is not Markup is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources

STYLE = """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 72rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, "Noto Sans", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .4rem 0; max-width: 46rem; } .faint { color: var(--soft); }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--hair); text-align: right;
  vertical-align: top; } th { font-weight: 600; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
td.text { unicode-bidi: plaintext; overflow-wrap: anywhere; min-width: 5.5em; }
.scroll { overflow-x: auto; } .better { color: var(--good); } .worse { color: var(--bad); }
figure { margin: .5rem 1.2rem .5rem 0; display: inline-block; vertical-align: top; }
figcaption { color: var(--soft); font-size: .85rem; max-width: 30rem; }
svg { display: block; max-width: 100%; height: auto; } svg text { fill: var(--ink); }
.card { background: var(--card); border: 1px solid var(--hair); border-radius: 6px;
  padding: .7rem 1rem; margin: .8rem 0; overflow-x: auto; break-inside: avoid; }
del { color: var(--bad); text-decoration: none; border-bottom: 2px solid var(--bad); }
ins { color: var(--good); text-decoration: none; border-bottom: 2px solid var(--good); }
pre { background: var(--card); padding: .8rem; overflow-x: auto; font-size: .85rem;
  max-height: 30rem; } details > summary { cursor: pointer; }
h1, h2, p, figcaption, summary { overflow-wrap: anywhere; } figure { max-width: 100%; }
@media (max-width: 480px) {
  body { padding: 1rem .8rem; font-size: 14px; } h1 { font-size: 1.3rem; }
  table { font-size: 12px; width: 100%; } th, td { padding: .2rem .25rem; }
  td.text { min-width: 4em; } .card { padding: .5rem .5rem; }
}
@media print {
  body { max-width: none; } .card, pre { background: none; } pre { max-height: none; }
  pre { white-space: pre-wrap; } tr, figure { break-inside: avoid; }
  svg { print-color-adjust: exact; }
  details::details-content { display: block; content-visibility: visible; height: auto; }
}
"""


def palette() -> str:
    """The colours of all pages, as CSS."""
    folder = resources.files("transduce.inspection").joinpath("look", "web")
    return folder.joinpath("palette.css").read_text("utf-8")


class Markup(str):
    """HTML that is safe as it stands."""


def safe(text: object) -> Markup:
    """A text as HTML shows it; Markup as it is."""
    return text if isinstance(text, Markup) else Markup(escape(str(text)))


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
    return Markup(f'<p class="{escape(kind)}">{safe(text)}</p>' if kind else f"<p>{safe(text)}</p>")


def section(title: str, *parts: Markup) -> Markup:
    return Markup(f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>")


def whole_page(title: str, lead: str, sections: Sequence[Markup]) -> str:
    """A page that needs no network, and may use none: its policy forbids scripts and requests."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{palette()}{STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{paragraph(lead, 'faint')}{''.join(sections)}</body></html>\n"
    )


def framed(page: str, height: int = 480) -> str:
    """A page in a frame of its own, as a notebook shows it: without scripts, and apart from it."""
    return (
        f'<iframe sandbox="" width="100%" height="{height}" style="border: 0" '
        f'srcdoc="{escape(page, quote=True)}"></iframe>'
    )
