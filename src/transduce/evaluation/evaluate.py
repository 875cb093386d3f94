"""Evaluate a model on a corpus: decode it, compute metrics, write hypotheses and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from transduce.data.text.pairs import ReadingCounts, corpus_name, is_running, read_pairs
from transduce.data.text.trust import check_reads
from transduce.errors import DataError, RecipeError, warn
from transduce.evaluation.items import (
    Item,
    are_of_training,
    given_files,
    items_of,
    measurable,
    pairs_to_measure,
    split_of,
    unknown_labels,
)
from transduce.evaluation.metrics import HIGHER_IS_BETTER, Metric
from transduce.evaluation.normalization import names_of, normalizer
from transduce.evaluation.perplexity import (
    in_blocks,
    line_items,
    line_rows,
    metrics_of,
    text_to_score,
)
from transduce.evaluation.results import Evaluation, write_evaluation, write_metrics
from transduce.evaluation.score import Answer, check_bleu, score, scored_rows, summed
from transduce.evaluation.slices import cut, mean_over, score_slices
from transduce.garbage import no_garbage_collection
from transduce.recipe import Corpus, nearest, with_overrides
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks import LanguageModel
from transduce.tasks.folder import entry_name
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.members import NO_MEMBERS, member_folders
from transduce.tasks.transduce import Model

MAX_GROUPS = 50
# Keys of a trained model's recipe that may be overridden in evaluation.
FREE = ("data.folder", "data.multiple_references", "decode.", "metrics", "bleu_tokenizer")


def evaluate(
    model: Model,
    items: list[Item],
    metrics: Sequence[str],
    *,
    bootstrap: int = 1000,
    normalize: Sequence[str] = (),
    **settings: Any,
) -> Evaluation:
    """Decode every item's source and measure against its references; normalize: the steps of text
    normalisation before."""
    normalized = normalizer(normalize)
    outputs = model.run([item.source for item in items], **settings)
    with no_garbage_collection():
        answers = [Answer.of(output) for output in outputs]
        compared = items
        if normalize:
            answers = [answer._replace(text=normalized(answer.text)) for answer in answers]
            compared = [
                replace(item, references=[normalized(one) for one in item.references])
                for item in items
            ]
        rows = scored_rows(model, compared, answers, metrics)
        for one in rows.values():
            one.details.update({"normalize": list(normalize)} if normalize else {})
        whole = summed(rows, len(items), bootstrap)
        groups = _score_groups(model, compared, answers, metrics, bootstrap)
    return Evaluation(whole, items, outputs, groups, mean_over(groups), rows=rows)


def _score_groups(
    model: Model,
    items: Sequence[Item],
    answers: Sequence[Answer],
    metrics: Sequence[str],
    bootstrap: int,
) -> dict[str, dict[str, Metric]]:
    """The metrics of each group, if there are several, and not too many."""
    names = sorted({item.group for item in items})
    if not 1 < len(names) <= MAX_GROUPS:
        return {}
    found = {}
    for name in names:
        own = [place for place, item in enumerate(items) if item.group == name]
        parts = ([items[place] for place in own], [answers[place] for place in own])
        found[name] = score(model, *parts, metrics, bootstrap)
    return found


def metric_names(chosen: str, known: Sequence[str]) -> list[str]:
    """The names in `bleu, chrf`; checked before decoding, not after an hour of it."""
    names = [name.strip() for name in chosen.lower().split(",") if name.strip()]
    for name in names:
        if name not in known:
            near = nearest(name, known, f"; there are {', '.join(known)}")
            raise RecipeError(f"there is no metric {name}{near}")
    if not names:
        raise RecipeError(f"--metrics names none; there are {', '.join(known)}")
    return names


def _evaluate_text(
    model: LanguageModel, corpus: Corpus, names: Sequence[str], by: str | None, lines: bool
) -> tuple[Evaluation, int]:
    """The metrics of a language model on a text, and its number of tokens."""
    running = is_running(corpus)
    pairs = list(read_pairs(corpus, model.recipe.data.folder))
    scored = text_to_score(pairs, model.target_tokens, running)
    if not scored.tokens:
        raise DataError(f"{corpus_name(corpus)} has no text: there is nothing to measure")
    total, tokens = model.negative_log_likelihood(scored.texts)
    measured = metrics_of(names, total, scored, model.window)
    if running:
        plain, _ = model.negative_log_likelihood(in_blocks(scored, model.window))
        loss = Metric("loss", plain / max(tokens, 1), None, None, HIGHER_IS_BETTER["loss"])
        measured = {"loss": loss, **measured}
    if by is None and not lines:
        return Evaluation(measured, [], []), tokens
    items = line_items(pairs)
    slices = None if by is None else cut(by, model, items, corpus)
    rows = line_rows(model, pairs, running, names)
    by_slice = None if slices is None else score_slices(slices, rows)
    found = Evaluation(measured, items, [], rows=rows, slices=slices, by_slice=by_slice)
    return found, tokens


def evaluate_folder(
    model: Model,
    folder: Path,
    *,
    split: str = "test",
    files: tuple[Path | None, Path | None] = (None, None),
    metrics: str | None = None,
    ensemble: Sequence[Model] | None = None,
    with_folders: Sequence[Path] = (),
    adapter: Path | None = None,
    overrides: Sequence[str] = (),
    by: str | None = None,
    lines: bool = False,
    on_measured: Callable[[Evaluation], object] | None = None,
    write: bool = True,
    beside: Mapping[str, tuple[Model, Path]] | None = None,
    normalize: str = "",
    **settings: Any,
) -> Evaluation:
    """Evaluate a model on a split of its recipe, or on given files; write the results to its
    folder, unless `write` is false.

    A language model scores the text, and nothing is decoded. ensemble: other models that decode
    with this one, and their folders; None: those that its folder names. Results with other models,
    or with the adapter that the model was given, have another name. `on_measured` gets
    the scores first: a folder that cannot be written to must not lose them. `overrides` are of the
    recipe, such as `data.folder=…` if its files have moved. `by` cuts the items into slices: see
    slices.cut. lines: of a language model, also what each line of the text counts. `beside` has
    the model for `rerank` or `language_model`, and its folder. `normalize` names steps of text
    normalisation, as in "lower,punctuation". `settings` are those of decoding.
    """
    on_measured = on_measured or (lambda evaluation: None)
    model = copy(model)  # with its own copy of the recipe
    model.recipe = with_overrides(model.recipe, overrides, FREE)
    data = model.recipe.data
    corpus: Corpus
    known = TASK_RULES[model.recipe.task].known_metrics
    names = metric_names(metrics, known) if metrics is not None else list(model.recipe.metrics)
    of: dict[str, list[str]] = {}  # what distinguishes results of the same name
    if any(files):
        corpus, name = given_files(model, *files)
        # Never the name of a split of the recipe, whose results are kept.
        split = name.name if name.suffix else f"{name.name}.txt"
        of["files"] = [str(file.resolve()) for file in files if file is not None]
        if are_of_training(corpus, data):
            held_out = "valid" if data.test is None else "test"
            warn(
                f"the model was trained on {name.name}, so the score is too good: --split "
                f"{held_out} has what was held out"
            )
    else:
        corpus = split_of(model, folder, split)
        if model.origin is not None:
            check_reads(*model.origin, data, corpus)
    if adapter is not None:
        split = f"{split}-{adapter.name}"
        of["adapter"] = [str(adapter.resolve())]
    steps = names_of(normalize)
    normalizer(steps)  # a mistake is said before anything is decoded
    if steps:
        if TASK_RULES[model.recipe.task].labels != "none" or isinstance(model, LanguageModel):
            raise RecipeError("--normalize is for models that write text; leave it out")
        split = f"{split}-normalized"
        of["normalize"] = steps
    if isinstance(model, LanguageModel):
        measured, tokens = _evaluate_text(model, corpus, names, by, lines)
        on_measured(measured)
        split = entry_name(folder, split, of)
        found: dict[str, Any] = dict(of)
        if measured.by_slice is not None:
            found["slices"] = measured.by_slice.to_json()
        if write:
            write_metrics(folder, split, measured.metrics, tokens, **found)
        return replace(measured, name=split)
    counts = ReadingCounts()
    with no_garbage_collection():
        pairs = list(pairs_to_measure(model, corpus, any(files), counts))
    for sentence in counts.notes:
        warn(sentence)
    right = measurable(pairs, model.recipe.task, model.source_tokens)
    if not right:
        what = "with as many labels as words" if pairs else "with a source and a target"
        raise DataError(f"{corpus_name(corpus)} has no pair {what}: there is nothing to measure")
    items = items_of(right, data.multiple_references)
    if strange := unknown_labels(items, model):
        warn(strange)
    warning = check_bleu(model.recipe, names, items)
    slices = None if by is None else cut(by, model, items, corpus)
    metadata = {name: value for name, value in settings.items() if value is not None}
    asked = dict(metadata)
    for role, (other, path) in (beside or {}).items():
        asked[role], metadata[role] = other, str(path)
    metadata |= {"overrides": list(overrides)} if overrides else {}
    members = NO_MEMBERS
    if ensemble is None and isinstance(model, GenerativeModel) and not model.is_adapted:
        members = model.members
    if members.all:
        with_folders = member_folders(folder).all
    elif ensemble:
        asked["ensemble"] = ensemble
    if others := len(with_folders or ensemble or ()):
        metadata["models"] = 1 + others
        split += "-by-tag" if members.by_tag else f"-{metadata['models']}-models"
        of["with"] = [str(other.resolve()) for other in with_folders]
    split = entry_name(folder, split, of)
    evaluation = replace(
        evaluate(model, items, names, normalize=steps, **asked),
        name=split,
        skipped=len(pairs) - len(right),
        warning=warning,
        slices=slices,
    )
    if slices is not None:
        evaluation = replace(evaluation, by_slice=score_slices(slices, evaluation.rows))
    on_measured(evaluation)
    if write:
        write_evaluation(folder, split, evaluation, **metadata, **of)
    return evaluation
