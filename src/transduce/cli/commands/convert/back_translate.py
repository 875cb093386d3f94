"""The command back-translate: synthetic pairs from text of the target language."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer

from transduce.cli.commands.batch import batch
from transduce.cli.commands.options import (
    NONE_GIVEN,
    SAMPLING,
    DecodingOptions,
    Device,
    ModelArgument,
    Overwrite,
    Precision,
)


def back_translate(
    model: ModelArgument,
    file: Annotated[
        list[str],
        typer.Option(
            "--input",
            "-i",
            help="Text of the target language, one sentence per line, also .gz or .xz; repeatable.",
        ),
    ],
    output: Annotated[Path, typer.Option(help="The file of pairs to write, .tsv.")],
    mark: Annotated[
        str | None,
        typer.Option(help="A tag for each pair, in a third column; in a recipe: tags: 2."),
    ] = None,
    settings: Annotated[
        Mapping[str, Any],
        DecodingOptions("tags", "beam", "length_penalty", *SAMPLING, "max_length"),
    ] = NONE_GIVEN,
    workers: Annotated[
        int, typer.Option(min=0, help="Worker processes. Default: one per core or GPU.")
    ] = 0,
    shard_lines: Annotated[int, typer.Option(min=1, help="Maximum lines per shard.")] = 100_000,
    device: Device = "auto",
    precision: Precision = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Back-translation: pairs from text of the target language.

    Writes lines of source, tab, target. A stopped command goes on where it was.
    """
    from transduce.batch_inference.inputs import find_inputs, kind_of
    from transduce.errors import DataError
    from transduce.recipe import InvalidValue, plain_tag
    from transduce.storage import check_free, check_name, write_file

    check_name(output, (".tsv",))
    check_free([output], overwrite)
    try:
        mark = None if mark is None else plain_tag(mark.removeprefix("<").removesuffix(">"))
    except InvalidValue as misfit:
        raise DataError(f"--mark {misfit.message}") from None
    if (kind := kind_of(find_inputs(file))) != "text":
        raise DataError(f"--input is {kind}; give plain text, one sentence per line")
    job = output.with_name(f"{output.name}.job")
    with redirect_stdout(StringIO()):  # its summary is of files that are removed here
        batch(
            model,
            str(job),
            file,
            workers=workers,
            kind="tsv",
            shard_lines=shard_lines,
            settings=settings,
            device=device,
            precision=precision,
        )
    counts = [0, 0]

    def write(part: Path) -> None:
        counts[:] = [0, 0]
        with part.open("w", encoding="utf-8", newline="\n") as pairs:
            for target, source in _rows(job):
                counts[not source.strip()] += 1
                if source.strip():
                    pairs.write("\t".join([source, target, *([mark] if mark else [])]) + "\n")

    write_file(output, write)
    shutil.rmtree(job)
    lines = "line" if counts[1] == 1 else "lines"
    left_out = f"; {counts[1]:,} {lines} without an output left out" if counts[1] else ""
    columns = ", tags: 2" if mark else ""
    print(f"{output}: {counts[0]:,} pairs{left_out}. In a recipe: {{file: {output}{columns}}}")


def _rows(job: Path) -> Iterator[list[str]]:
    """The input and the output of each line, in order."""
    for part in sorted(job.glob("part-*.tsv")):
        with part.open(encoding="utf-8", newline="\n") as file:
            next(file)  # the header
            for line in file:
                yield line.removesuffix("\n").split("\t")
