"""Every attention head switched off in turn: by how much a metric changes.

Voita et al. 2019, https://aclanthology.org/P19-1580, and Michel et al. 2019,
https://arxiv.org/abs/1905.10650. A head that is off gives zeros before the output projection.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from transduce.errors import ModelError
from transduce.evaluation.bootstrap import (
    RESAMPLES,
    Difference,
    Statistics,
    paired_difference,
)
from transduce.evaluation.items import Item
from transduce.evaluation.metrics import Measured, higher_is_better
from transduce.evaluation.score import Answer, scored_rows
from transduce.models.lens import Gates, attentions, short_name
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks import LanguageModel
from transduce.tasks.transduce import Model

KINDS = {
    "encoder self": "encoder self-attention",
    "decoder self": "decoder self-attention",
    "cross": "cross-attention",
}
BUDGETS = {"loss": (0.01, 0.05, 0.1)}
POINTS = (0.1, 0.5, 1.0)
CANDIDATES = 4

Tell = Callable[[int, int], object]
"""Is told how many heads were measured, of how many."""


class Head(NamedTuple):
    """One attention head."""

    part: str
    kind: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{short_name(self.part)}, head {self.head}"


@dataclass(frozen=True)
class Worth:
    """What became of the metric without a head."""

    head: Head
    change: Difference

    def to_json(self) -> dict[str, Any]:
        return {**_named(self.head), **self.change.to_json()}


@dataclass(frozen=True)
class Removal:
    """A step of pruning: one head more is gone."""

    head: Head
    kept: int
    change: Difference
    """Against the whole model."""

    def to_json(self) -> dict[str, Any]:
        return {**_named(self.head), "kept": self.kept, **self.change.to_json()}


def heads_of(model: Model) -> list[Head]:
    """All heads of multi-head attention; ModelError where a model has none."""
    found = []
    for name, part in attentions(model.network).items():
        number = re.search(r"\d+", name)
        if not isinstance(part, MultiHeadAttention) or number is None:
            continue
        kind = "encoder self" if name.startswith("encoder") else "decoder self"
        kind = "cross" if "cross" in name else kind
        found += [Head(name, kind, int(number[0]), head) for head in range(part.heads)]
    if not found:
        raise ModelError("the model has no attention with heads: there is nothing to ablate")
    return found


class Trial:
    """A model and the items that it is measured on, with some of its heads off."""

    def __init__(self, model: Model, items: Sequence[Item], metric: str, **settings: Any) -> None:
        self.model, self.items, self.metric = model, list(items), metric
        self.settings = settings
        self.heads = heads_of(model)

    def rows(self, off: Collection[Head] = ()) -> tuple[Statistics, Callable[..., float]]:
        """A row an item, and the score of their sum."""
        with Gates(self.model.network) as gates, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="gates are set")  # slower, as is to be
            for head in off:
                gates.gate(head.part, head=head.head, factor=0.0)
            measured = self._measured()
        return measured.statistics, measured.score

    def _measured(self) -> Measured:
        if self.metric == "loss":
            return Measured(loss_rows(self.model, self.items), _mean, {})
        outputs = self.model.run([item.source for item in self.items], **self.settings)
        answers = [Answer.of(output) for output in outputs]
        return scored_rows(self.model, self.items, answers, [self.metric])[self.metric]


def loss_rows(model: Model, items: Sequence[Item]) -> Statistics:
    """Of each item the negative log-likelihood of its first reference, and its tokens."""
    sources = [item.source for item in items]
    targets = [item.references[0] for item in items]
    labels = TASK_RULES[model.recipe.task].labels
    if isinstance(model, LanguageModel):
        scores = model.score(targets)
    elif labels == "none":
        scores = model.score(sources, targets)
    else:
        return np.array(list(_label_rows(model, sources, targets)))
    return np.array([[-score.log_probability, len(score.tokens)] for score in scores])


def _label_rows(
    model: Model, sources: Sequence[str], targets: Sequence[str]
) -> Iterator[tuple[float, float]]:
    """The same of labels; one that training never had is as unlikely as a float can say."""
    by_word = TASK_RULES[model.recipe.task].labels == "words"
    with model.lens("logits") as seen:
        model.run(sources)
    found = iter(seen)
    names = {piece: number for number, piece in enumerate(_labels(model))}
    for source, target in zip(sources, targets, strict=True):
        wanted = target.split() if by_word else [" ".join(target.split())]
        if not source.split():
            continue
        logits_TV = next(found).logits
        assert logits_TV is not None
        shifted_TV = logits_TV - logits_TV.max(axis=1, keepdims=True)
        log_probs_TV = shifted_TV - np.log(np.exp(shifted_TV).sum(axis=1, keepdims=True))
        total = 0.0
        for row_V, label in zip(log_probs_TV, wanted, strict=False):
            total -= float(row_V[names[label]]) if label in names else float(row_V.min())
        yield total, len(wanted)


def _labels(model: Model) -> list[str]:
    from transduce.data.tokens.tokenizer import SPECIALS

    return model.target_tokens.pieces(range(len(SPECIALS), len(model.target_tokens)))


def _mean(total: Statistics) -> float:
    return float(total[0] / max(total[1], 1.0))


def measure_heads(
    trial: Trial, resamples: int = RESAMPLES, tell: Tell | None = None
) -> tuple[float, list[Worth]]:
    """The metric of the whole model, and its change without each head, in their order."""
    whole = trial.rows()
    worths = []
    for number, head in enumerate(trial.heads, start=1):
        worths.append(Worth(head, paired_difference(whole, trial.rows([head]), resamples)))
        if tell is not None:
            tell(number, len(trial.heads))
    return whole[1](whole[0].sum(axis=0)), worths


def prune_greedily(
    trial: Trial,
    worths: Sequence[Worth],
    keep: int | None = None,
    candidates: int = CANDIDATES,
    resamples: int = RESAMPLES,
    tell: Tell | None = None,
) -> list[Removal]:
    """Remove the head that hurts least, again and again.

    To try every head that is left at each step would take a number of measurements that grows with
    the square of the heads. So at each step those `candidates` are tried that have hurt least when
    last tried (0: all), and the best of them goes. Every attention keeps one head. It ends at
    `keep` heads; without it, once the metric is worse than the largest budget.
    """
    whole = trial.rows()
    base = whole[1](whole[0].sum(axis=0))
    sign = -1 if higher_is_better(trial.metric) else 1
    marginal = {worth.head: sign * worth.change.value for worth in worths}
    limit = max(BUDGETS.get(trial.metric, POINTS))
    left, removals, harm = set(trial.heads), list[Removal](), 0.0
    while keep is None or len(left) > keep:
        counts = {head.part: sum(one.part == head.part for one in left) for head in left}
        free = sorted((one for one in left if counts[one.part] > 1), key=lambda h: (marginal[h], h))
        if not free:
            break
        off = set(trial.heads) - left
        tried = {}
        for head in free[: candidates or None]:
            rows = trial.rows(sorted(off | {head}))
            tried[head] = (sign * (rows[1](rows[0].sum(axis=0)) - base), rows)
            marginal[head] = tried[head][0] - harm
        best = min(tried, key=lambda head: (tried[head][0], head))
        harm, rows = tried[best]
        left.remove(best)
        removals.append(Removal(best, len(left), paired_difference(whole, rows, resamples)))
        if tell is not None:
            tell(len(removals), len(trial.heads))
        if keep is None and harm > limit:
            break
    return removals


def _named(head: Head) -> dict[str, Any]:
    return {"part": head.part, "kind": head.kind, "layer": head.layer, "head": head.head}
