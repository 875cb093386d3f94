"""Parity of an exported model with the original: differences, thresholds, and a report."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from transduce.data.text.pairs import Pair
from transduce.decoding.combine.bidirectional import score_directions
from transduce.decoding.score import forced
from transduce.errors import ModelError
from transduce.evaluation.items import Item
from transduce.evaluation.metrics import TITLES, Metric, measure
from transduce.hardware import keep_loaded
from transduce.interop.engine import open_model
from transduce.recipe.training import Decode
from transduce.runtime.packed_copy import packed
from transduce.storage import write_json, write_text
from transduce.tasks.transduce import Model, Transducer

REPORT = "parity.json"

# Another order of summation differs by less than 1e-5; a wrong weight by far more.
LARGEST_DIFFERENCE = 1e-3
MIN_IDENTICAL = 0.999
# Thresholds for quantized weights, and for another beam search. Between two decodings of some
# hundred sentences that differ by rounding alone, BLEU varies by a few tenths: a whole point is a
# loss. Of fewer than a hundred, one output alone may be more than a point.
LARGEST_DROP = 1.0


@dataclass(frozen=True)
class Parity:
    """Results before and after an export, on the same pairs."""

    engine: str
    quantize: str | None
    pairs: int
    data: str
    beam: int
    largest_difference: float
    """The largest difference of log-probabilities of the same target token."""
    mean_difference: float
    identical_greedy: float
    identical_searched: float
    metrics: dict[str, tuple[float, float]]
    greedy_metrics: dict[str, tuple[float, float]]
    bytes: tuple[int, int]
    sentences_per_second: tuple[float, float]
    faults: list[str]
    """Differences beyond a threshold, in words; empty if there are none."""

    def lines(self) -> list[str]:
        """The report, one figure in each line."""
        before, after = self.bytes
        slow, fast = self.sentences_per_second
        shown = [
            f"largest difference of log-probabilities: {self.largest_difference:.2g} "
            f"(mean {self.mean_difference:.2g})",
            f"identical hypotheses: greedy {self.identical_greedy:.2%}, "
            f"beam {self.beam} {self.identical_searched:.2%}",
            *(
                f"{TITLES.get(name, name)}, {search}: {old:.2f} before, {new:.2f} after"
                for search, metrics in [
                    ("greedy", self.greedy_metrics),
                    (f"beam {self.beam}", self.metrics),
                ]
                for name, (old, new) in metrics.items()
            ),
            f"size: {before:,} bytes before, {after:,} after",
            f"speed, beam {self.beam}: {slow:,.1f} sentences/s before, {fast:,.1f} after",
        ]
        return shown + [f"beyond the threshold: {fault}" for fault in self.faults]

    def write(self, folder: Path) -> None:
        write_json(folder / REPORT, asdict(self))
        weights = self.quantize or "float32"
        text = f"# Exported to {self.engine}, {weights}\n\nMeasured on {self.pairs:,} pairs of "
        text += f"{self.data}, each engine in a process of its own:\n\n"
        write_text(folder / "PARITY.md", text + "".join(f"- {line}\n" for line in self.lines()))


@dataclass(frozen=True)
class NotCompared:
    """An export that was not run, and why."""

    engine: str
    why: str

    def write(self, folder: Path) -> None:
        write_json(folder / REPORT, {**asdict(self), "compared": False})
        text = f"# Exported to {self.engine}\n\nNot compared with the model: {self.why}.\n"
        write_text(folder / "PARITY.md", text)


@dataclass(frozen=True)
class Compared:
    """An export of which all weights were read back and found equal bit for bit."""

    engine: str
    weights: int

    def write(self, folder: Path) -> None:
        write_json(folder / REPORT, {"engine": self.engine, "weights_equal": self.weights})


def compare(
    before: Measurement,
    after: Measurement,
    items: list[Item],
    metrics: list[str],
    bleu_tokenizer: str = "auto",
    *,
    engine: str,
    quantize: str | None,
    own_search: bool,
    **metadata: Any,
) -> Parity:
    """The differences and faults; `own_search`: the engine has its own beam search."""
    differences = [
        abs(old - new)
        for row, other in zip(before.log_probabilities, after.log_probabilities, strict=True)
        for old, new in zip(row, other, strict=True)
    ]
    references = [item.references for item in items]
    old_metrics, new_metrics, old_greedy, new_greedy = (
        measure(metrics, texts, references, bootstrap=0, bleu_tokenizer=bleu_tokenizer)
        for texts in (before.texts, after.texts, before.greedy_texts, after.greedy_texts)
    )
    largest = _largest(differences)
    greedy = _identical(before.greedy, after.greedy)
    searched = _identical(before.searched, after.searched)
    largest_drop = max(LARGEST_DROP, 100 / len(before.greedy))
    faults = [
        f"{TITLES.get(name, name)} is {drop:.2f} worse, the most is {largest_drop:.1f}"
        for name, metric in old_metrics.items()
        if (drop := _drop(metric, new_metrics[name])) > largest_drop + 1e-9
    ]
    if quantize is None:
        shares = {"greedy": greedy} if own_search else {"greedy": greedy, "beam": searched}
        faults = [
            f"{share:.2%} of {name} hypotheses are identical, the least is {MIN_IDENTICAL:.1%}"
            for name, share in shares.items()
            if share < MIN_IDENTICAL
        ] + faults
    if not math.isfinite(largest):
        faults.insert(0, "some log-probabilities are NaN or infinite")
    elif quantize is None and largest > LARGEST_DIFFERENCE:
        text = f"log-probabilities differ by {largest:.2g}, the most is {LARGEST_DIFFERENCE}"
        faults.insert(0, text)
    return Parity(
        engine=engine,
        quantize=quantize,
        largest_difference=largest,
        mean_difference=sum(differences) / len(differences),
        identical_greedy=greedy,
        identical_searched=searched,
        metrics={n: (old_metrics[n].value, new_metrics[n].value) for n in old_metrics},
        greedy_metrics={n: (old_greedy[n].value, new_greedy[n].value) for n in old_greedy},
        sentences_per_second=(len(items) / before.seconds, len(items) / after.seconds),
        faults=faults,
        **metadata,
    )


def _largest(differences: list[float]) -> float:
    """The maximum; NaN counts as the largest, which `max` would miss."""
    broken = [value for value in differences if value != value]
    return broken[0] if broken else max(differences)


def _identical(before: list[list[str]], after: list[list[str]]) -> float:
    return sum(old == new for old, new in zip(before, after, strict=True)) / len(before)


def _drop(before: Metric, after: Metric) -> float:
    better = 1 if before.higher_is_better else -1
    return better * (before.value - after.value)


# ----------------------------------------------------------------------------------------------
# Measure the outputs and the speed of a model on pairs, in a process of its own.
#
# Two engines in one process disturb each other: each has threads that occupy the cores.

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
    score = partial(forced.log_probabilities, packed(model.network, model.precision))
    ids = (model.source_tokens.encode_batch(sources), model.target_tokens.encode_batch(targets))
    with torch.inference_mode():
        return score_directions(score, *ids).mean() if model.is_bidirectional else score(*ids)


def _main(folder: str, engine: str, request_path: str, result_path: str) -> None:
    keep_loaded()
    given, targets, sources = json.loads(Path(request_path).read_text("utf-8"))
    sayings = measure_here(Path(folder), engine or None, (given, targets), sources)
    Path(result_path).write_text(json.dumps(asdict(sayings)), "utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
