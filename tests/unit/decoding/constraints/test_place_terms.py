"""Translations of a glossary take the place of the words that are of their terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from transduce.decoding.constraints.glossary import Glossary
from transduce.decoding.constraints.place_terms import Search, place_terms
from transduce.decoding.output import Output

SOURCE = "a dog sees a red ball ."
FREE = "Ein Hund sieht einen roten Ball ."
ORDER = [0, 1, 2, 3, 4, 5, 6]  # of the source words that the words of FREE are of


def output(source: str, text: str, order: Sequence[int], log_probability: float) -> Output:
    """An output whose words attend to one source word each."""
    tokens, words = [*text.split(), "</s>"], [*source.split(), "</s>"]
    attention = np.full((2, 2, len(tokens), len(words)), 0.01, np.float32)
    for place, of in enumerate([*order, len(words) - 1][: len(tokens)]):
        attention[:, :, place, of] = 1.0
    return Output(
        text,
        log_probability,
        tokens=tokens,
        source_tokens=words,
        attention=attention,
        log_probability=log_probability,
    )


def searching(likely: Callable[[str], float] = lambda prefix: 0.0) -> tuple[Search, list[str]]:
    """A search that writes FREE from the place of a prefix on, and all prefixes it is asked for.

    likely: the log-probability of an output with a prefix.
    """
    asked: list[str] = []

    def search(numbers: Sequence[int], prefixes: Sequence[str]) -> list[Output]:
        asked.extend(prefixes)
        found = []
        for prefix in prefixes:
            size = len(prefix.split())
            text = " ".join([*prefix.split(), *FREE.split()[size:]])
            found.append(output(SOURCE, text, ORDER, likely(prefix)))
        return found

    return search, asked


def placed(glossary: dict[str, str | list[str]], search: Search, prefix: str = "") -> str:
    terms = Glossary(glossary).phrases(SOURCE)
    (found,) = place_terms([SOURCE], [terms], [prefix], search, lambda _, text: "?" not in text)
    return found.prefix


def test_a_translation_takes_the_place_of_the_words_that_are_of_its_term() -> None:
    search, asked = searching()
    assert placed({"dog": "Vierbeiner"}, search) == "Ein Vierbeiner"
    assert asked == ["", "Ein Vierbeiner", "Ein Vierbeiner sieht"]


def test_the_word_that_followed_goes_on_where_that_is_likelier() -> None:
    search, _ = searching(lambda prefix: 1.0 if prefix.endswith("sieht") else 0.0)
    assert placed({"dog": "Vierbeiner"}, search) == "Ein Vierbeiner sieht"


def test_several_terms_from_left_to_right() -> None:
    search, _ = searching()
    found = placed({"red ball": "rote Kugel", "dog": "Vierbeiner"}, search)
    assert found == "Ein Vierbeiner sieht einen rote Kugel"


def test_the_likeliest_wording() -> None:
    search, asked = searching(lambda prefix: 1.0 if "Tieres" in prefix else 0.0)
    assert placed({"dog": ["Tier", "Tieres"]}, search) == "Ein Tieres"
    assert "Ein Tier" in asked


def test_what_is_written_already_stays() -> None:
    search, asked = searching()
    found = placed({"dog": "roten Ball", "sees": "sieht"}, search)
    assert asked[1] == "Ein Hund sieht"
    assert found == "Ein Hund sieht einen roten Ball"
    # A part of a word is not, nor is what the prefix has.
    assert placed({"dog": "sie"}, searching()[0]) == "Ein sie"
    assert placed({"ball": "Hund"}, searching()[0], "Ein Hund") == "Ein Hund sieht einen roten Hund"


def test_a_translation_may_be_the_first_word() -> None:
    search, asked = searching()
    assert placed({"a": "Jener"}, search) == "Jener"
    assert asked == ["", "Jener", "Jener Hund"]


def test_what_is_not_allowed_is_not_placed() -> None:
    search, _ = searching()
    assert placed({"dog": ["Tier?", "Tier"]}, search) == "Ein Tier"
    terms = Glossary({"dog": "Tier?", "ball": "Kugel"}).phrases(SOURCE)
    (found,) = place_terms([SOURCE], [terms], [""], search, lambda _, text: "?" not in text)
    assert found == ("Ein Hund sieht einen roten Kugel", [terms[0]])


def test_a_term_whose_words_are_in_the_prefix_comes_after_it() -> None:
    search, _ = searching()
    assert placed({"dog": "Vierbeiner"}, search, "Ein Hund si") == "Ein Hund si Vierbeiner"


def test_sources_are_placed_together_and_those_without_terms_are_not_searched() -> None:
    numbers: list[Sequence[int]] = []
    search, _ = searching()

    def counted(some: Sequence[int], prefixes: Sequence[str]) -> Sequence[Output]:
        numbers.append(some)
        return search(some, prefixes)

    dog, ball = (Glossary({term: "Ding"}).phrases(SOURCE) for term in ("dog", "ball"))
    found = place_terms([SOURCE] * 3, [dog, [], ball], ["", "Der", ""], counted, lambda *_: True)
    assert [one.prefix for one in found] == ["Ein Ding", "Der", "Ein Hund sieht einen roten Ding"]
    assert numbers == [[0, 2], [0, 0, 2, 2]]


@pytest.mark.parametrize("source", ["<de> a dog runs", "a dog runs", "<en> <de> a dog runs"])
def test_terms_are_counted_from_the_end_as_tags_come_before(source: str) -> None:
    (term,) = Glossary({"dog": "Hund"}).phrases("a dog runs")
    assert term.term is not None
    start, end = (len(source) + place for place in term.term)
    assert source[start:end] == "dog"
