"""What notebooks show of results: a page in a frame, whatever the texts are."""

from __future__ import annotations

import html

from tiny_models import tiny
from transduce.inspection.analysis import align_words, attribute

HOSTILE = "<script>alert(1)</script>"


def page_in(frame: str) -> str:
    start, _, rest = frame.partition('srcdoc="')
    assert start.startswith('<iframe sandbox=""'), "no scripts, and no way to the notebook"
    page, _, end = rest.partition('"')
    assert end == "></iframe>"
    return html.unescape(page)


def test_attribution() -> None:
    found = attribute(tiny(banned=True), HOSTILE, "tea", method="gradient_x_input")
    page = page_in(found._repr_html_())
    assert "Attribution by gradient x input" in page
    assert page.count("<svg") == 2, "to the source, and to the prefix"
    assert "<script>" not in page
    assert "&lt;" in page, "a token of the source"
    strongest = abs(found.source).max()
    assert f"to the source; the strongest is {strongest:.3f}" in page


def test_alignments() -> None:
    found = align_words(tiny(banned=True), ["a cup of tea"] * 3, ["iroh made tea"] * 3)
    page = page_in(found._repr_html_())
    best = found.best.head
    assert f"{best.head}</td>" in page
    for line in found.to_pharaoh():
        assert f">{line}<" in page
    assert "3 pairs" in page
