"""What a model says of a set of pairs, and how fast, measured in a process of its own.

Two engines in one process disturb each other: each brings threads that hold on to the cores.
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
from transduce.decoding.score import given as forced
from transduce.errors import ModelError
from transduce.interop.engine import open_model
from transduce.runtime.packed_copy import packed
from transduce.tasks.transduce import Model, Transducer

WARMING = 8  # sentences before the clock starts


@dataclass(frozen=True)
class Sayings:
    """Of one model: the log-probability of each target's tokens, and what it writes itself."""

    log_probabilities: list[list[float]]
    greedy: list[list[str]]
    """The tokens of each source's output, greedily and by the recipe's own search."""
    searched: list[list[str]]
    greedy_texts: list[str]
    texts: list[str]
    """Of the recipe's search."""
    seconds: float
    """That the recipe's search took over all sources."""


def measure_apart(
    folder: Path, engine: str | None, pairs: Sequence[Pair], sources: Sequence[str], scratch: Path
) -> Sayings:
    """`measure_here` in another process; `scratch` is a folder for the questions and answers."""
    asked, answered = scratch / "asked.json", scratch / "answered.json"
    asked.write_text(
        json.dumps([[p.source for p in pairs], [p.target for p in pairs], list(sources)]), "utf-8"
    )
    answered.unlink(missing_ok=True)
    command = [sys.executable, "-m", __name__, folder, engine or "", asked, answered]
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if ended.returncode:
        reason = (ended.stderr.strip().splitlines() or ["it was killed"])[-1]
        raise ModelError(f"{folder} could not be measured: {reason}")
    return Sayings(**json.loads(answered.read_text("utf-8")))


def measure_here(
    folder: Path,
    engine: str | None,
    given: tuple[Sequence[str], Sequence[str]],
    sources: Sequence[str],
) -> Sayings:
    """Score the pairs, decode the sources twice, time the second."""
    model = open_model(folder, engine, "cpu")
    log_probabilities = _log_probabilities(model, *given)
    greedy = model.run(sources, beam=1)
    model.run(sources[:WARMING])
    began = time.perf_counter()
    searched = model.run(sources, scores=False)
    seconds = time.perf_counter() - began
    return Sayings(
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
    """As search computes them: scores of given targets would be computed in full."""
    if model.precision == "auto":
        return [score.token_log_probabilities for score in model.score(sources, targets)]
    assert isinstance(model, Transducer)
    with torch.inference_mode():
        return forced.log_probabilities(
            packed(model.network, model.precision),
            model.source_tokens.encode_batch(sources),
            model.target_tokens.encode_batch(targets),
        )


def _main(folder: str, engine: str, asked: str, answered: str) -> None:
    given, targets, sources = json.loads(Path(asked).read_text("utf-8"))
    sayings = measure_here(Path(folder), engine or None, (given, targets), sources)
    Path(answered).write_text(json.dumps(asdict(sayings)), "utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
