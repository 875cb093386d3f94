"""Arguments and options shared by several commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from transduce.cores import count_cores

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE...", help="Overrides, e.g. train.lr=3e-4 model.width=256."),
]
DataOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE...",
        help="Overrides of the model's recipe, e.g. data.folder=../corpora if files have moved.",
    ),
]
ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model folder, written by `transduce train`.")
]
Beam = Annotated[
    int | None, typer.Option(help="Beam size; 1 is greedy search. Default: as in the recipe.")
]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Length penalty: larger favours longer outputs; 0: off.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Workers = Annotated[
    int,
    typer.Option(min=0, help="Worker processes for a long input, on a CPU. Default: one per core."),
]
Precision = Annotated[
    str, typer.Option(help="auto, float32, bfloat16 or (on a CPU) int8: precision of decoding.")
]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", help="ctranslate2 or onnx, after export. Default: transduce's own."),
]
Sample = Annotated[
    bool, typer.Option("--sample", help="Sample tokens at random instead of searching.")
]
Temperature = Annotated[
    float, typer.Option(help="Sampling temperature: below 1 safer, above 1 more varied.")
]
TopK = Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0: from all.")]
TopP = Annotated[
    float,
    typer.Option(help="Nucleus sampling: from the most likely tokens with total probability p."),
]
SamplingSeed = Annotated[int, typer.Option(help="Random seed of sampling.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
EnsembleOption = Annotated[
    list[Path] | None, typer.Option("--ensemble", help="Another model of an ensemble; repeatable.")
]


def count_processes(asked: int, many: bool) -> int:
    """The number of worker processes on a CPU.

    With several, each has one OpenMP thread, which must be set before torch is loaded.
    """
    count = asked or (count_cores() if many else 1)
    if count > 1:
        os.environ["OMP_NUM_THREADS"] = "1"
    return count
