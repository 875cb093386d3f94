"""What commands read and print: sources in, plain lines out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.cookbook import keys, shipped
from transduce.errors import DataError, RecipeError

if TYPE_CHECKING:
    from transduce.data.doctor import Diagnosis
    from transduce.evaluation.evaluate import Evaluation
    from transduce.transducer import Output


def read_sources(arguments: list[str] | None, file: Path | None) -> Iterator[str]:
    """Sources from the arguments, from a file, or from standard input, one a line."""
    if arguments and file:
        raise DataError("give sources as arguments or with --input, not both")
    if arguments:
        yield from arguments
        return
    try:
        stream = sys.stdin.buffer if file is None else file.open("rb")
    except OSError as error:
        raise DataError(f"the file {file} cannot be read: {error.strerror}") from None
    if file is None and sys.stdin.isatty():
        print("Type a source and press Enter; Ctrl-D ends.", file=sys.stderr)
    # Only \n ends a line, as in corpora: what goes in on line n comes out on line n.
    for number, raw in enumerate(iter(stream.readline, b""), start=1):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            name = file or "standard input"
            raise DataError(f"{name}:{number}: this line is not UTF-8; convert it first") from None
        yield text.removesuffix("\n").removesuffix("\r")


def print_outputs(outputs: Iterable[Output], *, scores: bool, as_json: bool) -> None:
    """One line a source; with several hypotheses, one line each, the source's number first."""
    for number, output in enumerate(outputs, start=1):
        if as_json:
            print(json.dumps(output.to_json(), ensure_ascii=False), flush=True)
            continue
        for hypothesis in output.alternatives or [output]:
            columns = [str(number)] if output.alternatives else []
            columns += [f"{hypothesis.score:.4f}"] if scores else []
            columns += [" ".join(hypothesis.text.splitlines())]
            print("\t".join(columns), flush=True)


def print_metrics(evaluation: Evaluation) -> None:
    for metric in evaluation.metrics.values():
        print(metric)
        signature = metric.details.get("signature")
        if signature:
            print(f"  {signature}")


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
    console.print(f"Pairs: {', '.join(f'{n:,} {split}' for split, n in diagnosis.pairs.items())}")
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
        raise RecipeError(f"there is no shipped recipe {name}; there are {', '.join(known)}")
    print(known[name], end="")


def print_keys() -> None:
    for name, default, description in keys():
        print(f"{name}\n    {description}" + (f"  [{default}]" if default else ""))
