"""Scoring a model on a corpus: decode it for real, measure, write down what was said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from transduce.cookbook import nearest
from transduce.data.batches import ordered
from transduce.data.cache import Encoded
from transduce.data.corpus import Pair, read_pairs
from transduce.errors import DataError, RecipeError
from transduce.evaluation.metrics import Metric, measure
from transduce.folder import read_metrics
from transduce.recipe import Corpus, Data, MetricName, Named, ParallelFiles
from transduce.storage import write_json, write_text
from transduce.transducer import Output, Transducer


@dataclass(frozen=True)
class Item:
    """One source and the targets that count as right."""

    source: str
    references: list[str]


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, Metric]
    items: list[Item]
    outputs: list[Output]


def items_of(pairs: list[Pair], alternatives: bool) -> list[Item]:
    """One item a pair; or, of a dictionary, one item a source with all its targets."""
    if not alternatives:
        return [Item(pair.source, [pair.target]) for pair in pairs]
    grouped: dict[str, list[str]] = {}
    for pair in pairs:
        grouped.setdefault(pair.source, []).append(pair.target)
    return [Item(source, references) for source, references in grouped.items()]


def evaluate(
    model: Transducer,
    items: list[Item],
    metrics: Sequence[str],
    *,
    bootstrap: int = 1000,
    **settings: Any,
) -> Evaluation:
    """Decode every item's source and measure against its references."""
    outputs = model.run([item.source for item in items], **settings)
    texts = [output.text for output in outputs]
    measured = measure(metrics, texts, [item.references for item in items], bootstrap=bootstrap)
    return Evaluation(measured, items, outputs)


def write_evaluation(folder: Path, split: str, evaluation: Evaluation, **facts: Any) -> None:
    """Put the metrics into metrics.json under `split`, the hypotheses into SPLIT.hypotheses.txt."""
    values = read_metrics(folder)
    measured = {name: metric.to_json() for name, metric in evaluation.metrics.items()}
    values[split] = {"items": len(evaluation.items), **facts, "metrics": measured}
    write_json(folder / "metrics.json", values)
    # One hypothesis a line whatever it holds: line breaks inside would shift all that follow.
    lines = [" ".join(output.text.splitlines()) for output in evaluation.outputs]
    write_text(folder / f"{split}.hypotheses.txt", "\n".join(lines) + "\n")


@torch.inference_mode()
def loss_and_tokens(
    model: Transducer, corpus: Encoded, tokens: int, rank: int = 0, count: int = 1
) -> tuple[float, int]:
    """The summed negative log-probability, without smoothing, of so many target tokens.

    Process `rank` of `count` sees every count-th batch of `tokens` places.
    """
    total = torch.zeros((), dtype=torch.float64, device=model.device)
    seen = 0
    training = model.network.training
    model.network.eval()
    for batch in ordered(corpus, tokens, rank, count):
        on_device = batch.to(model.device)
        assert on_device.target_BT is not None
        loss = model.network.loss(
            on_device.source_BS, on_device.source_lengths_B, on_device.target_BT
        )
        total += loss.nll.double()
        seen += batch.target_tokens
    model.network.train(training)
    return float(total), seen


def _metric_names(given: str) -> list[str]:
    """The names in `bleu, chrf`; checked now, not after an hour of decoding."""
    known = get_args(MetricName)
    names = [name.strip() for name in given.lower().split(",") if name.strip()]
    for name in names:
        if name not in known:
            near = nearest(name, known, f"; there are {', '.join(known)}")
            raise RecipeError(f"there is no metric {name}{near}")
    if not names:
        raise RecipeError(f"--metrics names none; there are {', '.join(known)}")
    return names


def _split(data: Data, split: str, folder: Path) -> Corpus:
    """test or valid of a recipe; or, of a corpus by name, any other split that it has."""
    splits = {"test": data.test, "valid": data.valid}
    corpus = splits.get(split)
    if corpus is not None:
        return corpus
    known = data.test or data.valid
    if isinstance(known, Named):
        return known.model_copy(update={"split": split, "limit": None})
    if split in splits:
        raise DataError(
            f"the recipe of {folder} has no {split} set; give --split valid, or --source and "
            f"--target"
        )
    near = nearest(split, splits, "; there are test and valid")
    raise DataError(f"there is no split {split}{near}")


def evaluate_folder(
    model: Transducer,
    folder: Path,
    *,
    split: str = "test",
    files: tuple[Path | None, Path | None] = (None, None),
    metrics: str | None = None,
    **settings: Any,
) -> Evaluation:
    """Score a model on a split of its recipe, or on two files; write it down in its folder."""
    data = model.recipe.data
    names = _metric_names(metrics) if metrics is not None else list(model.recipe.metrics)
    if any(files):
        source, target = files
        if source is None or target is None:
            raise DataError("other files to score on need both --source and --target")
        corpus: Corpus = ParallelFiles(source=str(source.resolve()), target=str(target.resolve()))
        # Never the name of a split of the recipe: its results are kept.
        split = target.name if target.suffix else f"{target.name}.txt"
    else:
        corpus = _split(data, split, folder)
    items = items_of(list(read_pairs(corpus, data.folder)), data.alternatives)
    evaluation = evaluate(model, items, names, **settings)
    asked = {name: value for name, value in settings.items() if value is not None}
    write_evaluation(folder, split, evaluation, **asked)
    return evaluation
