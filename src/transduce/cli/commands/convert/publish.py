"""The command publish: a model on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transduce.cli.commands.options import ModelArgument
from transduce.terminal import say

if TYPE_CHECKING:
    from transduce.recipe import Recipe


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
    from transduce.cli.try_model import run_command
    from transduce.hub import SCHEME, load_hub, parse_address, published_files, upload
    from transduce.inspection.model_card import card_text
    from transduce.recipe import RECIPE, dump_recipe
    from transduce.tasks.folder import CARD, WRITTEN, check_sums
    from transduce.tasks.members import folder_in_use, says_alone
    from transduce.tasks.transduce import load

    plain = repository.removeprefix(SCHEME)
    address = parse_address(f"{SCHEME}{plain}" + (f"@{revision}" if revision else ""))
    load_hub()
    if sentence := says_alone(model, "published"):
        say(sentence)
    model = folder_in_use(model)
    loaded = load(model, members=False)
    check_sums(model)
    changed = {RECIPE: f"{WRITTEN}\n{dump_recipe(_without_places(loaded.recipe))}"}
    if is_ours(model / CARD) or not (model / CARD).exists():
        changed[CARD] = card_text(loaded, model, str(address))
    else:
        changed[CARD] = (model / CARD).read_text("utf-8")
        say(f"{model / CARD} is your own and is published as it is")
    files = published_files(model, changed)
    place = upload(address, files, private)
    size = sum(len(one) if isinstance(one, bytes) else one.stat().st_size for one in files.values())
    print(f"Published {', '.join(sorted(files))} ({size / 1e6:,.1f} MB) at {place}")
    print(f"Try:\n  {run_command(str(address), loaded.recipe)}")


def _without_places(recipe: Recipe) -> Recipe:
    """The recipe without the folders of this machine: of the data, the teacher, the model that
    training started from.
    """
    from transduce.hub import is_hub_address

    changed: dict[str, Any] = {}
    for key, field in (("teacher", "model"), ("start", "from")):
        section: Any = getattr(recipe.train, key)
        place = None if section is None else getattr(section, field)
        if place is not None and not is_hub_address(place):
            changed[key] = section.model_copy(update={field: Path(place).name})
    data = recipe.data.model_copy(update={"folder": None})
    train = recipe.train.model_copy(update=changed)
    return recipe.model_copy(update={"data": data, "train": train})
