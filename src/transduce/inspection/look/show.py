"""Looks: what was collected of inputs and one or two models, as a page, figure or notebook cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.decoding.output import TimedWord
from transduce.errors import DataError, ModelError
from transduce.inspection.figures import attention_grid
from transduce.inspection.look.collect import Page, collect, unpacked
from transduce.inspection.page import Markup, framed, html_page, joined
from transduce.inspection.speech_figure import CtcPath, speech_attention_map
from transduce.storage import make_folder, write_text
from transduce.tasks.model import Model

FIGURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")
HEIGHT = 720  # pixels in a notebook


@dataclass(frozen=True)
class Look:
    """What one or two models computed for some inputs; a notebook shows it by itself.

    look(model, "A dog runs.")                      # the page, in a notebook
    look(model, "A dog runs.").save("look.html")
    """

    looks: list[list[Page]] = field(repr=False)
    """For each input what was collected, by model; see collect.py."""

    @property
    def data(self) -> dict[str, Any]:
        """All that a page shows, as JSON can hold it."""
        return {"inputs": [{"looks": pages} for pages in self.looks]}

    def html(self) -> str:
        """The page."""
        first = self.looks[0][0]
        names = " and ".join(dict.fromkeys(one["model"] for one in self.looks[0]))
        return page(self.data, f"{names}: {first['source'][:60]}")

    def save(self, path: str | Path) -> Path:
        """Write the page (.html), or mean attention as a figure (.png, .svg, .pdf)."""
        path = Path(path)
        check_suffix(path)
        if path.suffix.lower() in PAGES:
            make_folder(path.parent)
            write_text(path, self.html())
        else:
            draw(self.looks, path)
        return path

    def _repr_html_(self) -> str:
        return framed(self.html(), HEIGHT, scripts=True)


def look(
    model: Model,
    inputs: Any,
    *,
    target: str | None = None,
    against: Model | None = None,
    attribution: bool = False,
    **settings: Any,
) -> Look:
    """Collect what a model computes for an input, or for each of a list of inputs.

    target: a given output, instead of the model's own. against: another model, shown side by side
    on the same inputs. attribution: also integrated gradients. The settings are those of
    `model.run`, such as beam=5. Raises DataError and ModelError as `collect` does.
    """
    some: Sequence[Any] = inputs if isinstance(inputs, list | tuple) else [inputs]
    if not some:
        raise DataError("there is no input; give at least one")
    models = [model] if against is None else [model, against]
    asked = {"target": target, "attribution": attribution, **settings}
    return Look([[collect(one, source, **asked) for one in models] for source in some])


def check_suffix(path: Path) -> None:
    """Raise DataError for a name that says neither page nor figure."""
    if path.suffix.lower() not in (*PAGES, *FIGURES):
        known = ", ".join((*PAGES[:1], *FIGURES[:-1]))
        raise DataError(f"{path} cannot be written; its name must end in {known} or {FIGURES[-1]}")


# ----------------------------------------------------------------------------------------------
# The static figure of a look: attention to the source, averaged over layers and heads.

ORDER = ("cross", "decoder", "pool", "encoder")
"""Which attention is drawn: the first kind that a model has."""
LONGEST = 60  # rows or columns of a drawn map; what is longer is averaged to so many


def draw(looks: Sequence[Sequence[Page]], path: Path) -> None:
    """A heat map for each input and model. Raises ModelError where a model has no attention."""
    if len(looks) == len(looks[0]) == 1 and _draw_audio(looks[0][0], path):
        return
    panels = []
    for pages in looks:
        for one in pages:
            weights_TS, rows, columns = mean_attention(one)
            title = f"{one['model']}: {one['text']}" if len(pages) > 1 else one["text"]
            panels.append((weights_TS, columns, rows, title))
    attention_grid(panels, path)


def _draw_audio(one: Page, path: Path) -> bool:
    """Attention to audio over its spectrogram, of the last layer; False where there is none."""
    last = [part for part in one["attention"] if part["kind"] == "cross"][-1:]
    if not (one["times"] and last):
        return False
    audio, start = one["audio"], one["audio"]["start"]
    begins = [second - start for second in one["times"]]
    step = begins[1] - begins[0] if len(begins) > 1 else audio["seconds"]
    words = [
        TimedWord(word["text"], word["start"] - start, word["end"] - start, word["confidence"])
        for word in one["words"]
    ]
    ctc = None
    if found := one.get("ctc"):
        probabilities_TS = unpacked(found["probabilities"])[0, : len(found["first"])]
        ctc = CtcPath(probabilities_TS, found["first"], found["last"])
    speech_attention_map(
        unpacked(last[0]["weights"]).mean(axis=0),
        [*begins, begins[-1] + step],
        one["axes"]["target"],
        unpacked(audio["spectrogram"]).T,
        audio["seconds"],
        words,
        path,
        one["text"],
        ctc=ctc,
        rate=audio["rate"],
    )
    return True


def mean_attention(one: Page) -> tuple[NDArray[np.float64], list[str], list[str]]:
    """Weights averaged over layers and heads of one kind; the tokens of rows and columns."""
    kinds = [part["kind"] for part in one["attention"]]
    kind = next((kind for kind in ORDER if kind in kinds), None)
    if kind is None:
        raise ModelError(
            f"the model {one['model']} has no attention to draw; write a .html page instead"
        )
    parts = [part for part in one["attention"] if part["kind"] == kind]
    mean_TS = np.mean([unpacked(part["weights"]).mean(axis=0) for part in parts], axis=0)
    rows, columns = (one["axes"][parts[0][side]] for side in ("rows", "columns"))
    if one["times"]:
        columns = [name.removesuffix(" s") for name in columns]
        rows = columns if parts[0]["rows"] == "source" else rows
        # Frames of audio are many, and their names say little.
        if parts[0]["rows"] == "source":
            mean_TS, rows = _fewer(mean_TS, rows)
        turned_ST, columns = _fewer(mean_TS.T, columns)
        mean_TS = turned_ST.T
    return mean_TS, rows, columns


def _fewer(
    weights_XY: NDArray[np.float64], names: list[str]
) -> tuple[NDArray[np.float64], list[str]]:
    """At most LONGEST rows: of several in a row the largest weight, and the first one's name."""
    step = -(-len(names) // LONGEST)
    starts = range(0, len(names), step)
    return np.stack([weights_XY[at : at + step].max(axis=0) for at in starts]), names[::step]


# ----------------------------------------------------------------------------------------------
# The page of `transduce look`; its views are also those of the page of `transduce serve`.

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
    "arranged",
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
