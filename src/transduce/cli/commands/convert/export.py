"""The command export: convert a model for another engine, or quantize it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.commands.options import AdapterOption, DataOverrides, ModelArgument, Overwrite
from transduce.terminal import say


def export(
    model: ModelArgument,
    overrides: DataOverrides = None,
    *,
    to: Annotated[
        str,
        typer.Option(
            help="ctranslate2, onnx, huggingface, native (transduce, quantized), html (a page with "
            "the model inside) or web (an ES module)."
        ),
    ],
    quantize: Annotated[
        str | None,
        typer.Option(help="int8 or bfloat16; for ctranslate2 also int8_float32 or float16."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Default: MODEL/ctranslate2, MODEL/onnx, MODEL/int8, MODEL/model.html"),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="Compare on the sources of this file, not on the validation set."),
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="The references for --source, one per line.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of pairs to compare.")] = 500,
    allow: Annotated[
        bool,
        typer.Option(
            "--allow-mismatch", help="Keep an export whose outputs differ from the model's."
        ),
    ] = False,
    adapter: AdapterOption = None,
    overwrite: Overwrite = False,
) -> None:
    """Export a model to another engine, or quantize it.

    An adapter becomes PEFT's own files (--to peft).
    """
    if adapter is not None:
        from transduce.errors import ModelError

        raise ModelError(
            f"a whole model is exported: merge the adapter first (transduce merge {adapter} --base "
            f"{model} --output FOLDER), and export that folder; an adapter that transduce trained "
            f"is merged where its own folder is exported (transduce export {adapter})"
        )
    if to == "peft":
        from transduce.interop.adapters import export_peft

        print(f"The adapter is in {export_peft(model, output)}, in PEFT's own files.")
        return
    if to in ("html", "web"):
        _export_for_browsers(model, to, quantize, output, overwrite)
        return
    from transduce.interop.export import export_folder
    from transduce.interop.parity import Compared, NotCompared
    from transduce.tasks.members import says_alone

    if sentence := says_alone(model, "exported"):
        say(sentence)
    place, parity = export_folder(
        model,
        to,
        quantize=quantize,
        folder=output,
        files=(source, target),
        limit=limit,
        allow=allow,
        overrides=overrides or [],
        overwrite=overwrite,
    )
    if isinstance(parity, Compared):
        print(f"{parity.weights:,} weights were read back, all as they are in the model.")
        print(f"The export is in {place}.")
        return
    if isinstance(parity, NotCompared):
        print(f"Not compared with the model: {parity.why}.")
    else:
        print(f"Compared on {parity.pairs:,} pairs of {parity.data}:")
        for line in parity.lines():
            print(f"  {line}")
    if to == "huggingface":
        print(f"The export is in {place}; its README.md says how transformers loads it.")
    else:
        from transduce.cli.try_model import run_command
        from transduce.recipe import RECIPE, load_recipe
        from transduce.tasks.members import folder_in_use

        recipe = load_recipe(folder_in_use(model) / RECIPE)
        print(f"The export is in {place}. Try:\n  {run_command(place, recipe)}")


def _export_for_browsers(
    model: Path, to: str, quantize: str | None, output: Path | None, overwrite: bool
) -> None:
    """A page, or a folder with an ES module; in int8 unless float32 is asked for."""
    from transduce.errors import ModelError
    from transduce.web import export as web

    if quantize not in (None, "int8", "float32"):
        raise ModelError(f"for {to} quantize must be int8 (the default) or float32, not {quantize}")
    int8 = quantize != "float32"
    if to == "html":
        page = web.export_html(
            model, output or model / web.PAGE_NAME, int8=int8, overwrite=overwrite
        )
        print(f"The model is in {page}, {page.stat().st_size:,} bytes: open it in a browser.")
        return
    folder = web.export_folder(model, output or model / "web", int8=int8, overwrite=overwrite)
    print(
        f"The model is in {folder}: serve it (python -m http.server -d {folder}), or import "
        f"index.js.\n  const model = await load({web.MODEL!r}); model.run(...).text"
    )
