"""Fonts: which installed font has which script, and what to install if none has."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache

# Most scripts have a font of their name, such as Noto Sans Devanagari; these do not.
FONT_OF = {
    "CJK": "Noto Sans CJK SC",
    "HIRAGANA": "Noto Sans CJK JP",
    "KATAKANA": "Noto Sans CJK JP",
    "HANGUL": "Noto Sans CJK KR",
    "BOPOMOFO": "Noto Sans CJK TC",
}
SYMBOLS = "symbols"


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
