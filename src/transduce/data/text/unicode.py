"""Unicode normalisation forms: é as one character (NFC), or as e and ´ (NFD); and scripts without
spaces."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal
from unicodedata import combining, is_normalized, normalize

Form = Literal["NFC", "NFD"]
FORMS: tuple[Form, ...] = ("NFC", "NFD")
ENOUGH = 10_000  # texts that are enough to tell the form
# Scripts that are written without spaces between words: Thai, Lao, Burmese, Khmer, Chinese and
# Japanese characters.
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


def composed(text: str) -> str:
    """The text in NFC, for comparisons."""
    return text if text.isascii() else normalize("NFC", text)


def form_of(texts: Iterable[str]) -> Form | None:
    """NFC or NFD, whichever most of the texts are in; None if they do not differ."""
    found: Counter[Form] = Counter()
    for text in texts:
        if text.isascii():
            continue
        forms = [form for form in FORMS if is_normalized(form, text)]
        if len(forms) == 1:
            found[forms[0]] += 1
            if found.total() >= ENOUGH:
                break
    ranked: list[Form] = sorted(FORMS, key=lambda form: -found[form])
    return ranked[0] if found else None


def stable_prefix(text: str) -> str:
    """The prefix of a text that no following text can change.

    A following accent would combine with the last character, or be sorted among its accents.
    """
    return text[: _last_letter(text)]


def continued(text: str, rest: str, form: Form | None) -> str:
    """A text and its continuation in a normal form; of the text itself only the end may change."""
    if form is None or not rest:
        return text + rest
    end = _last_letter(text)
    return text[:end] + normalize(form, text[end:] + rest)


def _last_letter(text: str) -> int:
    """The index of the last character that is not a combining accent."""
    for place in range(len(text) - 1, -1, -1):
        if not combining(text[place]):
            return place
    return 0
