"""Printing of outputs, scores, metrics, diagnoses and recipes, as plain lines."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transduce.errors import DataError, ModelError, RecipeError
from transduce.recipe import nearest, sections, shipped
from transduce.terminal import aligned, say
from transduce.terminal import console as make_console

if TYPE_CHECKING:
    from transduce.data.doctor.check import Diagnosis
    from transduce.evaluation.metrics import Metric
    from transduce.evaluation.results import Evaluation
    from transduce.tasks import AudioInputModel, Model
    from transduce.tasks.transduce import Output, Score

SENTENCES_AT_ONCE = 256
FILES_AT_ONCE = 16
MAX_PRINTED = {"confusion": 10, "labels": 40}


def print_tagged(model: Model, file: Path) -> None:
    """Print a CoNLL-U file with the model's predictions in the column of its tags."""
    from transduce.data.text.conll import read_sentences
    from transduce.data.text.files import read_lines
    from transduce.data.text.pairs import check_files
    from transduce.recipe import Columns
    from transduce.tasks import Tagger

    if not isinstance(model, Tagger):
        raise ModelError(
            f"{file} is CoNLL-U, which needs a tagger, but the model is of task: "
            f"{model.recipe.task}"
        )
    check_files(Columns(file=str(file)), None)
    sentences = read_sentences(read_lines(str(file), None, table=True), str(file))
    while some := list(islice(sentences, SENTENCES_AT_ONCE)):
        outputs = model.run([" ".join(sentence.column("form")) for sentence in some])
        for sentence, output in zip(some, outputs, strict=True):
            if output.warning:
                say(f"{file}:{sentence.line}: {output.warning}")
            print(sentence.filled(model.column, output.tokens), end="", flush=True)


def output_format(asked: str, folder: Path | None, model: Model) -> str:
    """The output format, checked against what the model supports. Raises ModelError."""
    from transduce.decoding.speech.subtitles import FORMATS

    is_speech = model.recipe.audio is not None and model.recipe.task == "transduce"
    known = ("text", "json", *FORMATS) if is_speech else ("text", "json")
    if asked not in known:
        raise ModelError(f"--format is {asked}; for this model it must be {', '.join(known)}")
    if folder is not None and asked not in FORMATS:
        raise ModelError(f"--output is for {', '.join(FORMATS)}; choose one of them with --format")
    return asked


def print_recordings(
    model: AudioInputModel,
    sources: Iterable[list[str]],
    kind: str,
    folder: Path | None,
    settings: dict[str, Any],
    *,
    scores: bool,
    numbered: bool,
    overwrite: bool = False,
    named: bool = False,
) -> int:
    """Print the outputs for audio files, in order; returns how many files could not be used.

    Subtitles and TextGrids go into a folder, one file per recording, or are printed if there is
    one recording. named: text is preceded by its file name. Raises DataError for a file that
    exists, without `overwrite`.
    """
    from transduce.decoding.speech.subtitles import ENDINGS
    from transduce.storage import check_free
    from transduce.tasks import SpeechModel
    from transduce.whisper import WhisperModel

    failed, number = 0, 0
    written: dict[Path, str] = {}
    if isinstance(model, SpeechModel):
        settings = {"times": kind != "text", **settings}
    prompted = isinstance(model, WhisperModel)
    if kind != "text" and isinstance(model, SpeechModel) and not (prompted or model.times_tokens):
        by_attention = (
            "word timestamps come from attention, and are left out where attention is not "
            "monotonic; a model with CTC on its output tokens (model.ctc_weight and "
            "data.tokens.both) gives more reliable ones"
        )
        none = "a translation has timestamps for segments, not for words"
        notice = by_attention if model.transcribes else none
        say(notice)
    for group in sources:
        if kind in ENDINGS and folder is None and number + len(group) > 1:
            raise DataError(f"several recordings need several {kind} files; give --output DIR")
        if kind in ENDINGS and folder is not None:
            bare = map(model.recordings.bare, group)
            files = [_transcript_file(folder, source, kind) for source in bare]
            check_free((file for file in files if file not in written), overwrite)
        for source, output in _run_in_groups(model, group, settings):
            number += 1
            failed += output.failed
            if output.warning:
                about = "" if source in output.warning else f"{source}: "
                say(f"{about}{output.warning}")
            if kind != "json" and output.language_probability is not None:
                language = f"{output.language} (probability {output.language_probability:.2f})"
                say(f"{source}: the language is {language}")
            if kind in ENDINGS:
                if not output.failed:
                    _write_transcript(model, output, source, kind, folder, written)
            elif kind == "json":
                values = {"source": source, **output.to_json()}
                print(json.dumps(values, ensure_ascii=False), flush=True)
            else:
                shown = [replace(output, warning="")]
                name = source if named else ""
                print_outputs(
                    shown, scores=scores, as_json=False, numbered=numbered, first=number, name=name
                )
    return failed


def _run_in_groups(
    model: AudioInputModel, sources: list[str], settings: dict[str, Any]
) -> Iterator[tuple[str, Output]]:
    """Each source, without the tags before it, with its output; a few at a time, so that the first
    is printed early."""
    for start in range(0, len(sources), FILES_AT_ONCE):
        some = sources[start : start + FILES_AT_ONCE]
        yield from zip(map(model.recordings.bare, some), model.run(some, **settings), strict=True)


def _transcript_file(folder: Path, source: str, kind: str) -> Path:
    from transduce.data.audio.read import parse_place
    from transduce.decoding.speech.subtitles import ENDINGS

    return folder / f"{parse_place(source)[0].stem}{ENDINGS[kind]}"


def _write_transcript(
    model: AudioInputModel,
    output: Output,
    source: str,
    kind: str,
    folder: Path | None,
    written: dict[Path, str],
) -> None:
    from transduce.data.audio.read import audio_info, parse_place
    from transduce.decoding.speech.subtitles import transcript
    from transduce.storage import make_folder, write_text
    from transduce.tasks.audio_input import AudioSegment

    file, _, end = parse_place(source)
    if isinstance(source, AudioSegment):  # that is not read from a file
        seconds = len(source.wave) / model.recordings.settings.sample_rate
    else:
        seconds = audio_info(file).seconds if end is None else end
    text = transcript(output, kind, seconds, model.target_tokens.level == "symbol")
    if folder is None:
        print(text, end="", flush=True)
        return
    make_folder(folder)
    path = _transcript_file(folder, source, kind)
    if path in written:
        raise DataError(
            f"{source} and {written[path]} would both be written to {path}; rename one of them"
        )
    written[path] = source
    write_text(path, text)
    print(path, flush=True)


def print_outputs(
    outputs: Iterable[Output],
    *,
    scores: bool,
    as_json: bool,
    numbered: bool,
    show: Callable[[Output], str] = lambda output: output.text,
    multiline: bool = False,
    first: int = 1,
    name: str = "",
) -> None:
    """Print one line per source; numbered: one line per hypothesis, after its source's number.

    `multiline`: keep line breaks of texts, with an empty line between two. `name`: printed in
    place of the number.
    """
    is_first = True
    for number, output in enumerate(outputs, start=first):
        if output.warning:
            say(f"source {number}: {output.warning}")
        if as_json:
            print(json.dumps(output.to_json(), ensure_ascii=False), flush=True)
            continue
        for hypothesis in output.alternatives or [output]:
            columns = [name or str(number)] if numbered or name else []
            columns += [f"{hypothesis.score:.4f}"] if scores else []
            if multiline:
                lines = ["\t".join(columns)] if columns else []
                gap = [] if is_first else [""]
                print("\n".join([*gap, *lines, show(hypothesis)]), flush=True)
                is_first = False
                continue
            columns += [" ".join(show(hypothesis).splitlines())]
            print("\t".join(columns), flush=True)


def print_scores(groups: Iterable[list[Score]], *, as_json: bool, noun: str = "pairs") -> None:
    """Print log-probability and perplexity, one line each; the total goes to standard error."""
    from transduce.decoding.output import perplexity

    count, tokens, total = 0, 0, 0.0
    for score in chain.from_iterable(groups):
        count, tokens = count + 1, tokens + len(score.tokens)
        total += score.log_probability
        if as_json:
            print(json.dumps(score.to_json(), ensure_ascii=False))
        else:
            print(f"{score.log_probability:.4f}\t{score.perplexity:.4f}")
    print(
        f"{count:,} {noun}, {tokens:,} tokens: log-probability {total:.4f}, "
        f"perplexity {perplexity(total, tokens):.4f}",
        file=sys.stderr,
    )


SHOWN_CONFUSIONS = 8
NOTHING = "(nothing)"  # a word that is missing, or was not there
SAME_TABLE = ("tag", "group")
MANY_EMPTY = 0.1  # of the outputs: where there are more, it is said
AGAINST_EMPTY = "train longer, or decode with --beam 1 (greedy search) or --min-length 1"


def print_metrics(evaluation: Evaluation) -> None:
    failed = [output.warning for output in evaluation.outputs if output.failed]
    if failed:
        noun = "recording" if len(failed) == 1 else "recordings"
        say(
            f"{len(failed):,} {noun} could not be used and counted as empty predictions "
            f"({failed[0]}{'; …' if len(failed) > 1 else ''})"
        )
    for metric in evaluation.metrics.values():
        print(metric)
        signature = metric.details.get("signature")
        if signature:
            print(f"  {signature}")
        for line in error_sentences(metric):
            print(f"  {line}")
        for line in _table(metric):
            print(f"  {line}")
    scores = evaluation.by_slice
    # Slices by tag or group, or by the column of groups, are that table already.
    same = scores is not None and scores.counts.keys() == evaluation.groups.keys()
    if scores is None or not (same or scores.by in SAME_TABLE):
        for line in _group_table(evaluation):
            print(line)
    if scores is not None:
        print("\n".join([*aligned(scores.rows()), *scores.gap_sentences()]))
        for part, metrics in scores.metrics.items():
            for metric in metrics.values():
                for line in error_sentences(metric):
                    print(f"{part}: {line}")
    counts = (metric.details.get("unknown_tokens", 0) for metric in evaluation.metrics.values())
    unknown = max(counts, default=0)
    if evaluation.skipped:
        pairs = "pair was" if evaluation.skipped == 1 else "pairs were"
        say(
            f"{evaluation.skipped:,} {pairs} skipped, as the numbers of labels and "
            f"words differ; correct these lines"
        )
    if evaluation.warning:
        say(evaluation.warning)
    doubtful = [one.warning for one in evaluation.outputs if one.warning and not one.failed]
    if doubtful:
        say(
            f"{len(doubtful):,} of {len(evaluation.outputs):,} outputs have a warning; "
            f"--items writes each ({doubtful[0]}{'; …' if len(doubtful) > 1 else ''})"
        )
    if sentence := _empty_sentence(evaluation):
        say(sentence)
    if unknown:
        say(
            f"{unknown:,} tokens of the text are not in the vocabulary; they are scored "
            f"as <unk>, so the reported values are too low"
        )


def _empty_sentence(evaluation: Evaluation) -> str:
    """What to do where many outputs are empty and should not be: of a model that has learnt little,
    the most probable output is often none (Stahlberg and Byrne 2019), which a beam finds."""
    pairs = list(zip(evaluation.items, evaluation.outputs, strict=False))
    empty = sum(is_empty(output) and all(item.references) for item, output in pairs)
    if empty <= MANY_EMPTY * len(pairs):
        return ""
    return (
        f"{empty:,} of {len(pairs):,} outputs are empty: the model has learnt too little; "
        f"{AGAINST_EMPTY}"
    )


def is_empty(output: Output) -> bool:
    """Whether search found nothing to write, and no warning says why."""
    return not output.text and not output.warning


def error_sentences(metric: Metric) -> list[str]:
    """Of word and phone error rates: the kinds of errors, and what is confused most."""
    details = metric.details
    if "confused" not in details:
        return []
    counts = [
        f"{details[kind]:,} {kind if details[kind] != 1 else kind.removesuffix('s')}"
        for kind in ("substitutions", "deletions", "insertions")
    ]
    steps = details.get("normalize")
    normalized = f"; normalised: {', '.join(steps)}" if steps else ""
    length = details["reference_length"]
    units = ("phone" if metric.name == "per" else "word") + "s" * (length != 1)
    found = [f"{', '.join(counts)} in {length:,} {units}{normalized}"]
    common = [one for one in details["confused"] if one[2] > 1][:SHOWN_CONFUSIONS]
    if common:
        pairs = (f"{one or NOTHING} → {other or NOTHING} {n:,}" for one, other, n in common)
        found.append(f"most confused: {', '.join(pairs)}")
    return found


def _group_table(evaluation: Evaluation) -> list[str]:
    """A row of metrics for each group of items, such as a language, and their mean."""
    if not evaluation.groups:
        return []
    counts = Counter(item.group for item in evaluation.items)
    rows = [["", "items", *evaluation.mean]]
    for group, metrics in evaluation.groups.items():
        found = [metrics.get(name) for name in evaluation.mean]
        values = ["" if metric is None else f"{metric.value:.2f}" for metric in found]
        rows.append([group or "no tag", f"{counts[group]:,}", *values])
    rows.append(["mean", "", *(f"{metric.value:.2f}" for metric in evaluation.mean.values())])
    return aligned(rows)


def _table(metric: Metric) -> list[str]:
    """The confusion matrix, or precision, recall and F1 of each label, if labels are few."""
    labels = metric.details.get("labels", [])
    if metric.name == "accuracy" and 0 < len(labels) <= MAX_PRINTED["confusion"]:
        counts = [[f"{n:,}" for n in row] for row in metric.details["confusion"]]
        head = ["reference \\ prediction", *labels]
        return aligned([head, *([label, *row] for label, row in zip(labels, counts, strict=True))])
    if metric.name in ("f1", "entity_f1") and 0 < len(labels) <= MAX_PRINTED["labels"]:
        rows = [["label", "precision", "recall", "F1", "count"]]
        for label, of_label in labels.items():
            shown = [f"{of_label[key]:.2f}" for key in ("precision", "recall", "f1")]
            rows.append([label, *shown, f"{of_label['count']:,}"])
        return aligned(rows)
    return []


def print_diagnosis(diagnosis: Diagnosis) -> None:
    from rich.table import Table

    console = make_console(highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("split", "side", "unit", "least", "median", "mean", "95 %", "greatest"):
        table.add_column(column, justify="left" if column in ("split", "side", "unit") else "right")
    for row in diagnosis.lengths:
        numbers = (row.median, row.mean, row.most_below)
        shown = [f"{number:,.1f}" for number in numbers]
        table.add_row(row.split, row.side, row.unit, f"{row.least:,}", *shown, f"{row.greatest:,}")
    counts = ", ".join(f"{n:,} {split}" for split, n in diagnosis.pairs.items())
    console.print(f"{diagnosis.noun.title()}s: {counts}")
    console.print(table)
    colours = {"error": "red", "warning": "yellow", "note": "cyan"}
    for finding in diagnosis.findings:
        colour = colours[finding.severity]
        console.print(f"[{colour}]{finding.severity}[/{colour}]: ", end="")
        console.print(finding.what, markup=False)
        for example in finding.examples:
            console.print(f"    {example}", markup=False)
        if finding.remedy:
            console.print(f"    → {finding.remedy}", markup=False)
    console.print(diagnosis.verdict, markup=False, style="bold")


def print_recipes() -> None:
    """Each shipped recipe's name and its first comment line."""
    known = shipped()
    widest = max(map(len, known))
    for name, text in known.items():
        first = text.splitlines()[0].lstrip("# ")
        print(f"{name:{widest}}  {first}")
    print("\nPrint one:  transduce recipes NAME > my.yaml     Explain every key:  --keys")


def print_recipe(name: str) -> None:
    known = shipped()
    if name not in known:
        near = nearest(name, known, f"; there are {', '.join(known)}")
        raise RecipeError(f"there is no shipped recipe {name}{near}")
    print(known[name], end="")


def print_keys() -> None:
    """Every key, by section of the recipe."""
    width = min(shutil.get_terminal_size().columns, 100)
    for section in sections():
        print(", ".join(filter(None, section.places)) or "recipe")
        print(textwrap.fill(section.about, width), end="\n\n")
        margin = " " * (max(len(key.name) for key in section.keys) + 4)
        for key in section.keys:
            default = f"  [default: {key.default}]" if key.default else ""
            takes = key.takes + ("  [required]" if key.required else default)
            for label, text in ((f"  {key.name}", key.about), ("", takes)):
                first = label.ljust(len(margin))
                print(textwrap.fill(text, width, initial_indent=first, subsequent_indent=margin))
        print()
