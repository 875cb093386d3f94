"""Scoring a model on a corpus: decode it for real, measure, write down what was said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from transduce.cookbook import nearest
from transduce.data.batches import ordered
from transduce.data.cache import Encoded
from transduce.data.conllu import is_conllu
from transduce.data.corpus import Pair, is_running, read_pairs, sound_of
from transduce.data.tokens import UNKNOWN
from transduce.errors import DataError, RecipeError
from transduce.evaluation.labels import Labelled, measure_labels
from transduce.evaluation.metrics import HIGHER_IS_BETTER, Metric, measure
from transduce.evaluation.surprise import given_text, in_blocks, metrics_of
from transduce.folder import read_metrics
from transduce.recipe import Columns, Corpus, Named, ParallelFiles, Text
from transduce.rules import RULES
from transduce.storage import write_json, write_text
from transduce.tasks import LanguageModel, Tagger
from transduce.transducer import Model, Output


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


class Answer(NamedTuple):
    """Of an output, what it is judged by."""

    text: str
    labels: list[str]
    probabilities: list[float]

    @classmethod
    def of(cls, output: Output) -> Answer:
        return cls(output.text, output.tokens, output.probabilities)


def judge(
    model: Model,
    items: Sequence[Item],
    answers: Sequence[Answer],
    metrics: Sequence[str],
    bootstrap: int = 1000,
) -> dict[str, Metric]:
    """Measure answers against the items' references, as text or label by label: see the task."""
    labels = RULES[model.recipe.task].labels
    if labels == "none":
        references = [item.references for item in items]
        return measure(metrics, [answer.text for answer in answers], references, bootstrap)
    judged = []
    for item, answer in zip(items, answers, strict=True):
        reference = item.references[0]
        right = reference.split() if labels == "words" else [" ".join(reference.split())]
        words = item.source.split() if {"known", "unknown"} & set(metrics) else []
        encoded = model.source_tokens.encode_batch(words)
        known = [ids[:1] not in ([], [UNKNOWN]) for ids in encoded]
        judged.append(Labelled(answer.labels, right, answer.probabilities, known))
    return measure_labels(metrics, judged, bootstrap)


def evaluate(
    model: Model,
    items: list[Item],
    metrics: Sequence[str],
    *,
    bootstrap: int = 1000,
    **settings: Any,
) -> Evaluation:
    """Decode every item's source and measure against its references."""
    outputs = model.run([item.source for item in items], **settings)
    answers = [Answer.of(output) for output in outputs]
    return Evaluation(judge(model, items, answers, metrics, bootstrap), items, outputs)


def write_evaluation(folder: Path, split: str, evaluation: Evaluation, **facts: Any) -> None:
    """Put the metrics into metrics.json under `split`, the hypotheses into SPLIT.hypotheses.txt."""
    _write_metrics(folder, split, evaluation.metrics, len(evaluation.items), **facts)
    # One hypothesis a line whatever it holds: line breaks inside would shift all that follow.
    lines = [" ".join(output.text.splitlines()) for output in evaluation.outputs]
    write_text(folder / f"{split}.hypotheses.txt", "\n".join(lines) + "\n")


def _write_metrics(
    folder: Path, split: str, metrics: dict[str, Metric], items: int, **facts: Any
) -> None:
    values = read_metrics(folder)
    measured = {name: metric.to_json() for name, metric in metrics.items()}
    values[split] = {"items": items, **facts, "metrics": measured}
    write_json(folder / "metrics.json", values)


@torch.inference_mode()
def loss_and_tokens(
    model: Model, corpus: Encoded, tokens: int, rank: int = 0, count: int = 1
) -> tuple[float, int]:
    """The summed negative log-probability, without smoothing, of so many target tokens.

    Process `rank` of `count` sees every count-th batch of `tokens` places.
    """
    total = torch.zeros((), dtype=torch.float64, device=model.device)
    seen = 0
    training = model.network.training
    model.network.eval()
    for batch in ordered(corpus, tokens, rank, count, RULES[model.recipe.task].ends):
        total += model.network.batch_loss(batch.to(model.device)).nll.double()
        seen += batch.target_tokens
    model.network.train(training)
    return float(total), seen


def _metric_names(given: str, known: Sequence[str]) -> list[str]:
    """The names in `bleu, chrf`; checked now, not after an hour of decoding."""
    names = [name.strip() for name in given.lower().split(",") if name.strip()]
    for name in names:
        if name not in known:
            near = nearest(name, known, f"; there are {', '.join(known)}")
            raise RecipeError(f"there is no metric {name}{near}")
    if not names:
        raise RecipeError(f"--metrics names none; there are {', '.join(known)}")
    return names


def _other_corpus(model: Model, source: Path | None, target: Path | None) -> tuple[Corpus, Path]:
    """Files to score on, and the one that names the results."""
    if isinstance(model, LanguageModel):
        if source is None or target is not None:
            raise DataError("another text to score on is given with --source alone")
        lines: Literal["joined", "apart"] = "joined" if model.endless else "apart"
        return Text(text=str(source.resolve()), lines=lines), source
    if isinstance(model, Tagger) and source is not None and target is None and is_conllu(source):
        return Columns(file=str(source.resolve()), source="form", target=model.column), source
    columns = sound_of(model.recipe.data.train)
    if columns is not None:
        if source is None or target is not None:
            raise DataError("other recordings to score on are listed in a table: --source alone")
        changed = {"file": str(source.resolve()), "limit": None}
        return columns.model_copy(update=changed), source
    if source is None or target is None:
        raise DataError("other files to score on need both --source and --target")
    return ParallelFiles(source=str(source.resolve()), target=str(target.resolve())), target


def _split_of(model: Model, folder: Path, split: str) -> Corpus:
    """test or valid of a recipe; or, of a corpus by name, any other split that it has."""
    data = model.recipe.data
    splits = {"test": data.test, "valid": data.valid}
    corpus = splits.get(split)
    if corpus is not None:
        return corpus
    known = data.test or data.valid
    if isinstance(known, Named):
        return known.model_copy(update={"split": split, "limit": None})
    if split in splits:
        others = "--source" if isinstance(model, LanguageModel) else "--source and --target"
        raise DataError(
            f"the recipe of {folder} has no {split} set; give --split valid, or {others}"
        )
    near = nearest(split, splits, "; there are test and valid")
    raise DataError(f"there is no split {split}{near}")


def _evaluate_text(
    model: LanguageModel, folder: Path, split: str, corpus: Corpus, names: Sequence[str]
) -> Evaluation:
    running = is_running(corpus)
    pairs = read_pairs(corpus, model.recipe.data.folder)
    given = given_text(pairs, model.target_tokens, running)
    total, tokens = model.surprise(given.texts)
    measured = metrics_of(names, total, given, model.window)
    if running:
        plain, _ = model.surprise(in_blocks(given, model.window))
        loss = Metric("loss", plain / max(tokens, 1), None, None, HIGHER_IS_BETTER["loss"])
        measured = {"loss": loss, **measured}
    _write_metrics(folder, split, measured, tokens)
    return Evaluation(measured, [], [])


def evaluate_folder(
    model: Model,
    folder: Path,
    *,
    split: str = "test",
    files: tuple[Path | None, Path | None] = (None, None),
    metrics: str | None = None,
    **settings: Any,
) -> Evaluation:
    """Score a model on a split of its recipe, or on files of its kind; write it down in its folder.

    Of a language model the split is read, and nothing is decoded.
    """
    data = model.recipe.data
    corpus: Corpus
    known = RULES[model.recipe.task].metrics
    names = _metric_names(metrics, known) if metrics is not None else list(model.recipe.metrics)
    if any(files):
        corpus, name = _other_corpus(model, *files)
        # Never the name of a split of the recipe: its results are kept.
        split = name.name if name.suffix else f"{name.name}.txt"
    else:
        corpus = _split_of(model, folder, split)
    if isinstance(model, LanguageModel):
        return _evaluate_text(model, folder, split, corpus, names)
    items = items_of(list(read_pairs(corpus, data.folder)), data.alternatives)
    asked = {name: value for name, value in settings.items() if value is not None}
    evaluation = evaluate(model, items, names, **asked)
    write_evaluation(folder, split, evaluation, **asked)
    return evaluation
