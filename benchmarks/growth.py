"""How a training step's time and memory grow with the length of sequences and the vocabulary.

    python benchmarks/growth.py [--device auto] [--draw]

Lengths from 64 on at a constant number of tokens a batch, and vocabularies up to 256,000 at 32
tokens a sentence; ours and the peers', eager. A point that does not fit into memory, or takes too
long, is recorded as that. Writes benchmarks/results/growth_DEVICE.json after every point; --draw
only makes docs/figures/growth_DEVICE.png of it, on any machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from alone import measure_alone, synthetic
from systems import SIZES, Size, Spec, build_system, end, metadata, peers

from transduce.hardware import pick_device

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parent.parent / "docs" / "figures"
SHORT = 32
NAMES = {"ours": "transduce", "marian": "Hugging Face Marian", "torch": "torch.nn.Transformer"}


def grown(first: int, last: int, times: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= times


def points(arguments: argparse.Namespace) -> Iterator[tuple[str, int, Size, int]]:
    """What grows, how far, the model, and the length of its sentences."""
    size = SIZES[arguments.size]
    for length in grown(64, arguments.longest, 2):
        yield "length", length, size, length
    for vocabulary in [1000 * n for n in grown(1, arguments.largest // 1000, 4)]:
        yield "vocabulary", vocabulary, replace(size, vocabulary=vocabulary), SHORT


def on_gpu(
    spec: Spec, size: Size, pairs: int, length: int, steps: int, device: torch.device
) -> dict[str, Any]:
    """Seconds of several rounds of steps, and the most memory that the system ever held."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    system = build_system(spec, size, device, length)
    prepared = system.prepare(synthetic(size, pairs, length))
    losses = [system.step(prepared) for _ in range(5)]
    seconds = []
    for _ in range(3):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        for _ in range(steps):
            losses.append(system.step(prepared))
        torch.cuda.synchronize(device)
        seconds.append((time.perf_counter() - began) / steps)
    return {
        "seconds": seconds,
        "peak_mib": (torch.cuda.max_memory_allocated(device) - before) / 2**20,
        "parameters": system.parameters,
        "losses": [float(losses[0]), float(losses[-1])],
    }


def measure(arguments: argparse.Namespace, spec: Spec, size: Size, length: int) -> dict[str, Any]:
    pairs = max(1, arguments.tokens // length)
    steps, device = arguments.steps, arguments.device
    try:
        if device.type == "cuda":
            found = on_gpu(spec, size, pairs, length, steps, device)
        else:
            threads, limit = torch.get_num_threads(), arguments.limit
            found = measure_alone(
                spec, size, pairs, length, steps=steps, threads=threads, limit=limit
            )
    except (torch.OutOfMemoryError, MemoryError):
        return {"error": "out of memory"}
    except TimeoutError:
        return {"error": "too slow"}
    except Exception as error:  # the other points still count
        said = str(error).strip().splitlines() or [""]
        if "out of memory" in str(error).lower():
            return {"error": "out of memory"}
        return {"error": f"{type(error).__name__}: {said[0]}"[:300], "failed": True}
    found["step_seconds"] = statistics.median(found["seconds"])
    return found


def run(arguments: argparse.Namespace) -> None:
    device = arguments.device
    precision = "bfloat16" if device.type == "cuda" else "float32"
    rows: list[dict[str, Any]] = []
    found = {
        "facts": metadata(device),
        "size": arguments.size,
        "tokens": arguments.tokens,
        "precision": precision,
        "rows": rows,
    }
    stopped: set[tuple[str, str]] = set()
    for axis, value, size, length in points(arguments):
        for system in arguments.systems.split(","):
            row: dict[str, Any] = {"axis": axis, "value": value, "system": system}
            if (axis, system) in stopped:
                row["error"] = "not tried, as a smaller one had failed"
            else:
                row |= measure(arguments, Spec(system, "eager", precision), size, length)
            if "error" in row:
                stopped.add((axis, system))
                said = row["error"]
            else:
                said = f"{1000 * row['step_seconds']:10.1f} ms  {row['peak_mib']:9,.0f} MiB"
            rows.append(row)
            print(f"{axis:10} {value:8,}  {system:8} {said}", flush=True)
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    # That memory or time do not suffice is a result; any other error is not.
    end({f"{row['system']}, {row['axis']}": row["error"] for row in rows if "failed" in row})


# -------------------------------------------------------------------------------------- drawing


def draw(found: dict[str, Any], path: Path) -> None:
    """Time above, memory below; length on the left, vocabulary on the right."""
    from matplotlib.figure import Figure

    from transduce.inspection.figures import INK, METRIC_COLORS

    figure = Figure(figsize=(10, 6.4), facecolor="white", layout="constrained")
    grid = figure.subplots(2, 2, sharex="col")
    measures = [("step_seconds", 1000.0, "ms a step"), ("peak_mib", 1 / 1024, "peak memory, GiB")]
    systems = list(dict.fromkeys(row["system"] for row in found["rows"]))
    colors = dict(zip(systems, METRIC_COLORS, strict=False))
    for column, axis in enumerate(("length", "vocabulary")):
        for row_of_grid, (key, unit, title) in enumerate(measures):
            axes = grid[row_of_grid][column]
            for system in systems:
                own = [r for r in found["rows"] if (r["axis"], r["system"]) == (axis, system)]
                good = [r for r in own if key in r]
                axes.plot(
                    [r["value"] for r in good],
                    [r[key] * unit for r in good],
                    marker="o",
                    markersize=4,
                    linewidth=1.8,
                    color=colors[system],
                    label=NAMES.get(system, system),
                )
                bad = next((r for r in own if "error" in r), None)
                if bad is not None and good:
                    axes.annotate(
                        bad["error"] if len(bad["error"]) < 16 else "failed",
                        (good[-1]["value"], good[-1][key] * unit),
                        xytext=(4, 6),
                        textcoords="offset points",
                        fontsize=8,
                        color=colors[system],
                    )
            _dress(axes, title if column == 0 else "", INK)
            if row_of_grid == 1:
                names = {"length": "tokens a sentence", "vocabulary": "vocabulary"}
                axes.set_xlabel(names[axis], fontsize=9, color=INK)
                values = sorted({r["value"] for r in found["rows"] if r["axis"] == axis})
                axes.set_xticks(values, [_short(value) for value in values])
                axes.minorticks_off()
    grid[0][0].legend(frameon=False, fontsize=9, labelcolor=INK)
    known = found["facts"]
    figure.suptitle(
        f"One training step, {found['size']}, {found['tokens']:,} target tokens, "
        f"{found['precision']}, {known['hardware']}, torch {known['torch']}",
        fontsize=10,
        color=INK,
        x=0.01,
        ha="left",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def _dress(axes: Any, title: str, ink: str) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(title, fontsize=11, color=ink, loc="left")
    axes.tick_params(labelsize=9, colors=ink, length=0, which="both")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(color="#ebebeb", linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set(visible=side == "bottom", edgecolor="#999999")


def _short(value: int) -> str:
    return f"{value // 1000}k" if value >= 1000 and value % 1000 == 0 else f"{value:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", help="base, small or tiny; default: base, small on a CPU")
    parser.add_argument("--systems", help="of ours, marian and torch; default: all")
    parser.add_argument("--without", default="", help="such as marian: not compared with")
    parser.add_argument("--tokens", type=int, help="target tokens a batch")
    parser.add_argument("--longest", type=int, help="default: 8192, 1024 on a CPU")
    parser.add_argument("--largest", type=int, default=256_000, help="vocabulary")
    parser.add_argument("--steps", type=int, help="timed steps")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--limit", type=float, default=90, help="seconds a point may take on a CPU")
    parser.add_argument("--draw", action="store_true", help="draw what was measured, and no more")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.draw:
        chosen = [arguments.out] if arguments.out else sorted(RESULTS.glob("growth_*.json"))
        for path in chosen:
            picture = FIGURES / f"{path.stem}.png"
            draw(json.loads(path.read_text("utf-8")), picture)
            print(picture)
        return
    arguments.device = device = pick_device(arguments.device)
    gpu = device.type == "cuda"
    arguments.systems = arguments.systems or ",".join(["ours", *peers(arguments.without)])
    arguments.size = arguments.size or ("base" if gpu else "small")
    arguments.tokens = arguments.tokens or (16_384 if gpu else 2_048)
    arguments.longest = arguments.longest or (8192 if gpu else 1024)
    arguments.steps = arguments.steps or (5 if gpu else 2)
    arguments.out = arguments.out or RESULTS / f"growth_{device.type}.json"
    torch.set_float32_matmul_precision("high" if gpu else "highest")
    run(arguments)


if __name__ == "__main__":
    main()
