"""Models compared on the same items: paired bootstrap resampling, and where they differ most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from transduce.data.text.pairs import Pair, corpus_name, is_running
from transduce.data.text.trust import check_reads
from transduce.decoding.output import Output
from transduce.errors import DataError, ModelError
from transduce.evaluation.bootstrap import (
    RESAMPLES,
    Difference,
    paired_difference,
)
from transduce.evaluation.evaluate import FREE, metric_names
from transduce.evaluation.items import (
    Item,
    given_files,
    items_of,
    measurable,
    pairs_to_measure,
    split_of,
)
from transduce.evaluation.metrics import Measured, Metric
from transduce.evaluation.perplexity import line_rows
from transduce.evaluation.results import item_scores
from transduce.evaluation.score import Answer, check_bleu, scored_rows, summed
from transduce.recipe import Corpus, with_overrides
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks import LanguageModel
from transduce.tasks.transduce import Model


@dataclass(frozen=True)
class Compared:
    """One of the models, and how it did."""

    name: str
    metrics: dict[str, Metric]
    outputs: list[Output]
    """Empty of a language model."""
    item_scores: dict[str, list[float]]
    """By metric, the score of each item by itself."""
    differences: dict[str, Difference] = field(default_factory=dict)
    """By metric, its score minus that of the first model; empty of the first."""


@dataclass(frozen=True)
class ModelComparison:
    """Models on the same items."""

    corpus: str
    items: list[Item]
    models: list[Compared]
    resamples: int
    notes: list[str]
    """What is to be kept in mind."""

    @property
    def metrics(self) -> list[str]:
        return list(self.models[0].metrics)

    def most_different(self, metric: str, count: int) -> list[int]:
        """The places of the items whose scores are furthest apart, the furthest first."""
        scores = [one.item_scores.get(metric, []) for one in self.models]
        if not all(scores):
            return []
        spread = np.ptp(np.array(scores), axis=0)
        order = sorted(range(len(spread)), key=lambda place: -spread[place])
        return [place for place in order[:count] if spread[place] > 0]

    def to_json(self, examples: int = 20) -> dict[str, Any]:
        models = [
            {
                "name": one.name,
                "metrics": {name: metric.to_json() for name, metric in one.metrics.items()},
                "differences": {name: found.to_json() for name, found in one.differences.items()},
            }
            for one in self.models
        ]
        first = self.metrics[0]
        different = [
            {
                "item": place + 1,
                "source": self.items[place].source,
                "references": self.items[place].references,
                "predictions": {one.name: one.outputs[place].text for one in self.models},
                first: {one.name: one.item_scores[first][place] for one in self.models},
            }
            for place in self.most_different(first, examples)
            if self.items and self.models[0].outputs
        ]
        return {
            "corpus": self.corpus,
            "items": len(self.items),
            "resamples": self.resamples,
            "models": models,
            "most_different": different,
            "notes": self.notes,
        }


def compare_rows(
    rows: Sequence[Mapping[str, Measured]], resamples: int = RESAMPLES
) -> list[dict[str, Difference]]:
    """By metric, the difference of each from the first, whose own is left empty."""
    found: list[dict[str, Difference]] = [{}]
    for other in rows[1:]:
        found.append({})
        for name, measured in other.items():
            if name in rows[0]:
                pair = (rows[0][name][:2], measured[:2])
                found[-1][name] = paired_difference(*pair, resamples)
    return found


def compare_models(
    models: Sequence[tuple[str, Model]],
    folder: Path,
    *,
    split: str = "test",
    files: tuple[Path | None, Path | None] = (None, None),
    metrics: str | None = None,
    overrides: Sequence[str] = (),
    limit: int | None = None,
    resamples: int = RESAMPLES,
    **settings: Any,
) -> ModelComparison:
    """Run all models on a split of the first one's recipe, or on files, and compare the scores.

    `folder` is that of the first. BLEU's tokenizer is that of the first too. Raises ModelError
    where the models do not do the same task.
    """
    task = models[0][1].recipe.task
    for name, model in models[1:]:
        if model.recipe.task != task:
            raise ModelError(
                f"{name} does the task {model.recipe.task} and {models[0][0]} the task {task}: "
                f"only models of one task can be compared"
            )
    first = copy(models[0][1])
    first.recipe = with_overrides(first.recipe, overrides, FREE)
    corpus, pairs = _pairs(first, folder, split, files)
    pairs = pairs[:limit]
    known = TASK_RULES[task].known_metrics
    names = metric_names(metrics, known) if metrics is not None else list(first.recipe.metrics)
    notes = _notes(models, corpus, split, any(files))
    if isinstance(first, LanguageModel):
        items = [Item("", [pair.target]) for pair in pairs]
        running = is_running(corpus)
        if running:
            notes.append("lines of a running text are resampled; they depend on each other")
        rows = [
            line_rows(model, pairs, running, names)
            for _, model in models
            if isinstance(model, LanguageModel)
        ]
        if (
            "perplexity" in names
            and len({model.target_tokens.to_json() for _, model in models}) > 1
        ):
            notes.append(
                "the models cut text into different tokens: compare bits per character, not "
                "perplexity"
            )
        outputs: list[list[Output]] = [[] for _ in models]
    else:
        for _, model in models:
            pairs = measurable(pairs, task, model.source_tokens)
        if not pairs:
            raise DataError(f"{corpus_name(corpus)} has no pair that can be scored")
        items = items_of(pairs, first.recipe.data.multiple_references)
        if warning := check_bleu(first.recipe, names, items):
            notes.append(warning)
        asked = {name: value for name, value in settings.items() if value is not None}
        sources = [item.source for item in items]
        outputs = [model.run(sources, **asked) for _, model in models]
        rows = [
            scored_rows(model, items, list(map(Answer.of, out)), names, first.recipe)
            for (_, model), out in zip(models, outputs, strict=True)
        ]
    differences = compare_rows(rows, resamples)
    compared = [
        Compared(
            name,
            summed(rows[place], len(items), resamples),
            outputs[place],
            item_scores(rows[place], len(items)),
            differences[place],
        )
        for place, (name, _) in enumerate(models)
    ]
    return ModelComparison(corpus_name(corpus), items, compared, resamples, notes)


def _pairs(
    model: Model, folder: Path, split: str, files: tuple[Path | None, Path | None]
) -> tuple[Corpus, list[Pair]]:
    if any(files):
        corpus, _ = given_files(model, *files)
    else:
        corpus = split_of(model, folder, split)
        if model.origin is not None:
            check_reads(*model.origin, model.recipe.data, corpus)
    pairs = list(pairs_to_measure(model, corpus, any(files)))
    if not pairs:
        raise DataError(f"{corpus_name(corpus)} is empty: there is nothing to compare on")
    return corpus, pairs


def _notes(
    models: Sequence[tuple[str, Model]], corpus: Corpus, split: str, files: bool
) -> list[str]:
    notes = []
    if len(models) > 2:
        notes.append(
            f"{len(models) - 1} comparisons with the first model: of so many, some have a small "
            f"p-value by chance (for Bonferroni's correction multiply each p by {len(models) - 1})"
        )
    for name, model in models[1:]:
        own = {"test": model.recipe.data.test, "valid": model.recipe.data.valid}.get(split)
        if not files and own is not None and corpus_name(own) != corpus_name(corpus):
            notes.append(f"{name} has another {split} set in its recipe: {corpus_name(own)}")
    return notes
