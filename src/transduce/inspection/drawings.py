"""Drawings inside a page, as SVG text: attention and curves. They take the page's colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.decoding.output import Output
from transduce.inspection.page import Markup, safe, visible

BELOW = ' fill="var(--third)"'
LEVELS = 20  # of a heat map: one path each, however many cells it has
LONGEST = 60  # tokens of an output whose attention is drawn
COLOURS = ("--first", "--second", "--third", "--fourth")
Points = Sequence[tuple[float, float]]


def heat_map(
    values_TS: NDArray[np.floating[Any]],
    rows: Sequence[str],
    columns: Sequence[str],
    caption: str = "",
    cell: float = 16.0,
    numbers: Sequence[Sequence[str]] | None = None,
) -> Markup:
    """Values from 0 to 1 as a heat map: rows down, columns across. `numbers` stand in the cells.

    Values below zero, down to −1, have another colour.
    """
    T, S = values_TS.shape
    left = 8 + 7.2 * max((_width(label) for label in rows), default=0.0)
    upright = max((len(label) for label in columns), default=0) <= 3
    top = 18.0 if upright else 10 + 5.2 * max((_width(label) for label in columns), default=0.0)
    right = 8.0 if upright else 0.75 * top
    paths: dict[int, list[str]] = {}
    for row, column in np.ndindex(T, S):
        level = round(float(np.clip(np.nan_to_num(values_TS[row, column]), -1, 1)) * LEVELS)
        if level:
            paths.setdefault(level, []).append(f"M{column} {row}h1v1h-1z")
    cells = "".join(
        f'<path fill-opacity="{abs(level) / LEVELS:.2f}" d="{"".join(found)}"'
        f"{'' if level > 0 else BELOW}/>"
        for level, found in sorted(paths.items())
    )
    lines = [
        f'<g transform="translate({left:.1f} {top:.1f}) scale({cell})">'
        f'<rect width="{S}" height="{T}" fill="none" stroke="var(--hair)" stroke-width=".06"/>'
        f'<g fill="var(--bar)">{cells}</g></g>'
    ]
    for place, label in enumerate(rows):
        lines.append(_text(left - 5, top + (place + 0.5) * cell + 4, label, "end"))
    for place, label in enumerate(columns):
        x = left + (place + 0.5) * cell
        turn = "" if upright else f' transform="rotate(-45 {x:.1f} {top - 5:.1f})"'
        lines.append(_text(x, top - 5, label, "middle" if upright else "start", turn))
    for row, texts in enumerate(numbers or ()):
        for column, text in enumerate(texts):
            x, y = left + (column + 0.5) * cell, top + (row + 0.5) * cell + 4
            lines.append(_text(x, y, text, "middle", ' font-size="10"'))
    width, height = left + S * cell + right, top + T * cell + 4
    return _figure(width, height, lines, caption, 12)


def attention_drawing(output: Output, name: str) -> Markup:
    """What each step of an output attended to in its source, the mean of all layers and heads.

    Empty where a model shows no attention, or the texts are too long to be drawn small.
    """
    weights = output.attention
    if weights is None or weights.ndim != 4 or max(weights.shape[2:]) > LONGEST:
        return Markup("")
    mean_TS = weights.mean(axis=(0, 1))
    rows = [visible(token) for token in (*output.tokens, "</s>")][: mean_TS.shape[0]]
    columns = [visible(token) for token in (*output.source_tokens, "</s>")][: mean_TS.shape[1]]
    largest = float(mean_TS.max()) or 1.0
    return heat_map(
        mean_TS / largest,
        rows,
        columns if output.source_tokens else [],  # none of audio
        f"attention of {name} to the source",
    )


def curves(lines: Mapping[str, Points], caption: str = "", x_name: str = "update") -> Markup:
    """Lines over one axis, named where there are several; what is no number is left out."""
    real = {
        name: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        for name, points in lines.items()
    }
    real = {name: points for name, points in real.items() if points}
    if not real:
        return Markup("")
    width, height, left, bottom = 520.0, 240.0, 54.0, 34.0
    xs = [x for points in real.values() for x, _ in points]
    ys = [y for points in real.values() for _, y in points]
    low_x, high_x = min(xs), max(max(xs), min(xs) + 1)
    low_y, high_y = min(ys), max(ys)
    pad = (high_y - low_y) * 0.06 or max(abs(high_y) * 0.05, 0.5)
    low_y, high_y = low_y - pad, high_y + pad

    def at(x: float, y: float) -> tuple[float, float]:
        across = left + (x - low_x) / (high_x - low_x) * (width - left - 12)
        return across, 10 + (high_y - y) / (high_y - low_y) * (height - 10 - bottom)

    drawn = []
    for tick in _ticks(low_y, high_y):
        _, y = at(low_x, tick)
        drawn.append(
            f'<path d="M{left} {y:.1f}H{width - 12}" stroke="var(--hair)"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for tick in _ticks(low_x, high_x):
        x, _ = at(tick, low_y)
        side = "end" if x > width - 30 else "middle"
        drawn.append(
            f'<text x="{x:.1f}" y="{height - bottom + 16}" text-anchor="{side}">{tick:,g}</text>'
        )
    drawn.append(f'<text x="{width - 12}" y="{height - 4}" text-anchor="end">{safe(x_name)}</text>')
    for place, (name, points) in enumerate(real.items()):
        colour = f"var({COLOURS[place % len(COLOURS)]})"
        path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in points)
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        )
        drawn += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'
            for x, y in (at(*point) for point in (points if len(points) <= 40 else points[-1:]))
        ]
        if len(real) == 1:  # the caption says what it is, and a legend might hide it
            continue
        y = 22 + 16 * place
        drawn.append(
            f'<path d="M{width - 170} {y - 4}h18" stroke="{colour}" stroke-width="3"/>'
            f'<text x="{width - 146}" y="{y}">{safe(name)}</text>'
        )
    return _figure(width, height, drawn, caption, 11)


def _ticks(low: float, high: float) -> list[float]:
    """Some round numbers between two."""
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next((times for times in (1, 2, 5, 10) if (high - low) / (step * times) <= 6), 10)
    first = math.ceil(low / step)
    return [round(step * n, 12) for n in range(first, math.floor(high / step) + 1)]


def _figure(width: float, height: float, lines: list[str], caption: str, size: int) -> Markup:
    said = f"<figcaption>{safe(caption)}</figcaption>" if caption else ""
    return Markup(
        f'<figure><svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-size="{size}" role="img" aria-label="{safe(caption)}">'
        f"{''.join(lines)}</svg>{said}</figure>"
    )


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{safe(text)}</text>'


def _width(label: str) -> float:
    """In letters: East Asian signs are about twice as wide."""
    return sum(1.7 if ord(sign) > 0x2E7F else 1.0 for sign in label)
