"""The command score: log-probability and perplexity of given targets."""

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
            help="Sources, one per line, or any table with both that `train` takes; for a "
            "language model, texts or prompts.",
        ),
    ],
    target: Annotated[
        Path | None, typer.Argument(metavar="TARGET", help="The targets, one per line.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per pair.")] = False,
    engine: EngineOption = None,
    device: Device = "auto",
) -> None:
    """Print log-probability and perplexity of given targets."""
    from transduce.automatic.given import given_file, trained_on
    from transduce.cli.input import read_lines_of, read_sources
    from transduce.cli.printing import print_scores
    from transduce.interop.engine import open_model
    from transduce.tasks import LanguageModel

    transducer = open_model(model, engine, device)
    if isinstance(transducer, LanguageModel) and target is None:
        texts = (
            transducer.score(some) for some in read_sources(None, given_file(source, None).path)
        )
        print_scores(texts, as_json=json, noun="texts")
        return
    pairs = read_lines_of(
        source,
        target,
        trained=trained_on(transducer.recipe),
        known=transducer.source_tokens.tags,
    )
    print_scores((transducer.score(*some) for some in pairs), as_json=json)
