"""The command score: what a model thinks of given texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.commands.options import Device, EngineOption, ModelArgument


def score(
    model: ModelArgument,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A file of sources, or both in one TSV; of a language model, texts or prompts.",
        ),
    ],
    target: Annotated[
        Path | None, typer.Argument(metavar="TARGET", help="The targets, line by line.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a pair.")] = False,
    engine: EngineOption = None,
    device: Device = "auto",
) -> None:
    """Print the log-probability and the perplexity of given texts."""
    from transduce.cli.input import read_lines_of, read_sources
    from transduce.cli.printing import print_scores
    from transduce.interop.engine import open_model
    from transduce.tasks import LanguageModel

    transducer = open_model(model, engine, device)
    if isinstance(transducer, LanguageModel) and target is None:
        texts = (transducer.score(some) for some in read_sources(None, source))
        print_scores(texts, as_json=json, noun="texts")
        return
    pairs = read_lines_of(source, target)
    print_scores((transducer.score(*some) for some in pairs), as_json=json)
