"""Kinds of recognisers in live use: CTC, attention, CTC and attention, a transducer; one table.

    python benchmarks/live_kinds.py [--recipe asterisk-live] [--kinds ctc attention ...]
        [--seeds 1 2 3] [--chunk 640] [--limit N] [--runs DIR] [--telephone] [OVERRIDE...]

Each kind is trained by the same recipe (overrides as in `transduce train`), but for what makes the
kind, with each seed; a run that is in DIR is not trained again. Then the recordings of the test set
are played to it as in benchmarks/live.py: see there for what `first`, `final` and `revisions` are.

    ctc             the model of ctc+attention, without its decoder
    ctc+attention   the recipe as it is: CTC while someone speaks, rescored by attention at the end
    attention       no CTC and no chunks: the utterance is recognised every half second
    transducer      an LSTM as prediction network; CTC as an auxiliary loss

--telephone: ten test recordings of one speaker in a row, as in scores.py, in place of single ones;
for spoken digits. --limit counts what is played.

The table has the mean over seeds and ± their standard deviation. Writes
benchmarks/results/live_kinds_DEVICE.json, or --json; what is there of other kinds and seeds, with
the same recipe and overrides, stays.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from live import RESULTS, latency, latency_of_files, recordings
from scores import telephone_numbers
from systems import metadata

from transduce.data.audio.corpus import Wave, read_waves
from transduce.data.text.pairs import read_pairs
from transduce.evaluation.items import items_of
from transduce.recipe import Recipe, load_recipe
from transduce.tasks.speech import SpeechModel
from transduce.tasks.transduce import load
from transduce.training import train

WITHOUT_CTC = ("decode.ctc_weight=0",)


@dataclass(frozen=True)
class Kind:
    """What differs from the recipe, in training and in live use."""

    overrides: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    chunks: bool = True
    trained_as: str | None = None
    """The kind whose model it uses; None: its own."""


KINDS = {
    "ctc": Kind(settings={"ctc_weight": 1.0}, trained_as="ctc+attention"),
    "ctc+attention": Kind(),
    "attention": Kind(
        ("model.encoder.chunk=null", "model.ctc_weight=0", *WITHOUT_CTC), chunks=False
    ),
    "transducer": Kind(
        (
            "model.transducer={}",
            "model.decoder={kind: recurrent, cell: lstm, attention: none}",
            "model.ctc_weight=0.3",
            *WITHOUT_CTC,
        )
    ),
}
COLUMNS = {
    "file": "error of files",
    "live": "error live",
    "first": "first word, s",
    "final": "final, s",
    "revisions": "revisions a word",
    "real_time_factor": "real-time factor",
}


def trained(name: str, seed: int, asked: argparse.Namespace) -> Path:
    kind = KINDS[name]
    if kind.trained_as is not None:
        return trained(kind.trained_as, seed, asked)
    folder: Path = asked.runs / f"{name}-{seed}"
    if not (folder / "model.safetensors").is_file():
        given = [*asked.overrides, *kind.overrides, f"seed={seed}", f"train.device={asked.device}"]
        train(load_recipe(asked.recipe, given), folder)
    return folder


def measured(name: str, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    kind, model = KINDS[name], load(trained(name, seed, asked), asked.device)
    assert isinstance(model, SpeechModel)
    model.network.eval()
    given = (
        telephone_numbers_of(model, asked.limit)
        if asked.telephone
        else recordings(model, "test", asked.limit)
    )
    settings = {**kind.settings, **({"chunk_ms": asked.chunk} if kind.chunks else {})}
    found = latency(model, settings, given)
    metric = main_metric(model.recipe)
    parameters = sum(weight.numel() for weight in model.network.parameters())
    scores = {
        "file": latency_of_files(model, given, **kind.settings)["scores"],
        "live": found["scores"],
    }
    return {
        "kind": name,
        "seed": seed,
        "metric": metric,
        **{how: by_metric[metric]["value"] for how, by_metric in scores.items()},
        "parameters": parameters,
        "recordings": len(given),
        "seconds": sum(len(wave) for wave, _ in given) / model.recordings.settings.sample_rate,
        "scores": {
            how: {name: one["value"] for name, one in by_metric.items()}
            for how, by_metric in scores.items()
        },
        "first": found["first"].get("p50"),
        "final": found["final"].get("p50"),
        "revisions": found["revisions"],
        "real_time_factor": found["real_time_factor"],
    }


def telephone_numbers_of(model: SpeechModel, limit: int | None) -> list[tuple[Wave, str]]:
    pairs = list(read_pairs(model.recipe.data.test, model.recipe.data.folder))
    with tempfile.TemporaryDirectory() as folder:
        numbers = telephone_numbers(items_of(pairs, False), Path(folder))[:limit]
        read = read_waves([one.source for one in numbers], model.recordings.settings.sample_rate)
        waves = [heard.wave for heard in read]
    return [(wave, one.references[0]) for wave, one in zip(waves, numbers, strict=True)]


def main_metric(recipe: Recipe) -> str:
    return "wer" if "wer" in recipe.metrics else recipe.metrics[0]


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each kind, in Markdown."""
    lines = [f"| | {' | '.join(COLUMNS.values())} |", f"| --- |{' --- |' * len(COLUMNS)}"]
    for name in dict.fromkeys(row["kind"] for row in rows):
        cells = []
        for column in COLUMNS:
            values = [row[column] for row in rows if row["kind"] == name]
            known = [value for value in values if value is not None]
            spread = f" ± {statistics.stdev(known):.2f}" if len(known) > 1 else ""
            cells.append(f"{statistics.mean(known):.2f}{spread}" if known else "–")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def of_earlier_runs(path: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that are in a file. Raises SystemExit if they were measured otherwise."""
    if not path.is_file():
        return []
    found = json.loads(path.read_text("utf-8"))
    for name, value in settings.items():
        if found.get(name) != value:
            raise SystemExit(
                f"{path} was measured with {name} {found.get(name)!r}, not {value!r}: give another "
                f"--json"
            )
    rows: list[dict[str, Any]] = found["rows"]
    return rows


def together(rows: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows with a new one in place of that of its kind and seed, in the order of the table."""
    mine = [row for row in rows if (row["kind"], row["seed"]) != (new["kind"], new["seed"])]
    order = list(KINDS)
    return sorted([*mine, new], key=lambda row: (order.index(row["kind"]), row["seed"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="asterisk-live")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--chunk", type=float, default=640, help="milliseconds")
    parser.add_argument("--limit", type=int, help="recordings; default: all")
    parser.add_argument("--telephone", action="store_true", help="ten recordings in a row")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="of a CPU; default: torch's own number")
    parser.add_argument("--runs", type=Path, default=Path("runs/live_kinds"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", help="as in transduce train, such as train.steps=5")
    asked = parser.parse_intermixed_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    device = torch.device(asked.device)
    path = asked.json or RESULTS / f"live_kinds_{device.type}.json"
    asked.runs.mkdir(parents=True, exist_ok=True)
    settings = {"recipe": asked.recipe, "chunk": asked.chunk, "telephone": asked.telephone}
    settings |= {"overrides": asked.overrides}
    rows = of_earlier_runs(path, settings)
    for name in asked.kinds:
        for seed in asked.seeds:
            new = measured(name, seed, asked)
            print(json.dumps(new), flush=True)
            rows = together(rows, new)
            made = {"facts": metadata(device), **settings, "rows": rows}
            path.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
