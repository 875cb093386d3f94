"""Parity of an exported model with the original: differences, thresholds, and a report."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transduce.evaluation.items import Item
from transduce.evaluation.metrics import TITLES, Metric, measure
from transduce.interop.measure import Measurement
from transduce.storage import write_json, write_text

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
