"""Every attention head switched off in turn: by how much a metric changes.

Voita et al. 2019, https://aclanthology.org/P19-1580, and Michel et al. 2019,
https://arxiv.org/abs/1905.10650. A head that is off gives zeros before the output projection.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from transduce.data.text.pairs import corpus_name
from transduce.data.text.trust import check_reads
from transduce.errors import DataError, ModelError
from transduce.evaluation.bootstrap import (
    RESAMPLES,
    Difference,
    Statistics,
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
from transduce.evaluation.metrics import Measured, higher_is_better
from transduce.evaluation.score import Answer, check_bleu, scored_rows
from transduce.inspection.model_card import write_card
from transduce.models.lens import Gates, attentions, short_name
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.recipe import (
    ConformerEncoder,
    Recipe,
    TransformerDecoder,
    TransformerEncoder,
    with_overrides,
)
from transduce.recipe.tasks import TASK_RULES
from transduce.storage import replaced_folder
from transduce.tasks import LanguageModel
from transduce.tasks.folder import WEIGHTS, holds_run, update_metrics
from transduce.tasks.transduce import Model

KINDS = {
    "encoder self": "encoder self-attention",
    "decoder self": "decoder self-attention",
    "cross": "cross-attention",
}
BUDGETS = {"loss": (0.01, 0.05, 0.1)}
POINTS = (0.1, 0.5, 1.0)
CANDIDATES = 4

OnProgress = Callable[[int, int], object]
"""Called with the number of heads measured, and of all."""


class Head(NamedTuple):
    """One attention head."""

    part: str
    kind: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{short_name(self.part)}, head {self.head}"


@dataclass(frozen=True)
class HeadImportance:
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
    trial: Trial, resamples: int = RESAMPLES, on_progress: OnProgress | None = None
) -> tuple[float, list[HeadImportance]]:
    """The metric of the whole model, and its change without each head, in their order."""
    whole = trial.rows()
    importances = []
    for number, head in enumerate(trial.heads, start=1):
        importances.append(
            HeadImportance(head, paired_difference(whole, trial.rows([head]), resamples))
        )
        if on_progress is not None:
            on_progress(number, len(trial.heads))
    return whole[1](whole[0].sum(axis=0)), importances


def prune_greedily(
    trial: Trial,
    importances: Sequence[HeadImportance],
    keep: int | None = None,
    candidates: int = CANDIDATES,
    resamples: int = RESAMPLES,
    on_progress: OnProgress | None = None,
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
    marginal = {importance.head: sign * importance.change.value for importance in importances}
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
        if on_progress is not None:
            on_progress(len(removals), len(trial.heads))
        if keep is None and harm > limit:
            break
    return removals


def _named(head: Head) -> dict[str, Any]:
    return {"part": head.part, "kind": head.kind, "layer": head.layer, "head": head.head}


# ----------------------------------------------------------------------------------------------
# The items that heads are measured on.


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
    for pair in pairs_to_measure(model, corpus, any(files)):
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


# ----------------------------------------------------------------------------------------------
# Heads removed for good: a model whose projections are smaller.

ROUNDS = 3
TIMED = 100  # sources


def pruned(model: Model, off: Collection[Head]) -> Model:
    """The model without these heads: rows of its queries, keys and values and columns of its output
    projections are gone. What it computes is what the model computes with these heads off.

    Every attention must keep a head. Raises ModelError otherwise.
    """
    if model.changed or model.engine is not None:
        raise ModelError("a network that was changed in Python, or is exported, cannot be pruned")
    kept = _kept(model, off)
    recipe = _pruned_recipe(model, kept)
    smaller = type(model).create(recipe, model.source_tokens, model.target_tokens)
    weights = dict(model.network.state_dict())
    for name, heads in kept.items():
        part = attentions(model.network)[name]
        assert isinstance(part, MultiHeadAttention)
        _cut(weights, name, part, heads)
    smaller.network.load_state_dict(weights)
    smaller.set_metadata(model.metadata())
    smaller.network.train(model.network.training)
    return smaller.to(model.device).compute_in(model.precision)


def _kept(model: Model, off: Collection[Head]) -> dict[str, list[int]]:
    gone = set(off)
    kept: dict[str, list[int]] = {}
    for head in heads_of(model):
        kept.setdefault(head.part, [])
        if head not in gone:
            kept[head.part].append(head.head)
    for name, heads in kept.items():
        if not heads:
            raise ModelError(f"{name} would have no head left: keep one of each attention")
    return kept


def _pruned_recipe(model: Model, kept: dict[str, list[int]]) -> Recipe:
    """The recipe with the heads that each layer has left, where some are gone."""
    parts = {}
    for side in ("encoder", "decoder"):
        part = model.recipe.model.parts.get(side)
        if not isinstance(part, TransformerEncoder | ConformerEncoder | TransformerDecoder):
            continue
        changed = {}
        for key, attention in (
            ("layer_heads", "self_attention"),
            ("cross_heads", "cross_attention"),
        ):
            names = [f"{side}.blocks.{layer}.{attention}" for layer in range(part.layers)]
            counts = [len(kept[name]) for name in names if name in kept]
            if len(counts) == part.layers and counts != [part.heads] * part.layers:
                changed[key] = counts
        parts[side] = part.model_copy(update=changed)
    shape = model.recipe.model.model_copy(update=parts)
    return model.recipe.model_copy(update={"model": shape})


def _cut(
    weights: dict[str, Tensor], name: str, part: MultiHeadAttention, heads: Sequence[int]
) -> None:
    """Of an attention, what belongs to the heads that stay."""
    if part.relative is not None and len(heads) < part.heads:
        raise ModelError(
            "heads cannot be pruned where positions are relative: all layers share a bias for each "
            "head"
        )
    K = part.head_width
    columns = torch.cat([torch.arange(head * K, (head + 1) * K) for head in heads])
    rows = torch.cat([columns + third * part.inner for third in range(3)])
    device = part.out_projection.weight.device
    chosen = {
        "in_projection.weight": (0, rows),
        "in_projection.bias": (0, rows),
        "out_projection.weight": (1, columns),
        "distance_projection.weight": (0, columns),
        "content_bias_HK": (0, torch.tensor(heads)),
        "distance_bias_HK": (0, torch.tensor(heads)),
    }
    for key, (dimension, index) in chosen.items():
        whole = f"{name}.{key}"
        if whole in weights:
            weights[whole] = weights[whole].index_select(dimension, index.to(device))


@dataclass(frozen=True)
class Saved:
    """A pruned model beside the one that it was made from."""

    parameters: tuple[int, int]
    bytes: tuple[int, int]
    seconds: tuple[float, float]
    """To run the same sources, the fastest of several rounds."""
    sources: int


def save_pruned(
    model: Model, folder: Path, off: Collection[Head], sources: Sequence[str], output: Path
) -> Saved:
    """Write the pruned model into a folder of its own, and measure both."""
    if output.exists() and (holds_run(output) or any(output.iterdir())):
        raise ModelError(f"{output} is not empty: give another --output for the pruned model")
    smaller = pruned(model, off)
    with replaced_folder(output) as new:
        smaller.save(new)
    some = list(sources[:TIMED])
    seconds = _fastest([model, smaller], some)
    found = Saved(
        (_parameters(model), _parameters(smaller)),
        ((folder / WEIGHTS).stat().st_size, (output / WEIGHTS).stat().st_size),
        (seconds[0], seconds[1]),
        len(some),
    )
    update_metrics(
        output,
        "pruning",
        {
            "from": str(folder.resolve()),
            "removed": [[head.part, head.head] for head in sorted(off)],
            "parameters": list(found.parameters),
            "bytes": list(found.bytes),
            "seconds": [round(one, 4) for one in found.seconds],
            "sources": found.sources,
        },
    )
    write_card(smaller, output)
    return found


def _fastest(models: Sequence[Model], sources: list[str]) -> list[float]:
    """Seconds of each for all sources, by turns: what else the machine does hits all alike."""
    best = [float("inf")] * len(models)
    for round_number in range(ROUNDS + 1):
        for place, model in enumerate(models):
            start = time.perf_counter()
            model.run(sources)
            if round_number:  # the first warms up
                best[place] = min(best[place], time.perf_counter() - start)
    return best


def _parameters(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.network.parameters())
