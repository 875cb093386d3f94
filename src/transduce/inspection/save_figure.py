"""Save a figure, each text with an installed font that has its script; where there is none, say
what to install."""

from __future__ import annotations

import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.errors import TransduceError
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

# Most scripts have a font of their name, such as Noto Sans Devanagari; these do not.
FONT_OF = {
    "CJK": "Noto Sans CJK SC",
    "HIRAGANA": "Noto Sans CJK JP",
    "KATAKANA": "Noto Sans CJK JP",
    "HANGUL": "Noto Sans CJK KR",
    "BOPOMOFO": "Noto Sans CJK TC",
}
SYMBOLS = "symbols"


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


def families_for(text: str, usual: Sequence[str]) -> list[str]:
    """The usual fonts, followed by installed ones that have the missing characters."""
    families = list(usual)
    lacking = missing(text, families)
    for name in _installed() if lacking else ():
        if lacking & _letters_of(name):
            families.append(name)
            lacking -= _letters_of(name)
        if not lacking:
            break
    return families


def missing(text: str, families: Iterable[str]) -> set[str]:
    """The characters of a text that none of the fonts has."""
    left = {letter for letter in text if letter.isprintable() and not letter.isspace()}
    for name in families:
        left -= _letters_of(name)
    return left


def what_to_install(letters: Iterable[str]) -> str:
    """A sentence about characters that are drawn as boxes; empty if there are none."""
    scripts = sorted({_script(letter) for letter in letters})
    if not scripts:
        return ""
    fonts = [FONT_OF.get(script, f"Noto Sans {script.title()}") for script in scripts]
    named = ", ".join(
        script if script in ("CJK", SYMBOLS) else script.title() for script in scripts
    )
    install = " and ".join(dict.fromkeys(fonts))
    return f"No installed font has {named}, drawn as boxes here: install {install}."


def _script(letter: str) -> str:
    """The script of a character, from its Unicode name: DEVANAGARI LETTER KA."""
    if unicodedata.category(letter)[0] not in "LM":
        return SYMBOLS
    return unicodedata.name(letter, SYMBOLS).split()[0]


@cache
def _installed() -> list[str]:
    """All font families; sans-serif ones first, which match the rest of a figure."""
    from matplotlib.font_manager import fontManager

    # The Last Resort font has a box for every character, which is of no use here.
    found = {font.name for font in fontManager.ttflist}
    names = [name for name in found if not name.startswith("Last Resort")]
    return sorted(names, key=lambda name: ("Sans" not in name, name))


@cache
def _letters_of(family: str) -> frozenset[str]:
    from matplotlib.font_manager import fontManager, get_font

    for font in fontManager.ttflist:
        if font.name == family:
            try:
                return frozenset(map(chr, get_font(font.fname).get_charmap()))
            except (RuntimeError, OSError):  # moved away since, or no font that can be read
                continue
    return frozenset()
