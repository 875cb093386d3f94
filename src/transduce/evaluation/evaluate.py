"""Evaluate a model on a corpus: decode it, compute metrics, write hypotheses and results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from transduce.checksums import is_ours, write_listed
from transduce.corpora import splits_of
from transduce.data.batches.batch import ordered
from transduce.data.cache.tokenised import Encoded
from transduce.data.text.conllu import is_conllu
from transduce.data.text.pairs import Pair, audio_of, corpus_name, is_running, read_pairs
from transduce.data.text.trust import check_reads
from transduce.data.tokens.bleu_tokenizer import bleu_tokenizer, make_bleu, unfit
from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.errors import DataError, RecipeError
from transduce.evaluation.classification import Labelled, measure_labels
from transduce.evaluation.metrics import HIGHER_IS_BETTER, Metric, measure
from transduce.evaluation.perplexity import in_blocks, metrics_of, text_to_score
from transduce.recipe import (
    Columns,
    Corpus,
    Mixture,
    Named,
    ParallelFiles,
    Recipe,
    Text,
    nearest,
    with_overrides,
)
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks import LanguageModel, Tagger
from transduce.tasks.folder import entry_name, update_metrics
from transduce.tasks.transduce import Model, Output

MOST_GROUPS = 50
# Keys of a trained model's recipe that may be overridden in evaluation.
FREE = ("data.folder", "data.multiple_references", "decode.", "metrics", "bleu_tokenizer")
TABLES = (".tsv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class Item:
    """One source and its accepted references."""

    source: str
    references: list[str]
    group: str = ""
    """The first of the source's tags, such as its language; for audio, the value of `group`."""


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


def items_of(pairs: list[Pair], alternatives: bool) -> list[Item]:
    """One item for each pair; or, for a dictionary, one for each source with all its targets."""
    if not alternatives:
        return [Item(pair.source, [pair.target], _group(pair)) for pair in pairs]
    found: dict[str, Item] = {}
    for pair in pairs:
        item = found.setdefault(pair.source, Item(pair.source, [], _group(pair)))
        item.references.append(pair.target)
    return list(found.values())


def _group(pair: Pair) -> str:
    return pair.tags[0] if pair.tags else pair.group


def measurable(pairs: list[Pair], task: str, source_tokens: Tokens) -> list[Pair]:
    """The pairs that can be evaluated: for token labels, those with as many labels as tokens."""
    if TASK_RULES[task].labels != "words":
        return pairs
    sources = source_tokens.encode_batch([pair.source for pair in pairs])
    return [
        pair
        for pair, ids in zip(pairs, sources, strict=True)
        if len(ids) == len(pair.target.split())
    ]


class Answer(NamedTuple):
    """The parts of an output that are evaluated."""

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
    """Measure answers against the items' references, as text or as labels: see the task."""
    labels = TASK_RULES[model.recipe.task].labels
    if labels == "none":
        references = [item.references for item in items]
        texts = [answer.text for answer in answers]
        tokenizer = bleu_tokenizer(model.recipe)
        return measure(metrics, texts, references, bootstrap, bleu_tokenizer=tokenizer)
    judged = []
    for item, answer in zip(items, answers, strict=True):
        reference = item.references[0]
        right = reference.split() if labels == "words" else [" ".join(reference.split())]
        words = item.source.split() if {"known", "unknown"} & set(metrics) else []
        encoded = model.source_tokens.encode_batch(words)
        known = [ids[:1] not in ([], [UNKNOWN]) for ids in encoded]
        judged.append(Labelled(answer.labels, right, answer.probabilities, known))
    return measure_labels(metrics, judged, bootstrap)


def check_bleu(recipe: Recipe, metrics: Sequence[str], items: Sequence[Item]) -> str:
    """A warning about BLEU's tokenizer before decoding starts; empty if it fits.

    Raises RecipeError if it is not installed.
    """
    if "bleu" not in metrics:
        return ""
    tokenizer = bleu_tokenizer(recipe)
    make_bleu(tokenizer)
    return unfit(tokenizer, (item.references[0] for item in items))


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
    whole = judge(model, items, answers, metrics, bootstrap)
    groups = _judge_groups(model, items, answers, metrics, bootstrap)
    return Evaluation(whole, items, outputs, groups, mean_over(groups))


def _judge_groups(
    model: Model,
    items: Sequence[Item],
    answers: Sequence[Answer],
    metrics: Sequence[str],
    bootstrap: int,
) -> dict[str, dict[str, Metric]]:
    """The metrics of each group, if there are several, and not too many."""
    names = sorted({item.group for item in items})
    if not 1 < len(names) <= MOST_GROUPS:
        return {}
    found = {}
    for name in names:
        own = [place for place, item in enumerate(items) if item.group == name]
        parts = ([items[place] for place in own], [answers[place] for place in own])
        found[name] = judge(model, *parts, metrics, bootstrap)
    return found


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


def write_evaluation(folder: Path, split: str, evaluation: Evaluation, **facts: Any) -> None:
    """Write the metrics to metrics.json under `split`, the hypotheses to SPLIT.hypotheses.txt."""
    if evaluation.groups:
        facts["mean"] = {name: metric.to_json() for name, metric in evaluation.mean.items()}
        facts["groups"] = {
            group: {name: _shortly(metric) for name, metric in metrics.items()}
            for group, metrics in evaluation.groups.items()
        }
    _write_metrics(folder, split, evaluation.metrics, len(evaluation.items), **facts)
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


def _write_metrics(
    folder: Path, split: str, metrics: dict[str, Metric], items: int, **facts: Any
) -> None:
    measured = {name: metric.to_json() for name, metric in metrics.items()}
    update_metrics(folder, split, {"items": items, **facts, "metrics": measured})


@torch.inference_mode()
def loss_and_tokens(
    model: Model, corpus: Encoded, tokens: int, rank: int = 0, count: int = 1
) -> tuple[float, int]:
    """The summed negative log-likelihood, without label smoothing, and the number of target tokens.

    Rank `rank` of `count` computes every count-th batch of `tokens` tokens.
    """
    total = torch.zeros((), dtype=torch.float64, device=model.device)
    seen = 0
    training = model.network.training
    model.network.eval()
    for batch in ordered(corpus, tokens, rank, count, TASK_RULES[model.recipe.task].ends):
        total += model.network.batch_loss(batch.to(model.device)).nll.double()
        seen += batch.target_tokens
    model.network.train(training)
    return float(total), seen


def _metric_names(given: str, known: Sequence[str]) -> list[str]:
    """The names in `bleu, chrf`; checked before decoding, not after an hour of it."""
    names = [name.strip() for name in given.lower().split(",") if name.strip()]
    for name in names:
        if name not in known:
            near = nearest(name, known, f"; there are {', '.join(known)}")
            raise RecipeError(f"there is no metric {name}{near}")
    if not names:
        raise RecipeError(f"--metrics names none; there are {', '.join(known)}")
    return names


def _other_corpus(model: Model, source: Path | None, target: Path | None) -> tuple[Corpus, Path]:
    """The given files to evaluate on, and the one that names the results."""
    if isinstance(model, LanguageModel):
        if source is None or target is not None:
            raise DataError(
                "for a language model, give the text to evaluate on with --source alone"
            )
        lines: Literal["joined", "apart"] = "joined" if model.endless else "apart"
        return Text(text=str(source.resolve()), lines=lines), source
    if isinstance(model, Tagger) and source is not None and target is None and is_conllu(source):
        return Columns(file=str(source.resolve()), source="form", target=model.column), source
    columns = audio_of(model.recipe.data.train)
    if columns is not None:
        if source is None or target is not None:
            raise DataError("give other recordings to evaluate on as a table, with --source alone")
        changed = {"file": str(source.resolve()), "limit": None, "group": None}
        if isinstance(model.recipe.data.train, Mixture):  # it would be unclear which tag to use
            changed |= {"tag": None, "tags": None}
        return columns.model_copy(update=changed), source
    if source is not None and target is None and source.name.endswith(TABLES):
        given = (model.recipe.data.test, model.recipe.data.valid, model.recipe.data.train)
        plain = Columns(file=str(source.resolve()))
        like = next((one for one in given if isinstance(one, Columns)), plain)
        return like.model_copy(update={"file": plain.file, "limit": None}), source
    if source is None or target is None:
        raise DataError(
            "give other files to evaluate on with --source and --target, or with --source alone "
            f"if one table has both ({', '.join(TABLES)})"
        )
    return ParallelFiles(source=str(source.resolve()), target=str(target.resolve())), target


def _split_of(model: Model, folder: Path, split: str) -> Corpus:
    """test or valid of a recipe; or, for a corpus by name, any other split that it has."""
    data = model.recipe.data
    splits = {"test": data.test, "valid": data.valid}
    corpus = splits.get(split)
    if corpus is not None:
        return corpus
    known = data.test or data.valid
    if isinstance(known, Named) and _may_have(known, split):
        return _other_split(known, split)
    if isinstance(known, Mixture):
        named = [one for one in known.of if isinstance(one, Named) and _may_have(one, split)]
        if len(named) == len(known.of):
            return Mixture(of=[_other_split(one, split) for one in named])
    if split in splits:
        others = "--source" if isinstance(model, LanguageModel) else "--source and --target"
        raise DataError(
            f"the recipe of {folder} has no {split} set; give --split valid, or {others}"
        )
    near = nearest(split, splits, "; there are test and valid")
    raise DataError(f"there is no split {split}{near}")


def _may_have(corpus: Named, split: str) -> bool:
    """Whether to ask the corpus for a split; one that is unknown here raises its own error, with
    the splits there are.
    """
    return split not in ("test", "valid") or split in splits_of(corpus.name)


def _other_split(corpus: Named, split: str) -> Named:
    return corpus.model_copy(update={"split": split, "limit": None})


def _evaluate_text(
    model: LanguageModel, corpus: Corpus, names: Sequence[str]
) -> tuple[Evaluation, int]:
    """The metrics of a language model on a text, and its number of tokens."""
    running = is_running(corpus)
    pairs = read_pairs(corpus, model.recipe.data.folder)
    given = text_to_score(pairs, model.target_tokens, running)
    if not given.tokens:
        raise DataError(f"{corpus_name(corpus)} has no text: there is nothing to measure")
    total, tokens = model.negative_log_likelihood(given.texts)
    measured = metrics_of(names, total, given, model.window)
    if running:
        plain, _ = model.negative_log_likelihood(in_blocks(given, model.window))
        loss = Metric("loss", plain / max(tokens, 1), None, None, HIGHER_IS_BETTER["loss"])
        measured = {"loss": loss, **measured}
    return Evaluation(measured, [], []), tokens


def evaluate_folder(
    model: Model,
    folder: Path,
    *,
    split: str = "test",
    files: tuple[Path | None, Path | None] = (None, None),
    metrics: str | None = None,
    ensemble: Sequence[Model] = (),
    with_folders: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    tell: Callable[[Evaluation], object] | None = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate a model on a split of its recipe, or on given files; write the results to its
    folder.

    A language model scores the text, and nothing is decoded. Results of an ensemble with other
    models have another name. `tell` gets the scores first: a folder that cannot be written to must
    not lose them. `overrides` are of the recipe, such as `data.folder=…` if its files have moved.
    """
    tell = tell or (lambda evaluation: None)
    model = copy(model)  # with its own copy of the recipe
    model.recipe = with_overrides(model.recipe, overrides, FREE)
    data = model.recipe.data
    corpus: Corpus
    known = TASK_RULES[model.recipe.task].metrics
    names = _metric_names(metrics, known) if metrics is not None else list(model.recipe.metrics)
    of: dict[str, list[str]] = {}  # what distinguishes results of the same name
    if any(files):
        corpus, name = _other_corpus(model, *files)
        # Never the name of a split of the recipe, whose results are kept.
        split = name.name if name.suffix else f"{name.name}.txt"
        of["files"] = [str(file.resolve()) for file in files if file is not None]
    else:
        corpus = _split_of(model, folder, split)
        if model.origin is not None:
            check_reads(*model.origin, data, corpus)
    if isinstance(model, LanguageModel):
        measured, tokens = _evaluate_text(model, corpus, names)
        tell(measured)
        split = entry_name(folder, split, of)
        _write_metrics(folder, split, measured.metrics, tokens, **of)
        return replace(measured, name=split)
    pairs = list(read_pairs(corpus, data.folder))
    right = measurable(pairs, model.recipe.task, model.source_tokens)
    if not right:
        what = "with as many labels as words" if pairs else "with a source and a target"
        raise DataError(f"{corpus_name(corpus)} has no pair {what}: there is nothing to measure")
    items = items_of(right, data.multiple_references)
    warning = check_bleu(model.recipe, names, items)
    facts = {name: value for name, value in settings.items() if value is not None}
    asked = dict(facts)
    facts |= {"overrides": list(overrides)} if overrides else {}
    if ensemble:
        asked["ensemble"] = ensemble
        facts["models"] = 1 + len(ensemble)
        split = f"{split}-{facts['models']}-models"
        of["with"] = [str(other.resolve()) for other in with_folders]
    split = entry_name(folder, split, of)
    evaluation = replace(
        evaluate(model, items, names, **asked),
        name=split,
        skipped=len(pairs) - len(right),
        warning=warning,
    )
    tell(evaluation)
    write_evaluation(folder, split, evaluation, **facts, **of)
    return evaluation
