"""The command look: an HTML page of attention, next-token alternatives and the beam."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from transduce.cli.commands.options import (
    NONE_GIVEN,
    AdapterOption,
    Base,
    DecodingOptions,
    Device,
    ModelArgument,
    Overwrite,
    Precision,
    model_folder,
)


def look(
    model: ModelArgument,
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT...", help="Texts, or audio files for a speech model."),
    ],
    output: Annotated[
        Path,
        typer.Option(help="The page, .html; or .png, .svg, .pdf: mean attention as a figure."),
    ] = Path("look.html"),
    target: Annotated[
        str | None, typer.Option(help="A given output, instead of the model's own.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="Another model to show side by side on the same inputs.",
            parser=model_folder,
        ),
    ] = None,
    attribution: Annotated[
        bool,
        typer.Option(
            "--attribution",
            help="Also attribution by integrated gradients; slower.",
        ),
    ] = False,
    settings: Annotated[
        Mapping[str, Any],
        DecodingOptions(
            "beam", "bidirectional", "max_length", "prefix", "include", "exclude", "tags"
        ),
    ] = NONE_GIVEN,
    adapter: AdapterOption = None,
    base: Base = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """Look inside a model: attention and alternatives as HTML."""
    from transduce.inspection.look import look as look_at
    from transduce.inspection.look.show import check_suffix
    from transduce.interop.engine import open_model
    from transduce.storage import check_free
    from transduce.tasks import AudioInputModel
    from transduce.tasks.members import folder_in_use
    from transduce.terminal import say

    check_suffix(output)
    check_free([output], overwrite)
    # Without the other models of its folder: the page shows one network.
    model = folder_in_use(model)
    models = [open_model(model, None, device, precision, adapter=adapter, base=base, members=False)]
    if against is not None:
        against = folder_in_use(against)
        models.append(open_model(against, None, device, precision, members=False))
    asked = dict(settings)
    tags = asked.pop("tags", [])
    for one in models:
        one.freeze().tags_of(tags)
    first, other = models[0], models[1] if against is not None else None
    if isinstance(first, AudioInputModel):
        asked |= {"tags": tags} if tags else {}
    else:
        inputs = first.tagged(inputs, tags)
    found = look_at(first, inputs, target=target, against=other, attribution=attribution, **asked)
    found.save(output)
    for pages in found.looks:
        for page in pages:
            if page["warning"]:
                say(page["warning"])
    size = output.stat().st_size
    open_it = ": open it in a browser" if output.suffix.lower() in (".html", ".htm") else ""
    print(f"Wrote {output} ({size / 1000:,.0f} kB){open_it}.")
