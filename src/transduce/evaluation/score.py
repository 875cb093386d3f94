"""Outputs scored against references, by the metrics of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from transduce.data.tokens.bleu_tokenizer import bleu_tokenizer, make_bleu, unfit
from transduce.data.tokens.tokenizer import UNKNOWN
from transduce.evaluation.classification import Labelled, label_rows
from transduce.evaluation.items import Item
from transduce.evaluation.metrics import Measured, Metric, metric_of, rows_of
from transduce.recipe import Recipe
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks.transduce import Model, Output


class Answer(NamedTuple):
    """The parts of an output that are evaluated."""

    text: str
    labels: list[str]
    probabilities: list[float]

    @classmethod
    def of(cls, output: Output) -> Answer:
        return cls(output.text, output.tokens, output.probabilities)


def score(
    model: Model,
    items: Sequence[Item],
    answers: Sequence[Answer],
    metrics: Sequence[str],
    bootstrap: int = 1000,
) -> dict[str, Metric]:
    """Measure answers against the items' references, as text or as labels: see the task."""
    return summed(scored_rows(model, items, answers, metrics), len(items), bootstrap)


def summed(rows: Mapping[str, Measured], items: int, bootstrap: int = 1000) -> dict[str, Metric]:
    """The metrics of all items; with intervals where there is a row an item."""
    return {
        name: metric_of(name, one, bootstrap if len(one.statistics) == items else 0)
        for name, one in rows.items()
    }


def scored_rows(
    model: Model,
    items: Sequence[Item],
    answers: Sequence[Answer],
    metrics: Sequence[str],
    recipe: Recipe | None = None,
) -> dict[str, Measured]:
    """What `score` sums up, a row an item. BLEU's tokenizer is the recipe's, if one is given."""
    if TASK_RULES[model.recipe.task].labels == "none":
        references = [item.references for item in items]
        tokenizer = bleu_tokenizer(recipe or model.recipe)
        return rows_of(metrics, [answer.text for answer in answers], references, tokenizer)
    return label_rows(metrics, _labelled(model, items, answers, metrics))


def _labelled(
    model: Model, items: Sequence[Item], answers: Sequence[Answer], metrics: Sequence[str]
) -> list[Labelled]:
    labelled = []
    for item, answer in zip(items, answers, strict=True):
        reference = item.references[0]
        by_word = TASK_RULES[model.recipe.task].labels == "words"
        right = reference.split() if by_word else [" ".join(reference.split())]
        words = item.source.split() if {"known", "unknown"} & set(metrics) else []
        encoded = model.source_tokens.encode_batch(words)
        known = [ids[:1] not in ([], [UNKNOWN]) for ids in encoded]
        labelled.append(Labelled(answer.labels, right, answer.probabilities, known))
    return labelled


def check_bleu(recipe: Recipe, metrics: Sequence[str], items: Sequence[Item]) -> str:
    """A warning about BLEU's tokenizer before decoding starts; empty if it fits.

    Raises RecipeError if it is not installed.
    """
    if "bleu" not in metrics:
        return ""
    tokenizer = bleu_tokenizer(recipe)
    make_bleu(tokenizer)
    return unfit(tokenizer, (item.references[0] for item in items))
