"""Results of models in web pages: outputs beside Python's, sizes, speed."""

from __future__ import annotations

from statistics import median
from typing import Any

from result_tables import read, table, three_digits


def pages() -> list[str]:
    """What was measured of them; nothing where nothing was."""
    speeds = [found for kind in ("", "_x86") if (found := read(f"web_speed{kind}"))]
    outputs = [found for kind in ("", "_plain") if (found := read(f"web_outputs{kind}"))]
    lines = [line for one in outputs for line in _outputs(one)]
    lines += [line for one in speeds for line in _speed(one)]
    return ["# Models in web pages", "", *lines] if lines else []


def _search(row: dict[str, Any]) -> str:
    how = "greedy" if row["beam"] == 1 else f"beam {row['beam']}"
    return f"{row['weights']}, {how}"


def _outputs(found: dict[str, Any]) -> list[str]:
    known = found["facts"]
    rows = [
        [
            model["model"],
            _search(row),
            f"{row['same']:,} of {model['sources']:,}",
            f"{row['largest_difference']:.1g}",
        ]
        for model in found["models"]
        for row in model["rows"]
        if row["engine"] != "Python"
    ]
    return [
        f"## Outputs in {known['browser'].partition(' ')[0]}",
        "",
        f"Sources of the test sets in {known['browser']}, against `model.run` of the same weights: "
        "outputs with the same tokens, and the largest difference of the scores of those. "
        f"`{known['command']}`, {known['hardware']}, torch {known['torch']}.{_note(known)}",
        "",
        *table(["model", "search", "the same tokens", "largest difference of scores"], rows),
        "",
    ]


def _note(known: dict[str, Any]) -> str:
    """What else is to be known of a measurement."""
    return f" {known['note']}" if "note" in known else ""


def _speed(found: dict[str, Any]) -> list[str]:
    known = found["facts"]
    rows, sizes = [], []
    for model in found["models"]:
        for page in model["pages"]:
            opened = page["opened_seconds"]
            said = f"{median(opened):.2f} s ({min(opened):.2f} to {max(opened):.2f})"
            size = f"{page['bytes'] / 1e6:.1f} MB"
            sizes.append([model["model"], page["weights"], size, said if opened else ""])
        native: dict[str, float] = {}
        for row in model["rows"]:
            speed = row["tokens"] / median(row["cpu_seconds"])
            if row["engine"] == "Python":
                native[_search(row)] = speed
            share = f"{speed / native[_search(row)]:.0%}"
            cells = [model["model"], _search(row), row["engine"], _rate(row), share]
            rows.append(cells)
    other = f", onnxruntime-web {known['onnxruntime-web']}" if "onnxruntime-web" in known else ""
    counts = sorted({model["sources"] for model in found["models"]})
    rounds = len(found["models"][0]["rows"][0]["cpu_seconds"])
    return [
        f"## Size and speed on {known['hardware'].partition(',')[0]}",
        "",
        "From opening a page to a model that is ready, by the clock.",
        "",
        *table(["model", "weights", "page", "opened after"], sizes),
        "",
        f"Target tokens per second of CPU time on one thread, one source at a time, "
        f"{' to '.join(map(str, counts))} sources of the test set: `model.run` in Python, the "
        "page's runtime in Chromium, and onnxruntime-web with the files of "
        f"`transduce export --to onnx`. The median of {rounds} rounds, with the slowest and the "
        f"fastest. `{known['command']}`, "
        f"{known['hardware']}, {known['browser']}, torch {known['torch']}{other}.{_note(known)}",
        "",
        *table(["model", "search", "engine", "tokens/s", "of Python's"], rows),
        "",
    ]


def _rate(row: dict[str, Any]) -> str:
    seconds = row["cpu_seconds"]
    usual, slow, fast = (
        three_digits(row["tokens"] / one) for one in (median(seconds), max(seconds), min(seconds))
    )
    return f"{usual} ({slow} to {fast})"
