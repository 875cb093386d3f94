"""Save a figure, each text with a font that has its script."""

from __future__ import annotations

import textwrap
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.errors import TransduceError
from transduce.inspection.fonts import families_for, missing, what_to_install
from transduce.storage import make_folder, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#222222"
WIDTH_OF_LETTER = 0.07  # inches, at 8 points
# Fallback fonts for scripts that the default font lacks, as far as they are installed.
FALLBACK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Noto Sans",
    "Arial Unicode MS",
    "Hiragino Sans",
    "PingFang SC",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "WenQuanYi Zen Hei",
)


def save(figure: Figure, path: Path) -> None:
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise TransduceError(f"{path} cannot be drawn: its name should end in .png, .svg or .pdf.")
    make_folder(path.parent)
    _find_fonts(figure, path)

    def write(part: Path) -> None:
        with warnings.catch_warnings():
            no_glyph_warnings()
            figure.savefig(part, dpi=160, bbox_inches="tight", pad_inches=0.12)

    write_file(path, write)


def _find_fonts(figure: Figure, path: Path) -> None:
    """Give each text the fonts it needs; if there are none, the figure and a warning say so."""
    from matplotlib.text import Text

    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]
    boxes: set[str] = set()
    for text in texts:
        families = families_for(text.get_text(), fonts())
        text.set_fontfamily(families)
        boxes |= missing(text.get_text(), families)
    if warning := what_to_install(boxes):
        lines = textwrap.fill(warning, max(30, int(figure.get_figwidth() / WIDTH_OF_LETTER)))
        figure.text(0.0, -0.24 / figure.get_figheight(), lines, fontsize=8, color=INK, va="top")
        warnings.warn(f"{path}: {warning[0].lower()}{warning[1:]}", stacklevel=3)


def no_glyph_warnings() -> None:
    # A character without a font becomes a box; _find_fonts has warned about it.
    warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
    warnings.filterwarnings("ignore", message=r"Matplotlib currently does not support .* natively")


@cache
def fonts() -> list[str]:
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in FALLBACK_FONTS if name in installed)]
