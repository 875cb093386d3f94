"""The items that heads are measured on."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

from transduce.data.text.pairs import corpus_name, read_pairs
from transduce.data.text.trust import check_reads
from transduce.errors import DataError
from transduce.evaluation.evaluate import FREE, metric_names
from transduce.evaluation.items import Item, given_files, items_of, measurable, split_of
from transduce.evaluation.score import check_bleu
from transduce.inspection.ablation.measure import Trial
from transduce.recipe import with_overrides
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks import LanguageModel
from transduce.tasks.transduce import Model


def make_trial(
    model: Model,
    folder: Path,
    metric: str,
    split: str,
    files: tuple[Path | None, Path | None],
    limit: int,
    overrides: Sequence[str],
    settings: dict[str, Any],
) -> tuple[Trial, str]:
    """A model with items of a split or of files; and what the corpus is called.

    Pairs longer than training took are left out, as in training. Raises DataError and RecipeError.
    """
    model = copy(model)
    model.recipe = with_overrides(model.recipe, overrides, FREE)
    task, data = model.recipe.task, model.recipe.data
    text = isinstance(model, LanguageModel)
    metric = metric_names(metric, ("loss",) if text else ("loss", *TASK_RULES[task].known_metrics))[
        0
    ]
    if any(files):
        corpus, _ = given_files(model, *files)
    else:
        corpus = split_of(model, folder, split)
        if model.origin is not None:
            check_reads(*model.origin, data, corpus)
    pairs = []
    for pair in read_pairs(corpus, data.folder):
        if pair.target.strip():
            pairs.append(pair)
        if len(pairs) == limit:
            break
    if text:
        items = [Item("", [pair.target.rstrip("\n")]) for pair in pairs]
    else:
        items = items_of(measurable(pairs, task, model.source_tokens), data.multiple_references)
    items = [item for item in items if _fits(model, item)]
    if not items:
        raise DataError(f"{corpus_name(corpus)} has no pair that can be measured")
    check_bleu(model.recipe, [metric], items)
    return Trial(model, items, metric, **settings), corpus_name(corpus)


def _fits(model: Model, item: Item) -> bool:
    if isinstance(model, LanguageModel):  # it reads a long text in windows
        return True
    maximum = model.recipe.data.max_length
    if len(model.target_tokens.encode(item.references[0])) > maximum:
        return False
    audio = model.recipe.audio is not None
    return audio or len(model.source_tokens.encode(item.source)) <= maximum
