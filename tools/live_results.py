"""Results of live speech: latency against error rate, streams in real time, memory.

Run by itself it draws the figures of docs/guides/live-speech.md.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import mean
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS.parent / "benchmarks" / "results"
COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#6e7781")
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
path { fill: none; stroke-width: 2 } .axis { stroke: #8b98a8; stroke-width: 1 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }
</style>"""


def sections() -> list[str]:
    lines: list[str] = []
    for what, section in (("latency", _latency), ("streams", _streams), ("hour", _hour)):
        for device in ("cuda", "cpu"):
            path = RESULTS / f"live_{what}_{device}.json"
            if path.exists():
                lines += section(json.loads(path.read_text("utf-8")))
    return ["# Live speech", "", *lines] if lines else []


def _reported(found: dict[str, Any]) -> str:
    known = found["facts"]
    count = known["threads"]
    threads = "" if "thread" in known["hardware"] else f", {count} thread{'s' * (count != 1)}"
    return f"`{known['command']}`, {known['hardware']}{threads}, torch {known['torch']}."


def _seconds(of: dict[str, float] | None) -> str:
    return f"{of['p50']:.2f} s ({of['p95']:.2f} s)" if of else ""


def _latency(found: dict[str, Any]) -> list[str]:
    rows = []
    for (recipe, chunk), of in _by_recipe(found["rows"]).items():
        ended = [row["final"].get("count", 0) / row["recordings"] for row in of if "final" in row]
        factors = [row["real_time_factor"] for row in of if "real_time_factor" in row]
        rows.append(
            [
                f"`{recipe}`",
                "whole" if chunk is None else _chunk(chunk),
                _rates([row["scores"] for row in of]),
                _rates([row["finish_scores"] for row in of if "finish_scores" in row]),
                *(_mean_seconds([row.get(name) for row in of]) for name in ("first", "final")),
                f"{100 * mean(ended):.0f} %" if ended else "",
                _mean_seconds([row["finish"] for row in of]),
                f"{mean(factors):.3f}" if factors else "",
            ]
        )
    seeds = {len(of) for of in _by_recipe(found["rows"]).values()}
    of_seeds = (
        f"Means over {max(seeds)} seeds, of error rates with their range: t"
        if max(seeds) > 1
        else "T"
    )
    head = ["model", "chunk", "error rate", "without the noise", "first partial"]
    about = (
        f"{of_seeds}he first error rate is that of recordings with 1.5 s of noise after them, the "
        "second without. Times are medians and (in brackets) 95th percentiles, computing included: "
        "from the beginning of speech to the first partial transcript, and from its end to the "
        "final one, by endpointing or where the speaker says that it is the end. `ended`: the "
        "share of recordings whose utterance ended within that noise; only these count for the "
        "time before. One stream."
    )
    head += ["final by endpointing", "ended", "final after `finish`", "real-time factor"]
    table = _table(head, rows)
    return [about, "", _reported(found), "", *table, ""]


def _by_recipe(
    rows: list[dict[str, Any]],
) -> dict[tuple[str, float | None], list[dict[str, Any]]]:
    """Rows that differ by their seed alone: folders are named RECIPE-SEED."""
    groups: dict[tuple[str, float | None], list[dict[str, Any]]] = {}
    for row in _in_order(rows):
        groups.setdefault((row["model"].rpartition("-")[0], row["chunk"]), []).append(row)
    return groups


def _mean_seconds(of: list[dict[str, float] | None]) -> str:
    known = [one for one in of if one]
    return _seconds({p: mean(one[p] for one in known) for p in ("p50", "p95")}) if known else ""


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Recipes as they came, the shortest chunks first, whole recordings last."""
    recipes = [row["model"].rpartition("-")[0] for row in rows]
    places = {recipe: recipes.index(recipe) for recipe in recipes}
    return sorted(
        rows,
        key=lambda row: (places[row["model"].rpartition("-")[0]], row["chunk"] or math.inf),
    )


def _rates(scores: list[dict[str, Any]]) -> str:
    """The mean of each error rate over seeds, and its range."""
    parts = []
    for name in scores[0] if scores else ():
        values = [one[name]["value"] for one in scores]
        spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
        parts.append(f"{name} {mean(values):.1f}{spread}")
    return ", ".join(parts)


def _streams(found: dict[str, Any]) -> list[str]:
    rows = [
        [
            f"`{row['recipe']}`",
            f"{row['chunk']:g} ms",
            f"{row['streams']:,}",
            f"{100 * row['busy']:.0f} %",
            f"{row['real_time_factor']:.4f}",
            _seconds(row["lag"]),
            _seconds(row["lag_of_second_half"]),
        ]
        for row in found["rows"]
    ]
    head = ["model", "chunk", "streams", "busy", "real-time factor", "lag", "in the second half"]
    about = "Several streams at once. `lag` is the time from a complete chunk to its recognition."
    return [about, "", _reported(found), "", *_table(head, rows), ""]


def _hour(found: dict[str, Any]) -> list[str]:
    rows = [
        [
            f"`{row['model']}`",
            str(row["minute"]),
            f"{row['resident_bytes'] / 2**20:,.0f} MiB",
            f"{row['cuda_bytes'] / 2**20:,.0f} MiB" if "cuda_bytes" in row else "",
            f"{row['seconds']:.1f} s",
        ]
        for row in found["rows"]
        if row["minute"] == 1 or row["minute"] % 10 == 0
    ]
    head = ["model", "minute", "memory", "on the GPU", "computing of that minute"]
    minutes = max(row["minute"] for row in found["rows"])
    about = f"One stream for {minutes} minutes, fed faster than real time: memory of the process."
    return [about, "", _reported(found), "", *_table(head, rows), ""]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


# ------------------------------------------------------------------------------------ figures


def latency_figure(found: dict[str, Any]) -> str:
    """Error rates against the median time from the beginning of speech to the first partial."""
    lines: dict[str, list[tuple[float, float, str]]] = {}
    groups = _by_recipe(found["rows"])
    last = list(groups)[-1][0]
    for (recipe, chunk), of in groups.items():
        if chunk is None:
            continue
        line = lines.setdefault(recipe, [])
        named = recipe == last  # chunks are written at one line
        rate = mean(next(iter(row["scores"].values()))["value"] for row in of)
        line.append((mean(row["first"]["p50"] for row in of), rate, f"{chunk:g}" if named else ""))
    across = "seconds from the beginning of speech to the first partial transcript"
    return _chart(lines, across, "error rate, %; numbers: chunk in ms")


def _chunk(chunk: float) -> str:
    return f"{chunk:g} ms"


def memory_figure(found: dict[str, Any]) -> str:
    """Memory of the process over the minutes of audio."""
    lines: dict[str, list[tuple[float, float, str]]] = {}
    for row in found["rows"]:
        point = (float(row["minute"]), row["resident_bytes"] / 2**20, "")
        lines.setdefault(row["model"], []).append(point)
    return _chart(lines, "minutes of audio", "memory of the process, MiB")


def _chart(lines: dict[str, list[tuple[float, float, str]]], across: str, up: str) -> str:
    """Lines through points (x, y, label), both axes from zero, as SVG."""
    width, height, left, low = 760, 360, 60, 310
    points = [point for line in lines.values() for point in line]
    max_x, max_y = _round_up(max(p[0] for p in points)), _round_up(max(p[1] for p in points))

    def place(x: float, y: float) -> str:
        return f"{left + x / max_x * (width - left - 150):.1f} {low - y / max_y * (low - 36):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{up}, by {across}">',
        STYLE,
        f'<path class="axis" d="M {place(0, max_y)} L {place(0, 0)} L {place(max_x, 0)}"/>',
        f'<text x="{left}" y="{height - 8}">{across}</text><text x="{left - 8}" y="14">{up}</text>',
    ]
    for step in range(5):
        x, y = max_x * step / 4, max_y * step / 4
        parts.append(_text(place(x, 0), f"{x:g}", "middle", 0, 18))
        parts.append(_text(place(0, y), f"{y:g}", "end", -8, 4))
    for (name, line), colour in zip(lines.items(), COLOURS, strict=False):
        drawn = " L ".join(place(x, y) for x, y, _ in line)
        parts.append(f'<path stroke="{colour}" d="M {drawn}"/>')
        for x, y, label in line if len(line) < 10 else ():
            at = place(x, y).split()
            parts.append(f'<circle cx="{at[0]}" cy="{at[1]}" r="3" fill="{colour}"/>')
            parts.append(_text(place(x, y), label, "middle", 0, -8))
        x, y, _ = line[-1]
        parts.append(_text(place(x, y), name, "start", 10, 4))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(place: str, text: str, anchor: str, right: int, down: int) -> str:
    x, y = place.split()
    return f'<text text-anchor="{anchor}" x="{x}" y="{y}" dx="{right}" dy="{down}">{text}</text>'


def _round_up(value: float) -> float:
    """To a number with round quarters."""
    scale = 10.0 ** math.floor(math.log10(value))
    return next(s * scale for s in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if s * scale >= value)


def main() -> None:
    latency = json.loads((RESULTS / "live_latency_cpu.json").read_text("utf-8"))
    (DOCS / "figures" / "live-latency.svg").write_text(latency_figure(latency), "utf-8")
    if (hour := RESULTS / "live_hour_cpu.json").exists():
        drawn = memory_figure(json.loads(hour.read_text("utf-8")))
        (DOCS / "figures" / "live-memory.svg").write_text(drawn, "utf-8")


if __name__ == "__main__":
    main()
