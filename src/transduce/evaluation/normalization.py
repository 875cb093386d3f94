"""Text normalisation before error rates are counted: what should not count as an error.

Both sides, predictions and references, are normalised in the same way. What was done is part of the
result: rates with different normalisation cannot be compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from unicodedata import category

from transduce.data.text.numbers import numbers_in_words, one_reading
from transduce.errors import RecipeError
from transduce.recipe import nearest

Normalize = Callable[[str], str]

APOSTROPHE = re.compile(r"(?<=\w)['’ʼ](?=\w)")
KEPT = "\ue000"  # stands for an apostrophe inside a word


def normalizer(names: Sequence[str]) -> Normalize:
    """A text normalised by the named steps, in the order of STEPS. Raises RecipeError."""
    for name in names:
        if name not in STEPS:
            near = nearest(name, STEPS, f"; there are {', '.join(STEPS)}")
            raise RecipeError(f"there is no normalisation {name}{near}")
    steps = [step for name, step in STEPS.items() if name in names]

    def normalize(text: str) -> str:
        for step in steps:
            text = step(text)
        return " ".join(text.split()) if steps else text

    return normalize


def names_of(given: str) -> list[str]:
    """The names in `lower,punctuation`."""
    return [name.strip() for name in given.lower().split(",") if name.strip()]


def without_punctuation(text: str) -> str:
    """Dashes and slashes part words; apostrophes inside words stay, all alike; the rest goes."""
    text = APOSTROPHE.sub(KEPT, text)
    found = (
        " " if category(sign) == "Pd" or sign == "/" else "" if category(sign)[0] == "P" else sign
        for sign in text
    )
    return "".join(found).replace(KEPT, "'")


STEPS: dict[str, Normalize] = {
    "numbers": lambda text: one_reading(numbers_in_words(text)),
    "lower": str.lower,
    "punctuation": without_punctuation,
}
"""By name, in the order in which they are applied: signs are part of numbers."""
