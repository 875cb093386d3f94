"""What an evaluation has found, and its files: metrics.json and the hypotheses in a model folder,
results item by item as JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from transduce.checksums import is_ours, write_listed
from transduce.data.tokens.tokenizer import UNKNOWN
from transduce.decoding.output import Output
from transduce.errors import DataError
from transduce.evaluation.items import Item
from transduce.evaluation.metrics import Measured, Metric
from transduce.evaluation.slices import Slices, SliceScores, plain_source
from transduce.storage import make_folder, write_text
from transduce.tasks import LanguageModel
from transduce.tasks.folder import update_metrics
from transduce.tasks.transduce import Model


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, Metric]
    items: list[Item]
    outputs: list[Output]
    groups: dict[str, dict[str, Metric]] = field(default_factory=dict)
    """The same for the items of each group, if there are several."""
    mean: dict[str, Metric] = field(default_factory=dict)
    """The macro average over the groups."""
    name: str = ""
    """The key of this result in metrics.json."""
    skipped: int = 0
    """Pairs that were skipped: with different numbers of labels and words."""
    warning: str = ""
    """A warning about a metric that means little here."""
    rows: dict[str, Measured] = field(default_factory=dict)
    """What each metric counted in every item."""
    slices: Slices | None = None
    """The items cut as was asked for, and the scores of each slice."""
    by_slice: SliceScores | None = None


def write_evaluation(folder: Path, split: str, evaluation: Evaluation, **metadata: Any) -> None:
    """Write the metrics to metrics.json under `split`, the hypotheses to SPLIT.hypotheses.txt."""
    if evaluation.groups:
        metadata["mean"] = {name: metric.to_json() for name, metric in evaluation.mean.items()}
        metadata["groups"] = {
            group: {name: _shortly(metric) for name, metric in metrics.items()}
            for group, metrics in evaluation.groups.items()
        }
    if evaluation.by_slice is not None:
        metadata["slices"] = evaluation.by_slice.to_json()
    write_metrics(folder, split, evaluation.metrics, len(evaluation.items), **metadata)
    # One hypothesis in each line: line breaks inside would shift all that follow.
    lines = [" ".join(output.text.splitlines()) for output in evaluation.outputs]
    path = folder / f"{split}.hypotheses.txt"
    if path.exists() and not is_ours(path):
        raise DataError(
            f"{path} was changed since transduce wrote it, and is not replaced: move it away to "
            f"get the new hypotheses; the metrics are in metrics.json"
        )
    write_listed(path, "\n".join(lines) + "\n")


def _shortly(metric: Metric) -> dict[str, Any]:
    return {"value": metric.value, "low": metric.low, "high": metric.high}


class StoredResult(NamedTuple):
    """One metric of one entry of metrics.json."""

    split: str
    metric: str
    value: float
    low: float | None
    high: float | None
    better: str
    """higher or lower"""
    items: int
    beam: int | None


STRANGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What entries of metrics.json raise that something else has written there."""


def stored_results(metrics: Mapping[str, Any]) -> list[StoredResult]:
    """All results of a metrics.json; what is none of ours is left out."""
    found = []
    for split, entry in metrics.items():
        with suppress(*STRANGE):
            for name, metric in entry["metrics"].items():
                ends = (metric.get("low"), metric.get("high"))
                low, high = (None if end is None else float(end) for end in ends)
                better = "higher" if metric["higher_is_better"] else "lower"
                items, beam = int(entry["items"]), entry.get("beam")
                value = float(metric["value"])
                found.append(StoredResult(split, name, value, low, high, better, items, beam))
    return found


def write_metrics(
    folder: Path, split: str, metrics: dict[str, Metric], items: int, **metadata: Any
) -> None:
    """Put metrics and what else is known of a measurement into metrics.json."""
    measured = {name: metric.to_json() for name, metric in metrics.items()}
    update_metrics(folder, split, {"items": items, **metadata, "metrics": measured})


def item_scores(rows: Mapping[str, Measured], items: int) -> dict[str, list[float]]:
    """The scores of each item by itself, by each metric that can be had so."""
    return {name: one.of_items() for name, one in rows.items() if len(one.statistics) == items}


def item_results(
    model: Model,
    items: Sequence[Item],
    outputs: Sequence[Output],
    rows: Mapping[str, Measured],
    slices: Slices | None = None,
) -> Iterator[dict[str, Any]]:
    """One record an item: source, references, prediction, scores, lengths, unknowns, groups."""
    scores = item_scores(rows, len(items))
    audio = model.recipe.audio is not None
    for number, (item, output) in enumerate(zip(items, outputs, strict=True)):
        source = plain_source(item)
        record: dict[str, Any] = {
            "item": number + 1,
            "source": source,
            "references": item.references,
            "prediction": output.text,
            "scores": {name: round(values[number], 4) for name, values in scores.items()},
            "lengths": _lengths(source, item.references[0], output.text, audio),
        }
        if not audio:
            record["unknown_words"] = unknown_words(model, source)
        if output.confidence is not None:
            record["confidence"] = round(output.confidence, 4)
        record["file"], record["line"] = item.place
        record["tags"] = list(item.tags)
        record["group"] = item.column
        if slices is not None:
            record[f"by_{slices.by}"] = slices.of_items[number]
        if output.warning:
            record["warning"] = output.warning
        yield record


def line_results(model: LanguageModel, evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    """One record a line of a text that a language model has scored."""
    scores = item_scores(evaluation.rows, len(evaluation.items))
    tokens = next(iter(evaluation.rows.values())).statistics[:, 1]
    for number, item in enumerate(evaluation.items):
        words = len(item.source.split())
        lengths = {"words": words, "characters": len(item.source), "tokens": int(tokens[number])}
        record: dict[str, Any] = {
            "item": number + 1,
            "text": item.source,
            "scores": {name: round(values[number], 4) for name, values in scores.items()},
            "lengths": lengths,
            "unknown_words": unknown_words(model, item.source),
        }
        record["file"], record["line"] = item.place
        if evaluation.slices is not None:
            record[f"by_{evaluation.slices.by}"] = evaluation.slices.of_items[number]
        yield record


def unknown_words(model: Model, source: str) -> list[str]:
    """Words of a source that the model's tokens cannot say, each once."""
    words = list(dict.fromkeys(source.split()))
    encoded = model.source_tokens.encode_batch(words)
    return [word for word, ids in zip(words, encoded, strict=True) if UNKNOWN in ids or not ids]


def write_item_results(path: Path, model: Model, evaluation: Evaluation) -> None:
    """One JSON object a line. Raises DataError where a text was measured as a whole."""
    if not evaluation.items:
        raise DataError("the text was measured as a whole: there are no items to write")
    if isinstance(model, LanguageModel):
        records = line_results(model, evaluation)
    else:
        records = item_results(
            model, evaluation.items, evaluation.outputs, evaluation.rows, evaluation.slices
        )
    text = "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)
    # JSON may hold these as they are, but some readers of lines take them for the end of one.
    for sign in "\x85\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    make_folder(path.parent)
    write_text(path, text)


def _lengths(source: str, reference: str, prediction: str, audio: bool) -> dict[str, int]:
    """In words and characters; of the first reference."""
    texts = {} if audio else {"source": source}
    texts |= {"reference": reference, "prediction": prediction}
    words = {f"{name}_words": len(text.split()) for name, text in texts.items()}
    return words | {f"{name}_characters": len(text) for name, text in texts.items()}
