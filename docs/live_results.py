"""The part of docs/results.md on live speech: latency against error rate, streams in real time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


def sections() -> list[str]:
    lines: list[str] = []
    for what, section in (("latency", _latency), ("streams", _streams), ("hour", _hour)):
        for device in ("cuda", "cpu"):
            path = RESULTS / f"live_{what}_{device}.json"
            if path.exists():
                lines += section(json.loads(path.read_text("utf-8")))
    return ["## Live speech", "", *lines] if lines else []


def _told(found: dict[str, Any]) -> str:
    known = found["facts"]
    return (
        f"`{known['command']}`, {known['hardware']}, {known['threads']} threads, torch "
        f"{known['torch']}."
    )


def _seconds(of: dict[str, float] | None) -> str:
    return f"{of['p50']:.2f} s ({of['p95']:.2f} s)" if of else ""


def _latency(found: dict[str, Any]) -> list[str]:
    rows = []
    for row in found["rows"]:
        scores = row["scores"].values()
        rows.append(
            [
                f"`{row['model']}`",
                "whole" if row["chunk"] is None else f"{row['chunk']:g} ms",
                ", ".join(f"{one['name']} {one['value']:.2f}" for one in scores),
                *(_seconds(row.get(name)) for name in ("first", "final", "finish")),
                f"{row['real_time_factor']:.3f}" if "real_time_factor" in row else "",
            ]
        )
    head = ["model", "chunk", "error rate", "first partial", "final", "final after `finish`"]
    about = (
        "Medians and 95th percentiles, computing included: from the beginning of speech to the "
        "first partial transcript, and from its end to the final one, by endpointing or where the "
        "speaker says that it is the end. One stream."
    )
    return [about, "", _told(found), "", *_table([*head, "real-time factor"], rows), ""]


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
    about = "Streams at once; `lag`: from when a chunk is complete to when it is recognized."
    return [about, "", _told(found), "", *_table(head, rows), ""]


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
    return ["One stream for an hour.", "", _told(found), "", *_table(head, rows), ""]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
