"""The page of `transduce look`; its views are also those of the page of `transduce serve`."""

from __future__ import annotations

from typing import Any

from transduce.inspection.page import Markup, html_page, joined

# In the order in which they are joined: each uses what is above it.
VIEWS = (
    "controls.js",
    "colors.js",
    "data.js",
    "matrix.js",
    "lines.js",
    "glance.js",
    "head.js",
    "playback.js",
    "beam.js",
    "nbest.js",
    "audio.js",
    "labels.js",
    "cells.js",
    "attribution.js",
    "embedding.js",
    "tabs.js",
)
STYLES = ("look.css",)
# What the page of `transduce serve` uses of them.
EXPORTS = (
    "Lines",
    "Table",
    "Tabs",
    "audioView",
    "barOf",
    "beamView",
    "glanceView",
    "headView",
    "labelsView",
    "make",
    "nbestView",
    "openLook",
    "percent",
    "playbackView",
    "redraws",
    "shade",
    "theme",
    "tint",
)


def page(data: dict[str, Any], title: str) -> str:
    """The whole page for what was collected."""
    body = Markup('<div id="look"></div>')
    return html_page(title, body, styles=STYLES, scripts=(*VIEWS, "main.js"), data=data)


def module() -> str:
    """The views as one JavaScript module."""
    return f"{joined(VIEWS)}\nexport {{ {', '.join(EXPORTS)} }};\n"
