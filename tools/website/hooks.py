"""Hooks of MkDocs: formulas become MathML, which browsers show without a script."""

from __future__ import annotations

import html
import re
from typing import Any

FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">(?P<open>\\\(|\\\[)(?P<latex>.*?)(?:\\\)|\\\])'
    r"</(?P=tag)>",
    re.DOTALL,
)


def on_page_content(content: str, **_: Any) -> str:
    return FORMULA.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    display = "block" if match["open"] == r"\[" else "inline"
    return convert(html.unescape(match["latex"]).strip(), display=display)
