"""Where the translations of a glossary stand in an output.

Search with required phrases alone puts an improbable translation off, often until after the end of
the sentence. So translations are placed first, from left to right. What the model writes without a
glossary shows by attention which words are of a term; the translation takes their place, and the
model goes on after it: as it likes, or with the word that followed, so that it does not write its
own translation too; what has the better score is taken. That gives a prefix of the output which has
all translations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple
from unicodedata import normalize

from transduce.decoding.constraints.glossary import UNSPACED, WORD
from transduce.decoding.constraints.read import AnyOf
from transduce.decoding.output import Output
from transduce.decoding.word_alignment import alignment_of

Search = Callable[[Sequence[int], Sequence[str]], Sequence[Output]]
"""The best output, with attention, of each source by number, which begins with a prefix."""

LETTER = re.compile(rf"[^\W{UNSPACED}]")  # of scripts that part words by blanks


class Placed(NamedTuple):
    """What is known of the output of a source."""

    prefix: str
    """As far as the last translation that was placed."""
    unplaced: list[AnyOf]
    """The others: required phrases, wherever they stand."""


def place_terms(
    sources: Sequence[str],
    terms: Sequence[Sequence[AnyOf]],
    prefixes: Sequence[str],
    search: Search,
    is_allowed: Callable[[int, str], bool],
) -> list[Placed]:
    """The prefix of the output of each source, with the translations of its terms.

    terms: of each source. prefixes: what its output begins with already. is_allowed: whether the
    output of a source, by number, may begin with a text.
    """
    chosen, unplaced = list(prefixes), [list[AnyOf]() for _ in terms]
    left = [list(of_one) for of_one in terms]
    tried = {number: [prefixes[number]] for number, of_one in enumerate(terms) if of_one}
    while tried:
        asked = [(number, prefix) for number, some in tried.items() for prefix in some]
        outputs = search([number for number, _ in asked], [prefix for _, prefix in asked])
        best: dict[int, Output] = {}
        for (number, prefix), output in zip(asked, outputs, strict=True):
            # Of the whole text: a score by length would favour those that say something twice.
            if number not in best or output.log_probability > best[number].log_probability:
                best[number], chosen[number] = output, prefix
        tried = {}
        for number, output in best.items():
            if not left[number]:
                continue
            term, some = _next_prefixes(sources[number], output, len(chosen[number]), left[number])
            left[number].remove(term)
            allowed = [prefix for prefix in some if is_allowed(number, prefix)]
            if not allowed:
                unplaced[number].append(term)
            if left[number] or len(allowed) > 1:
                tried[number] = allowed or [chosen[number]]
            elif allowed:  # nothing is left to choose
                chosen[number] = allowed[0]
    return [Placed(*one) for one in zip(chosen, unplaced, strict=True)]


def _next_prefixes(
    source: str, output: Output, done: int, terms: Sequence[AnyOf]
) -> tuple[AnyOf, list[str]]:
    """The first of the terms in an output, and the output up to there with each of its wordings.

    done: the characters of its prefix.
    """
    text = normalize("NFC", source)
    alignment = alignment_of(text, output)
    places = []
    for number, term in enumerate(terms):
        assert term.term is not None
        written = _written(output.text, term, done)
        start, end = written or alignment.find(*(len(text) + place for place in term.term))
        places.append((max(start, done), number, start, end, written is not None))
    _, number, start, end, is_written = min(places)
    term = terms[number]
    if is_written:
        return term, [output.text[:end]]
    if start < done:  # its words are in the prefix
        before = _after_word(output.text, done)
        blank = " " if " " in text and LETTER.match(before[-1]) else ""
        return term, [before + blank + wording for wording in term.wordings]
    begun = [output.text[:start] + wording for wording in term.wordings]
    following = WORD.search(output.text, end)
    if following is None:
        return term, begun
    return term, begun + [prefix + output.text[end : following.end()] for prefix in begun]


def _written(text: str, term: AnyOf, done: int) -> tuple[int, int] | None:
    """Where an output has a wording already, after its prefix."""
    found = [
        match.span()
        for wording in term.wordings
        for match in [re.compile(rf"(?<!\w){re.escape(wording)}(?!\w)").search(text, done)]
        if match
    ]
    return min(found, default=None)


def _after_word(text: str, place: int) -> str:
    """A text up to the end of the word at a place."""
    while place < len(text) and LETTER.match(text[place]):
        place += 1
    return text[:place]
