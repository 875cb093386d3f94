"""What commands read and print: sources in, plain lines out."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from transduce.cookbook import nearest, sections, shipped
from transduce.errors import DataError, ModelError, RecipeError

if TYPE_CHECKING:
    from transduce.data.doctor import Diagnosis
    from transduce.evaluation.evaluate import Evaluation
    from transduce.evaluation.metrics import Metric
    from transduce.tasks import Hearing, Model
    from transduce.transducer import Output, Score


BYTES_AT_ONCE = 1 << 16
SENTENCES_AT_ONCE = 256
FILES_AT_ONCE = 16
MOST_PRINTED = {"confusion": 10, "labels": 40}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_sources(arguments: list[str] | None, file: Path | None) -> Iterator[list[str]]:
    """Sources from the arguments, from a file or from standard input, one a line.

    They come in groups: what has been written to a pipe or typed so far is not kept waiting for
    what may follow, and a long file fills batches.
    """
    if arguments and file:
        raise DataError("give sources as arguments or with --input, not both")
    if arguments:
        yield arguments
    elif file is not None:
        try:
            with file.open("rb") as stream:
                yield from _groups(stream, str(file))
        except OSError as error:
            raise DataError(f"the file {file} cannot be read: {error.strerror}") from None
    elif sys.stdin is None:
        raise DataError("there is no standard input; give sources as arguments or with --input")
    else:
        if sys.stdin.isatty():
            print("Type a source and press Enter; Ctrl-D ends.", file=sys.stderr)
        yield from _groups(sys.stdin.buffer, "standard input")


def read_requests(
    arguments: list[str] | None,
    file: Path | None,
    prefix: str,
    include: list[str],
    exclude: list[str],
) -> Iterator[dict[str, Any]]:
    """What `Transducer.run` is to be called with, group by group.

    In a .jsonl file each line is an object such as {"source": "A dog.", "prefix": "Ein",
    "include": ["Hund"], "exclude": ["Katze"]}; what it does not say is as for all.
    """
    by_line = file is not None and file.suffix == ".jsonl"
    number = 0
    for group in read_sources(arguments, file):
        lines: list[dict[str, Any]] = [
            _object(line, f"{file}:{number + i}") if by_line else {"source": line}
            for i, line in enumerate(group, start=1)
        ]
        number += len(group)
        wishes = {
            "prefix": [line.get("prefix", prefix) for line in lines],
            "include": [include + line.get("include", []) for line in lines],
            "exclude": [exclude + line.get("exclude", []) for line in lines],
        }
        asked = {name: of_lines for name, of_lines in wishes.items() if any(of_lines)}
        yield {"sources": [line["source"] for line in lines], **asked}


def _object(line: str, where: str) -> dict[str, Any]:
    """One line of a .jsonl file, its fields as they must be."""
    kinds = {"source": str, "prefix": str, "include": list, "exclude": list}
    try:
        found = json.loads(line)
    except ValueError:
        raise DataError(f"{where}: this line is no JSON; write one object a line") from None
    if not isinstance(found, dict) or not isinstance(found.get("source"), str):
        raise DataError(f'{where}: each line is an object with a text "source"')
    for name, value in found.items():
        if name not in kinds:
            raise DataError(f"{where}: there is no {name} here{nearest(name, kinds, '')}")
        if not isinstance(value, kinds[name]):
            kind = "a text" if kinds[name] is str else "a list of texts"
            raise DataError(f"{where}: {name} must be {kind}")
    return found


def read_lines_of(
    source: Path, target: Path | None, at_once: int = 1024
) -> Iterator[tuple[list[str], list[str]]]:
    """Sources and targets, so many at once, from two files or from the two columns of one."""
    if target is None:
        columns: tuple[list[str], list[str]] = ([], [])
        for number, line in enumerate(chain.from_iterable(read_sources(None, source)), start=1):
            fields = line.split("\t")
            if len(fields) != 2:
                raise DataError(
                    f"{source}:{number}: {len(fields)} columns instead of a source, a tab and a "
                    f"target; or give targets in a second file"
                )
            for column, text in zip(columns, fields, strict=True):
                column.append(text)
        sources, targets = columns
    else:
        sources, targets = (
            list(chain.from_iterable(read_sources(None, file))) for file in (source, target)
        )
        if len(sources) != len(targets):
            raise DataError(
                f"{source} has {len(sources)} lines, but {target} has {len(targets)}; line by line "
                f"they must belong together"
            )
    for start in range(0, len(sources), at_once):
        yield sources[start : start + at_once], targets[start : start + at_once]


def _groups(stream: BinaryIO, name: str) -> Iterator[list[str]]:
    """Lines in groups, as much as there is. Only \\n ends a line, as in corpora."""
    number, rest, size = 1, b"", 1 << 10
    while chunk := stream.read1(size):  # type: ignore[attr-defined]
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield _decode(lines, number, name)
        number += len(lines)
        size = min(2 * size, BYTES_AT_ONCE)  # small at first, so that a file shows results soon
    if rest:
        yield _decode([rest], number, name)


def _decode(lines: list[bytes], first: int, name: str) -> list[str]:
    texts = []
    for number, line in enumerate(lines, start=first):
        bare = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        try:
            texts.append(bare.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError:
            raise DataError(f"{name}:{number}: this line is not UTF-8; convert it first") from None
    return texts


def conllu_input(arguments: list[str] | None, file: Path | None) -> Path | None:
    """The CoNLL-U file that is to be tagged, given with --input or as the only argument."""
    from transduce.data.conllu import is_conllu

    alone = Path(arguments[0]) if arguments and len(arguments) == 1 and file is None else file
    if alone is None or not is_conllu(alone) or (file is None and not alone.is_file()):
        return None
    return alone


def print_tagged(model: Model, file: Path) -> None:
    """The sentences of a CoNLL-U file, all as it was but for the column of the model's tags."""
    from transduce.data.conllu import read_sentences
    from transduce.data.corpus import check_files, read_lines
    from transduce.recipe import Columns
    from transduce.tasks import Tagger

    if not isinstance(model, Tagger):
        raise ModelError(
            f"{file} holds sentences to be tagged, but the model does the task {model.recipe.task}"
        )
    check_files(Columns(file=str(file)), None)
    sentences = read_sentences(read_lines(str(file), None), str(file))
    while some := list(islice(sentences, SENTENCES_AT_ONCE)):
        outputs = model.run([" ".join(sentence.column("form")) for sentence in some])
        for sentence, output in zip(some, outputs, strict=True):
            if output.warning:
                print(f"transduce: {file}:{sentence.line}: {output.warning}", file=sys.stderr)
            print(sentence.filled(model.column, output.tokens), end="", flush=True)


def output_format(asked: str, folder: Path | None, model: Model) -> str:
    """The format of what is printed, if the model can give it. Raises ModelError."""
    from transduce.decoding.transcripts import FORMATS

    known = ("text", "json", *FORMATS) if model.recipe.sound is not None else ("text", "json")
    if asked not in known:
        raise ModelError(f"--format is {asked}; of this model it can be {', '.join(known)}")
    if folder is not None and asked not in FORMATS:
        raise ModelError(f"--output is for {', '.join(FORMATS)}: name one of them with --format")
    return asked


def print_recordings(
    model: Hearing,
    sources: Iterable[list[str]],
    kind: str,
    folder: Path | None,
    settings: dict[str, Any],
    *,
    scores: bool,
    numbered: bool,
) -> int:
    """What is said in sound files, in order, in one of the formats; how many could not be used.

    Subtitles and TextGrids go into a folder, one file each; or, of one recording, are printed.
    """
    from transduce.decoding.transcripts import ENDINGS

    failed, number = 0, 0
    written: dict[Path, str] = {}
    for group in sources:
        if kind in ENDINGS and folder is None and number + len(group) > 1:
            raise DataError(f"several recordings make several files of {kind}: name --output DIR")
        for source, output in _heard(model, group, {"times": kind != "text", **settings}):
            number += 1
            failed += output.failed
            if output.warning:
                named = source in output.warning
                print(
                    f"transduce: {'' if named else f'{source}: '}{output.warning}", file=sys.stderr
                )
            if kind in ENDINGS:
                if not output.failed:
                    _write_transcript(model, output, source, kind, folder, written)
            elif kind == "json":
                values = {"source": source, **output.to_json()}
                print(json.dumps(values, ensure_ascii=False), flush=True)
            else:
                shown = [replace(output, warning="")]
                print_outputs(shown, scores=scores, as_json=False, numbered=numbered, first=number)
    return failed


def _heard(
    model: Hearing, sources: list[str], settings: dict[str, Any]
) -> Iterator[tuple[str, Output]]:
    """Each source with its output; some at a time, so that the first need not wait for the last."""
    for start in range(0, len(sources), FILES_AT_ONCE):
        some = sources[start : start + FILES_AT_ONCE]
        yield from zip(some, model.run(some, **settings), strict=True)


def _write_transcript(
    model: Hearing,
    output: Output,
    source: str,
    kind: str,
    folder: Path | None,
    written: dict[Path, str],
) -> None:
    from transduce.data.audio import sound_facts
    from transduce.data.corpus import parse_place
    from transduce.decoding.transcripts import ENDINGS, transcript
    from transduce.storage import make_folder, write_text

    file, _, end = parse_place(source)
    seconds = sound_facts(file).seconds if end is None else end
    text = transcript(output, kind, seconds, model.target_tokens.level == "symbol")
    if folder is None:
        print(text, end="", flush=True)
        return
    make_folder(folder)
    path = folder / f"{file.stem}{ENDINGS[kind]}"
    if path in written:
        raise DataError(f"{source} and {written[path]} would both be {path}: rename one of them")
    written[path] = source
    write_text(path, text)
    print(path, flush=True)


def read_prompts(file: Path) -> list[str]:
    """The prompts of a file, one a line."""
    return list(chain.from_iterable(read_sources(None, file)))


def print_outputs(
    outputs: Iterable[Output],
    *,
    scores: bool,
    as_json: bool,
    numbered: bool,
    show: Callable[[Output], str] = lambda output: output.text,
    whole: bool = False,
    first: int = 1,
) -> None:
    """One line a source; numbered, one line a hypothesis with the number of its source first.

    `whole`: texts with their own line breaks, an empty line between any two.
    """
    alone = True
    for number, output in enumerate(outputs, start=first):
        if output.warning:
            print(f"transduce: source {number}: {output.warning}", file=sys.stderr)
        if as_json:
            print(json.dumps(output.to_json(), ensure_ascii=False), flush=True)
            continue
        for hypothesis in output.alternatives or [output]:
            columns = [str(number)] if numbered else []
            columns += [f"{hypothesis.score:.4f}"] if scores else []
            if whole:
                lines = ["\t".join(columns)] if columns else []
                print("\n".join([*([] if alone else [""]), *lines, show(hypothesis)]), flush=True)
                alone = False
                continue
            columns += [" ".join(show(hypothesis).splitlines())]
            print("\t".join(columns), flush=True)


def print_scores(groups: Iterable[list[Score]], *, as_json: bool, noun: str = "pairs") -> None:
    """One line each: log-probability, perplexity; at the end, of all, on standard error."""
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


def print_metrics(evaluation: Evaluation) -> None:
    failed = [output.warning for output in evaluation.outputs if output.failed]
    if failed:
        noun = "recording" if len(failed) == 1 else "recordings"
        print(
            f"transduce: {len(failed):,} {noun} could not be used and counted as if nothing had "
            f"been written ({failed[0]}{'; …' if len(failed) > 1 else ''})",
            file=sys.stderr,
        )
    for metric in evaluation.metrics.values():
        print(metric)
        signature = metric.details.get("signature")
        if signature:
            print(f"  {signature}")
        for line in _table(metric):
            print(f"  {line}")
    counts = (metric.details.get("unknown_tokens", 0) for metric in evaluation.metrics.values())
    unknown = max(counts, default=0)
    if unknown:
        print(
            f"transduce: {unknown:,} tokens of the text are unknown to the model: they count as "
            f"<unk>, whatever they are, and the figures are too low",
            file=sys.stderr,
        )


def _table(metric: Metric) -> list[str]:
    """What there is to say of few labels: which were taken for which, and how good each is."""
    labels = metric.details.get("labels", [])
    if metric.name == "accuracy" and 0 < len(labels) <= MOST_PRINTED["confusion"]:
        counts = [[f"{n:,}" for n in row] for row in metric.details["confusion"]]
        head = ["right, then said", *labels]
        return _aligned([head, *([right, *row] for right, row in zip(labels, counts, strict=True))])
    if metric.name == "f1" and 0 < len(labels) <= MOST_PRINTED["labels"]:
        rows = [["label", "precision", "recall", "F1", "count"]]
        for label, of_label in labels.items():
            shown = [f"{of_label[key]:.2f}" for key in ("precision", "recall", "f1")]
            rows.append([label, *shown, f"{of_label['count']:,}"])
        return _aligned(rows)
    return []


def _aligned(rows: list[list[str]]) -> list[str]:
    """Rows as columns, the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]


def print_diagnosis(diagnosis: Diagnosis) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
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
        if finding.mend:
            console.print(f"    → {finding.mend}", markup=False)
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
    """Every key, by the part of the recipe where it stands."""
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
