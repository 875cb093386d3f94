"""Measure the outputs and the speed of a model on pairs, in a process of its own.

Two engines in one process disturb each other: each has threads that occupy the cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from transduce.data.text.pairs import Pair
from transduce.decoding.score import forced
from transduce.errors import ModelError
from transduce.hardware import keep_loaded
from transduce.interop.engine import open_model
from transduce.recipe.training import Decode
from transduce.runtime.packed_copy import packed
from transduce.tasks.transduce import Model, Transducer

BEAM = 4  # where the recipe's search is greedy: an export is compared with a beam too
WARMING = 8  # warm-up sentences before the clock starts


@dataclass(frozen=True)
class Measurement:
    """Log-probabilities of the target tokens, and the model's own outputs."""

    log_probabilities: list[list[float]]
    greedy: list[list[str]]
    """The output tokens of each source, by greedy search and by beam search (`parity_beam`)."""
    searched: list[list[str]]
    greedy_texts: list[str]
    texts: list[str]
    """Of beam search."""
    seconds: float
    """Seconds of beam search over all sources."""


def parity_beam(decode: Decode) -> int:
    """The size of the beam that an export is compared with, beside greedy search."""
    return decode.beam if decode.beam > 1 else BEAM


def measure_in_subprocess(
    folder: Path,
    engine: str | None,
    pairs: Sequence[Pair],
    sources: Sequence[str],
    scratch: Path,
    module: str = __name__,
) -> Measurement:
    """`measure_here`, or that of another module, in another process; `scratch` is a folder for its
    inputs and results."""
    request_path, result_path = scratch / "request.json", scratch / "result.json"
    request_path.write_text(
        json.dumps([[p.source for p in pairs], [p.target for p in pairs], list(sources)]), "utf-8"
    )
    result_path.unlink(missing_ok=True)
    command = [sys.executable, "-m", module, folder, engine or "", request_path, result_path]
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if ended.returncode:
        reason = (ended.stderr.strip().splitlines() or ["it was killed"])[-1]
        raise ModelError(f"{folder} could not be measured: {reason}")
    return Measurement(**json.loads(result_path.read_text("utf-8")))


def measure_here(
    folder: Path,
    engine: str | None,
    given: tuple[Sequence[str], Sequence[str]],
    sources: Sequence[str],
) -> Measurement:
    """Score the pairs, decode the sources twice, and time the second decoding."""
    model = open_model(folder, engine, "cpu")
    log_probabilities = _log_probabilities(model, *given)
    greedy = model.run(sources, beam=1)
    beam = parity_beam(model.recipe.decode)
    model.run(sources[:WARMING], beam=beam)
    began = time.perf_counter()
    searched = model.run(sources, beam=beam, scores=False)
    seconds = time.perf_counter() - began
    return Measurement(
        log_probabilities,
        [output.tokens for output in greedy],
        [output.tokens for output in searched],
        [output.text for output in greedy],
        [output.text for output in searched],
        seconds,
    )


def _log_probabilities(
    model: Model, sources: Sequence[str], targets: Sequence[str]
) -> list[list[float]]:
    """Step by step as search computes them, not in one pass over given targets."""
    if model.precision == "auto":
        return [score.token_log_probabilities for score in model.score(sources, targets)]
    assert isinstance(model, Transducer)
    with torch.inference_mode():
        return forced.log_probabilities(
            packed(model.network, model.precision),
            model.source_tokens.encode_batch(sources),
            model.target_tokens.encode_batch(targets),
        )


def _main(folder: str, engine: str, request_path: str, result_path: str) -> None:
    keep_loaded()
    given, targets, sources = json.loads(Path(request_path).read_text("utf-8"))
    sayings = measure_here(Path(folder), engine or None, (given, targets), sources)
    Path(result_path).write_text(json.dumps(asdict(sayings)), "utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
