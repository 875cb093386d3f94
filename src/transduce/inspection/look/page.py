"""The page: one HTML file with its data, script and style inside; it loads and sends nothing.

Inputs, outputs and vocabularies are untrusted. They are data in a JSON block, escaped so that
nothing can end the block, and the script inserts them as text only. The Content-Security-Policy
allows the one script and the one style by their hashes and nothing else: injected markup would
neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib import resources
from typing import Any

# In the order in which they are joined: each uses what is above it.
SCRIPTS = (
    "data.js",
    "controls.js",
    "colors.js",
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
    "main.js",
)
# What other pages use of them; see module().
EXPORTS = (
    "Lines",
    "Table",
    "audioView",
    "bars",
    "beamView",
    "button",
    "choice",
    "fixed",
    "glanceView",
    "headView",
    "inkOn",
    "labelsView",
    "make",
    "nbestView",
    "openLook",
    "percent",
    "playbackView",
    "redraws",
    "shade",
    "theme",
)
STYLES = ("palette.css", "look.css")
# In a <script> only these could end it or be read as more than data.
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page needs JavaScript; all of it is inside this file.</noscript>
<div id="look"></div>
<script id="data" type="application/json">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def page(data: dict[str, Any], title: str) -> str:
    """The whole page for what was collected."""
    script, style = _script(), _joined(STYLES)
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "media-src blob:",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return PAGE.format(
        policy=policy, title=html.escape(title), style=style, data=as_json(data), script=script
    )


def module() -> str:
    """The views as one JavaScript module, for the page of `transduce serve`."""
    views = tuple(name for name in SCRIPTS if name != "main.js")
    return f"{_joined(views)}\nexport {{ {', '.join(EXPORTS)} }};\n"


def stylesheet() -> str:
    """The style of the views."""
    return _joined(STYLES)


def as_json(data: dict[str, Any]) -> str:
    """JSON escaped for a <script> element."""
    written = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    written = written.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair
    for sign, escaped in UNSAFE.items():
        written = written.replace(sign, escaped)
    return written


def _script() -> str:
    return f'"use strict";\n(() => {{\n{_joined(SCRIPTS)}}})();\n'


def _joined(names: tuple[str, ...]) -> str:
    folder = resources.files("transduce.inspection.look").joinpath("web")
    return "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
