"""Unicode normal forms: é as one character (NFC), or as e and ´ (NFD). Both are the same text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal
from unicodedata import combining, is_normalized, normalize

Form = Literal["NFC", "NFD"]
FORMS: tuple[Form, ...] = ("NFC", "NFD")
ENOUGH = 10_000  # texts that tell one form from the other


def composed(text: str) -> str:
    """The text in NFC, in which two texts are compared."""
    return text if text.isascii() else normalize("NFC", text)


def form_of(texts: Iterable[str]) -> Form | None:
    """NFC or NFD, whichever most of the texts are in; None where both forms are alike."""
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


def settled(text: str) -> str:
    """The beginning of a text that nothing written after it can change.

    An accent that follows joins the last letter, or is sorted among its accents.
    """
    return text[: _last_letter(text)]


def continued(text: str, rest: str, form: Form | None) -> str:
    """A text and what follows it, in a form; of the text itself only the end may change."""
    if form is None or not rest:
        return text + rest
    end = _last_letter(text)
    return text[:end] + normalize(form, text[end:] + rest)


def _last_letter(text: str) -> int:
    """Where the last character is that is no accent."""
    for place in range(len(text) - 1, -1, -1):
        if not combining(text[place]):
            return place
    return 0
