"""The static figure of a look: attention to the source, averaged over layers and heads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transduce.decoding.output import TimedWord
from transduce.errors import ModelError
from transduce.inspection.figures import attention_grid
from transduce.inspection.look.arrays import unpacked
from transduce.inspection.look.collect import Page
from transduce.inspection.speech_figure import speech_attention_map

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
    speech_attention_map(
        unpacked(last[0]["weights"]).mean(axis=0),
        [*begins, begins[-1] + step],
        one["axes"]["target"],
        unpacked(audio["spectrogram"]).T,
        audio["seconds"],
        words,
        path,
        one["text"],
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
