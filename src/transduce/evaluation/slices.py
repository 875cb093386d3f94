"""Evaluation by slices: whom a model serves well, and whom not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transduce.data.audio.read import audio_info, parse_place
from transduce.data.text.columns import read_rows
from transduce.data.text.pairs import corpus_files, corpus_name, read_pairs, resolved
from transduce.data.text.tags import with_tags
from transduce.errors import DataError
from transduce.evaluation.bootstrap import RESAMPLES, Gap, slice_gap
from transduce.evaluation.items import Item
from transduce.evaluation.metrics import (
    TITLES,
    Measured,
    Metric,
    confused,
    edit_counts,
    higher_is_better,
    metric_of,
)
from transduce.recipe import Columns, Corpus, Mixture, Recordings
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks import LanguageModel
from transduce.tasks.transduce import Model

BY = ("length", "tag", "group", "label", "frequency")
MAX_SLICES = 50
PARTS = 4  # of equal size, as far as may be, that lengths are cut into
DECADES = (1, 10, 100, 1000)


@dataclass(frozen=True)
class Slices:
    """Items cut into slices."""

    by: str
    of_items: list[str]
    """The name of each item's slice."""
    names: list[str]
    """All of them, in the order in which they are shown."""


@dataclass(frozen=True)
class SliceScores:
    """The metrics of each slice, and the gap between the best and the worst."""

    by: str
    counts: dict[str, int]
    metrics: dict[str, dict[str, Metric]]
    """By slice, then by metric."""
    gaps: dict[str, Gap] = field(default_factory=dict)
    """By metric."""

    def to_json(self) -> dict[str, Any]:
        slices = {
            name: {
                "items": self.counts[name],
                "metrics": {
                    key: {"value": one.value, "low": one.low, "high": one.high, **one.details}
                    for key, one in metrics.items()
                },
            }
            for name, metrics in self.metrics.items()
        }
        gaps = {name: gap.to_json() for name, gap in self.gaps.items()}
        return {"by": self.by, "slices": slices, "gaps": gaps}

    def rows(self) -> list[list[str]]:
        """A table: its head, and a row for each slice."""
        names = list(dict.fromkeys(name for found in self.metrics.values() for name in found))
        rows = [[f"by {self.by}", "items", *(TITLES.get(name, name) for name in names)]]
        for part, found in self.metrics.items():
            values = [found[name].with_interval if name in found else "" for name in names]
            rows.append([part, f"{self.counts[part]:,}", *values])
        return rows

    def gap_sentences(self) -> list[str]:
        """How far the best slice is from the worst, by each metric."""
        return [gap.sentence(TITLES.get(name, name)) for name, gap in self.gaps.items()]


def cut(by: str, model: Model, items: Sequence[Item], corpus: Corpus) -> Slices:
    """The items by length, tag, group, label, word frequency, or any column of the corpus's table.

    Raises DataError where they cannot be cut so.
    """
    if by == "length":
        return _by_length(model, items)
    if by == "frequency":
        return _by_frequency(model, items)
    if by == "tag":
        values = [", ".join(item.tags) for item in items]
        missing = "no source has a tag"
    elif by == "group":
        values = [item.column for item in items]
        missing = "the corpus names no column of groups (group: in the recipe's data)"
    elif by == "label":
        if TASK_RULES[model.recipe.task].labels != "whole":
            raise DataError(
                "--by label is for classifiers, whose target is one label; of a tagger the metric "
                "f1 has the score of each label"
            )
        values = [" ".join(item.references[0].split()) for item in items]
        missing = "no item has a label"
    else:
        found = _column(by, corpus, model.recipe.data.folder)
        values = [found.get(item.place, "") for item in items]
        missing = f"the column {by} is empty"
    if not any(values):
        raise DataError(f"{corpus_name(corpus)} cannot be cut by {by}: {missing}")
    values = [value or "(none)" for value in values]
    counts = Counter(values)
    if len(counts) > MAX_SLICES:
        raise DataError(
            f"{corpus_name(corpus)} has {len(counts):,} different values of {by}, and at most "
            f"{MAX_SLICES} slices are told apart: choose another column, or group its values"
        )
    return Slices(by, values, sorted(counts, key=lambda name: (-counts[name], name)))


def score_slices(
    slices: Slices, rows: Mapping[str, Measured], bootstrap: int = RESAMPLES
) -> SliceScores:
    """Measure every slice; `rows` are of all items (scored_rows)."""
    counts = Counter(slices.of_items)
    scores = SliceScores(slices.by, {name: counts[name] for name in slices.names}, {})
    own = {
        name: [place for place, one in enumerate(slices.of_items) if one == name]
        for name in slices.names
    }
    for name in slices.names:
        scores.metrics[name] = {}
        for metric, measured in rows.items():
            if len(measured.statistics) != len(slices.of_items):
                continue  # it is not had item by item
            statistics = measured.statistics[own[name]]
            if metric in ("known", "unknown") and not statistics[:, 1].any():
                continue
            details = {}
            if measured.edits is not None:
                own_edits = [measured.edits[place] for place in own[name]]
                details = edit_counts(statistics) | {"confused": confused(own_edits)}
            part = measured._replace(statistics=statistics, details=details)
            scores.metrics[name][metric] = metric_of(metric, part, bootstrap)
    for metric, measured in rows.items():
        gap = slice_gap(
            measured.statistics,
            measured.score,
            slices.of_items,
            higher_is_better(metric),
            bootstrap,
        )
        if gap is not None and all(metric in found for found in scores.metrics.values()):
            scores.gaps[metric] = gap
    return scores


def plain_source(item: Item) -> str:
    """The source without its tags."""
    return item.source.removeprefix(with_tags("", item.tags))


def mean_over(groups: Mapping[str, Mapping[str, Metric]]) -> dict[str, Metric]:
    """The macro average: the mean of each metric over the groups that have it.

    Its interval follows from theirs, as they are independent: the squared distances to the ends add
    up.
    """
    means = {}
    for name in dict.fromkeys(name for metrics in groups.values() for name in metrics):
        found = [metrics[name] for metrics in groups.values() if name in metrics]
        mean = sum(metric.value for metric in found) / len(found)
        lows = [metric.value - metric.low for metric in found if metric.low is not None]
        highs = [metric.high - metric.value for metric in found if metric.high is not None]
        whole = len(lows) == len(highs) == len(found)
        low = mean - math.hypot(*lows) / len(found) if whole else None
        high = mean + math.hypot(*highs) / len(found) if whole else None
        means[name] = Metric(name, mean, low, high, found[0].higher_is_better)
    return means


# -------------------------------------------------------------------------------------- length


def _by_length(model: Model, items: Sequence[Item]) -> Slices:
    """Parts of about the same size by the length of the source, or the seconds of a recording."""
    sources = [plain_source(item) for item in items]
    if model.recipe.audio is not None:
        return _parts([_seconds(source) for source in sources], "s", 1)
    words = [float(len(source.split())) for source in sources]
    if np.median(words) > 1:
        return _parts(words, "words", 0)
    return _parts([float(len(source)) for source in sources], "characters", 0)


def _seconds(source: str) -> float:
    file, start, end = parse_place(source)
    return (audio_info(file).seconds if end is None else end) - (start or 0.0)


def _parts(values: Sequence[float], unit: str, decimals: int) -> Slices:
    edges = np.unique(np.quantile(values, [n / PARTS for n in range(1, PARTS)]))
    found = [int(place) for place in np.searchsorted(edges, values, side="left")]
    names = {}
    for part in sorted(set(found)):
        own = [value for value, place in zip(values, found, strict=True) if place == part]
        low, high = f"{min(own):,.{decimals}f}", f"{max(own):,.{decimals}f}"
        one = unit.removesuffix("s") if high == "1" else unit
        names[part] = f"{low} {one}" if low == high else f"{low}–{high} {unit}"
    return Slices("length", [names[part] for part in found], list(names.values()))


# ----------------------------------------------------------------------------------- frequency


def _by_frequency(model: Model, items: Sequence[Item]) -> Slices:
    """By how often training had the rarest word of an item."""
    # Of audio the reference has the words, of a language model there is the text alone.
    target = model.recipe.audio is not None or isinstance(model, LanguageModel)
    data = model.recipe.data
    wanted = [_words(item.references[0] if target else plain_source(item)) for item in items]
    vocabulary = {word for words in wanted for word in words}
    counts: Counter[str] = Counter()
    for pair in read_pairs(data.train, data.folder):
        text = pair.target if target else pair.source.removeprefix(with_tags("", pair.tags))
        counts.update(word for word in text.split() if word in vocabulary)
    rarest = [min((counts[word] for word in words), default=0) for words in wanted]
    names = ["not in training"]
    for low, high in zip(DECADES, (*DECADES[1:], None), strict=True):
        names.append(f"{low:,} times or more" if high is None else f"{low:,}–{high - 1:,} times")
    of_items = [names[sum(count >= decade for decade in DECADES)] for count in rarest]
    there = set(of_items)
    return Slices("frequency", of_items, [name for name in names if name in there])


def _words(text: str) -> list[str]:
    return text.split()


# ------------------------------------------------------------------------------------- columns


def _column(name: str, corpus: Corpus, folder: str | None) -> dict[tuple[str, int], str]:
    """What a column of the tables that a corpus is read from has in each line."""
    corpus, folder = resolved(corpus, folder)
    if isinstance(corpus, Mixture):
        found: dict[tuple[str, int], str] = {}
        for one in corpus.of:
            found |= _column(name, one, folder)
        return found
    if not isinstance(corpus, Columns | Recordings):
        raise DataError(
            f"{corpus_name(corpus)} is not a table, and has no column {name}: --by can be "
            f"{', '.join(BY)}"
        )
    column = int(name) if name.isascii() and name.isdigit() else name
    found = {}
    for file in corpus_files(corpus, folder):
        header = True if isinstance(column, str) else corpus.header
        rows = read_rows(file, folder, [column], corpus.format, header, numbers=True)
        for line, (value,) in rows:
            found[file, line] = value.strip()
    return found
