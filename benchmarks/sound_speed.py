"""How many seconds of audio a second takes: to train, and to transcribe.

    python benchmarks/sound_speed.py MODEL... [--device cuda] [--updates 30] [--rounds 3]

MODELs are folders of trained models that hear. Training is whole updates on batches of the model's
own corpus, as `transduce train` does them, features, speed perturbation and SpecAugment included;
`features` is how much of that time computing them alone takes. Transcribing is of the recipe's test
set, from samples in memory, greedily and with the recipe's beam; `reading` is what opening and
decoding the files takes, on all cores. A figure is the median over rounds. Prints a table and
writes benchmarks/results/sound_speed_DEVICE.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from systems import metadata

from transduce.data.audio.corpus import FULL_SCALE, read_waves
from transduce.data.batches.batch import Batch
from transduce.data.text.pairs import read_pairs
from transduce.hardware import pick_precision
from transduce.tasks.speech import AudioSegment, SpeechModel
from transduce.tasks.transduce import load
from transduce.training.distributed.processes import Processes
from transduce.training.optimizer import build_optimizer, set_learning_rate
from transduce.training.prepare import prepare
from transduce.training.update import build_update

RESULTS = Path(__file__).parent / "results"
WARM = 5  # updates before the clock starts


def timed(work: Callable[[], object], device: torch.device, rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return found


def train_speed(model: SpeechModel, folder: Path, updates: int, rounds: int) -> dict[str, Any]:
    recipe, device = model.recipe, model.device
    prepared = prepare(recipe, folder, lambda sentence: None, Processes())
    portions = list(islice(prepared.train.updates(recipe.train.accumulate), WARM + updates))
    optimizer = build_optimizer(model.network, recipe.train)
    set_learning_rate(optimizer, 0.0)  # the same work, and the same weights afterwards
    precision = pick_precision(recipe.train.precision, device, recipe.model.width)
    update = build_update(model.network, optimizer, recipe.train, precision, Processes())
    model.network.train()

    def learn(some: list[Any]) -> None:
        for portion in some:
            update(portion.batches)
            update.apply()

    learn(portions[:WARM])
    measured = portions[WARM:]
    batches = [batch for portion in measured for batch in portion.batches]
    samples = sum(int(batch.source_lengths_B.sum()) for batch in batches)
    audio = samples / model.recordings.settings.sample_rate
    whole = timed(lambda: learn(measured), device, rounds)
    features = timed(lambda: _features(model, batches), device, rounds)
    model.network.eval()
    return {
        "batch_seconds": audio / len(batches),
        "training": [audio / seconds for seconds in whole],
        "features": statistics.median(features) / statistics.median(whole),
        "precision": str(precision).removeprefix("torch."),
    }


@torch.no_grad()
def _features(model: SpeechModel, batches: list[Batch]) -> None:
    for batch in batches:
        moved = batch.to(model.device)
        samples_BW = moved.source_BS.float() / FULL_SCALE
        model.network.front.mel(samples_BW, moved.source_lengths_B.to(model.device))


def transcribe_speed(model: SpeechModel, rounds: int, limit: int | None) -> dict[str, Any]:
    recipe = model.recipe
    assert recipe.data.test is not None
    names = [pair.source for pair in read_pairs(recipe.data.test, recipe.data.folder)][:limit]
    began = time.perf_counter()
    read = read_waves(names, model.recordings.settings.sample_rate)
    reading = time.perf_counter() - began
    there = zip(names, read, strict=True)
    pieces = [AudioSegment.of(name, heard.wave) for name, heard in there if heard.wave is not None]
    audio = sum(len(piece.wave) for piece in pieces) / model.recordings.settings.sample_rate
    found: dict[str, Any] = {"test_seconds": audio, "reading": audio / reading}
    for name, beam in (("greedy", 1), ("searched", recipe.decode.beam)):
        model.run(pieces[:8], beam=beam)
        took = timed(lambda beam=beam: model.run(pieces, beam=beam), model.device, rounds)
        found[name] = [audio / seconds for seconds in took]
    return found | {"beam": recipe.decode.beam, "ctc": recipe.decode.ctc_weight}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, help="recordings of the test set; default: all")
    asked = parser.parse_args()
    rows = []
    for folder in asked.models:
        model = load(folder, asked.device)
        assert isinstance(model, SpeechModel)
        row: dict[str, Any] = {
            "recipe": model.recipe.name,
            "parameters": sum(p.numel() for p in model.network.parameters()),
        }
        row |= transcribe_speed(model, asked.rounds, asked.limit)
        row |= train_speed(model, folder, asked.updates, asked.rounds)
        rows.append(row)
        middle = {name: statistics.median(row[name]) for name in ("training", "greedy", "searched")}
        print(
            f"{row['recipe']:20} training {middle['training']:,.0f} s/s (features "
            f"{row['features']:.1%} of it), greedy {middle['greedy']:,.0f} s/s, beam {row['beam']} "
            f"{middle['searched']:,.0f} s/s, reading {row['reading']:,.0f} s/s",
            flush=True,
        )
    kind = torch.device(asked.device).type
    found = {"facts": metadata(torch.device(asked.device)), "rows": rows}
    (RESULTS / f"sound_speed_{kind}.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
