"""Draw docs/figures/layers.svg from the package's imports: python tools/make_layers.py [--check]

Layers are derived: a package stands one layer above the highest package that it imports. Its
description is the first sentence of its docstring. `--check` compares packages, layers and imports;
numbers of modules and lines may be off by a tenth, as every commit changes them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape

PROJECT = Path(__file__).resolve().parents[1]
ROOT = PROJECT / "src" / "transduce"
FIGURE = PROJECT / "docs" / "figures" / "layers.svg"
WIDTH, ROW, GAP = 930, 24, 10
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.name { font-weight: 600 } .size { fill: #59636e; font-size: 11px }
rect { fill: #eef2f7; stroke: #8b98a8 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .size { fill: #9aa7b4 } rect { fill: #1c2430; stroke: #5b6b7d }
}
</style>"""


@dataclass(frozen=True)
class Package:
    """A package, or a module at the top: what it is, what it imports, how large it is."""

    name: str
    about: str
    imports: tuple[str, ...]
    modules: int
    lines: int


@cache
def packages() -> dict[str, Package]:
    folders = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}
    names = folders | {path.stem for path in ROOT.glob("[!_]*.py")}
    return {name: _package(name, names) for name in sorted(names)}


def _package(name: str, known: set[str]) -> Package:
    folder = ROOT / name
    first = folder / "__init__.py" if folder.is_dir() else ROOT / f"{name}.py"
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [first]
    texts = [file.read_text("utf-8") for file in files]
    imports = {other for text in texts for other in _imports(ast.parse(text))}
    docstring = ast.get_docstring(ast.parse(first.read_text("utf-8"))) or ""
    about = re.split(r"(?<=\.)\s|\n\n", " ".join(docstring.split()))[0].rstrip(".")
    lines = sum(len(text.splitlines()) for text in texts)
    return Package(name, about, tuple(sorted(imports & known - {name})), len(files), lines)


def _imports(tree: ast.Module) -> Iterator[str]:
    """The names that follow `transduce.` in the imports of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "transduce":
            dotted = [f"transduce.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            dotted = [node.module or ""]
        else:
            continue
        yield from (name.split(".")[1] for name in dotted if name.startswith("transduce."))


@cache
def layer_of(name: str) -> int:
    """0 for a package that imports no other."""
    return 1 + max((layer_of(other) for other in packages()[name].imports), default=-1)


def layers() -> list[list[Package]]:
    """From the lowest layer up."""
    found: dict[int, list[Package]] = {}
    for package in packages().values():
        found.setdefault(layer_of(package.name), []).append(package)
    return [found[number] for number in sorted(found)]


def figure() -> str:
    """The SVG: the highest layer at the top; a tooltip lists what a package imports."""
    body, y = [], GAP
    for group in reversed(layers()):
        height = ROW * len(group) + 8
        size = f'width="{WIDTH - 2}" height="{height}"'
        body.append(f'<rect x="1" y="{y}" {size} rx="5"/>')
        for place, package in enumerate(group):
            body += _row(package, y + 20 + ROW * place)
        y += height + GAP
    size = f'viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}"'
    label = 'role="img" aria-label="Layers of the package, the lowest at the bottom"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>'
    return "\n".join([opening, STYLE, *body, "</svg>", ""])


def _row(package: Package, y: int) -> list[str]:
    noun = "module" if package.modules == 1 else "modules"
    size = f"{package.modules} {noun}, {package.lines:,} lines"
    uses = ", ".join(package.imports) or "nothing"
    return [
        f"<g><title>{package.name} (layer {layer_of(package.name)}) imports {uses}</title>",
        f'<text class="name" x="12" y="{y}">{package.name}</text>',
        f'<text x="136" y="{y}">{escape(package.about)}</text>',
        f'<text class="size" text-anchor="end" x="{WIDTH - 12}" y="{y}">{size}</text></g>',
    ]


def structure(svg: str) -> list[str]:
    """What a figure says of packages, layers and imports."""
    return re.findall(r"<title>(.*?)</title>", svg)


def sizes(svg: str) -> list[int]:
    """The numbers of modules and lines in a figure."""
    found = re.findall(r">(\d+) modules?, ([\d,]+) lines<", svg)
    return [int(number.replace(",", "")) for pair in found for number in pair]


def is_current(svg: str) -> bool:
    now = figure()
    if structure(svg) != structure(now):
        return False
    pairs = zip(sizes(svg), sizes(now), strict=True)
    return all(abs(old - new) <= max(2, 0.1 * new) for old, new in pairs)


def main() -> None:
    if "--check" not in sys.argv:
        FIGURE.write_text(figure(), "utf-8")
    elif not FIGURE.is_file() or not is_current(FIGURE.read_text("utf-8")):
        sys.exit(f"{FIGURE} is out of date: python tools/make_layers.py")


if __name__ == "__main__":
    main()
