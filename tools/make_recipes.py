"""Write the tables of docs/reference/recipes.md: python tools/make_recipes.py [--check]"""

from __future__ import annotations

import sys
from pathlib import Path

from transduce.recipe import (
    ConvolutionalDecoder,
    ConvolutionalEncoder,
    RecurrentDecoder,
    RecurrentEncoder,
    SectionKeys,
    TransformerEncoder,
    parse_recipe,
    sections,
)
from transduce.recipe.presets import PRESETS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "recipes.md"
DATA = "data: {train: {name: copy, split: train}, valid: {name: copy, split: valid}}"


def main() -> None:
    page = PAGE.read_text("utf-8")
    made = between(page, "presets", presets())
    made = between(made, "keys", "\n\n".join(table(section) for section in sections()))
    if "--check" not in sys.argv:
        PAGE.write_text(made, "utf-8")
    elif made != page:
        sys.exit(f"{PAGE} is out of date: python tools/make_recipes.py")


def between(page: str, name: str, text: str) -> str:
    """The page with what stands between the two markers of `name` replaced."""
    start, end = f"<!-- {name}: made by make_recipes.py -->", f"<!-- end of {name} -->"
    before, _, rest = page.partition(start)
    _, _, after = rest.partition(end)
    return f"{before}{start}\n\n{text}\n\n{end}{after}"


def presets() -> str:
    rows = ["| preset | width | encoder | decoder |", "| --- | --- | --- | --- |"]
    for name in PRESETS:
        model = parse_recipe(DATA, name, Path(), [f"model.preset={name}"]).model
        encoder, decoder = model.encoder, model.decoder
        if isinstance(encoder, TransformerEncoder):
            shape = f"{encoder.heads} heads, feed-forward {encoder.feed_forward}"
            cells = [f"{part.layers} Transformer blocks, {shape}" for part in (encoder, decoder)]
        elif isinstance(encoder, ConvolutionalEncoder):
            assert isinstance(decoder, ConvolutionalDecoder)
            cells = [
                f"{part.layers} convolutional blocks, kernel {part.kernel}"
                for part in (encoder, decoder)
            ]
        else:
            assert isinstance(encoder, RecurrentEncoder)
            assert isinstance(decoder, RecurrentDecoder)
            way = (
                "bidirectional" if encoder.bidirectional else "backwards" if encoder.reverse else ""
            )
            attention = f"{decoder.attention} attention, context: {decoder.context}"
            cells = [
                f"{layers(encoder.layers)} {encoder.cell}, {way or 'forwards'}",
                f"{layers(decoder.layers)} {decoder.cell}, "
                + ("no attention" if decoder.attention == "none" else attention),
            ]
        rows.append(f"| `{name}` | {model.width} | {cells[0]} | {cells[1]} |")
    return "\n".join(rows)


def layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"


def table(section: SectionKeys) -> str:
    places = ", ".join(f"`{place}`" for place in section.places if place) or "Top level"
    about = section.about[0].upper() + section.about[1:].rstrip(".") + "."
    rows = [
        f"### {places}",
        "",
        about,
        "",
        "| key | takes | default | |",
        "| --- | --- | --- | --- |",
    ]
    for key in section.keys:
        default = f"`{key.default}`" if key.default else "required" if key.required else ""
        rows.append(f"| `{key.name}` | {key.takes} | {default} | {key.about} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
