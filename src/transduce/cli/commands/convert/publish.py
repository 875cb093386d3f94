"""The command publish: a model on the Hugging Face hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.commands.options import ModelArgument


def publish(
    model: ModelArgument,
    repository: Annotated[
        str, typer.Argument(metavar="USER/NAME", help="Where on the Hugging Face hub.")
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Only you can see it, if it is made now.")
    ] = False,
    revision: Annotated[
        str | None, typer.Option(help="The branch; made where it is missing. Default: main.")
    ] = None,
) -> None:
    """Publish a model on the Hugging Face hub. Needs `hf auth login`, or HF_TOKEN."""
    from transduce.checksums import is_ours
    from transduce.hub.locate import SCHEME, load_hub, parse_address
    from transduce.hub.publish import published_files, upload
    from transduce.inspection.model_card import card_text
    from transduce.recipe import dump_recipe
    from transduce.tasks.folder import CARD, RECIPE, WRITTEN, check_sums
    from transduce.tasks.transduce import load

    plain = repository.removeprefix(SCHEME)
    address = parse_address(f"{SCHEME}{plain}" + (f"@{revision}" if revision else ""))
    load_hub()
    loaded = load(model)
    check_sums(model)
    # Where data and teacher lie on this machine is nobody's concern.
    data = loaded.recipe.data.model_copy(update={"folder": None})
    train = loaded.recipe.train
    if train.teacher is not None:
        name = Path(train.teacher.model).name
        train = train.model_copy(
            update={"teacher": train.teacher.model_copy(update={"model": name})}
        )
    recipe = loaded.recipe.model_copy(update={"data": data, "train": train})
    changed = {RECIPE: f"{WRITTEN}\n{dump_recipe(recipe)}"}
    if is_ours(model / CARD) or not (model / CARD).exists():
        changed[CARD] = card_text(loaded, model, str(address))
    else:
        changed[CARD] = (model / CARD).read_text("utf-8")
        print(f"transduce: {model / CARD} is your own and is published as it is", file=sys.stderr)
    files = published_files(model, changed)
    place = upload(address, files, private)
    size = sum(len(one) if isinstance(one, bytes) else one.stat().st_size for one in files.values())
    print(f"Published {', '.join(sorted(files))} ({size / 1e6:,.1f} MB) at {place}")
    print(f'Try:\n  transduce run {address} "..."')
