"""Named normalisation of texts before errors are counted."""

from __future__ import annotations

import pytest

from transduce.errors import RecipeError
from transduce.evaluation.metrics import measure
from transduce.evaluation.normalization import normalizer


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It's 21 dogs -- don’t wait!", "it's twenty one dogs don't wait"),
        ("Twenty-one, (or so) and/or", "twenty one or so and or"),
        ("1,234,567.05 km", "one million two hundred thirty four thousand five hundred sixty seven"
         " point zero five km"),
        ("the 3rd, 20th and 112th", "the third twentieth and one hundred twelfth"),
        ("007 0 100 1000 B52 3x", "zero zero seven zero one hundred one thousand b52 3x"),
        ("9" * 20, " ".join(["nine"] * 20)),
        ("„Ĳs“ ÉCLAIR…", "ĳs éclair"),
        ("   ", ""),
    ],
)  # fmt: skip
def test_all_steps(text: str, found: str) -> None:
    assert normalizer(["punctuation", "numbers", "lower"])(text) == found


def test_each_step_alone() -> None:
    text = "A 2-year-old,  yes"
    assert normalizer([])(text) == text
    assert normalizer(["lower"])(text) == "a 2-year-old, yes"
    assert normalizer(["punctuation"])(text) == "A 2 year old yes"
    assert normalizer(["numbers"])("A 2 and 2.") == "A two and two."
    with pytest.raises(RecipeError, match="no normalisation lowr; did you mean lower"):
        normalizer(["lowr"])


def test_cardinals_are_those_of_counting() -> None:
    numbers = normalizer(["numbers"])
    words = [numbers(str(n)) for n in range(2000)]
    assert len(set(words)) == 2000
    assert words[13] == "thirteen"
    assert words[1999] == "one thousand nine hundred ninety nine"


def spoken(year: int) -> list[str]:
    """The ways to say a year from 1000 to 2099 by its two halves."""
    words = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"
    ones = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    century, rest = words.split()[year // 100 - 10], year % 100
    if rest == 0:
        return [f"{century} hundred", f"{century.capitalize()} Hundred"]
    if rest < 10:
        one = ones[rest - 1]
        return [f"{century} {zero} {one}" for zero in ("oh", "o", "zero", "hundred", "hundred and")]
    if rest < 20:
        last = words.split()[rest - 10]
    else:
        last = " ".join([tens[rest // 10 - 2], *ones[rest % 10 - 1 : rest % 10]])
    return [f"{century} {last}", f"{century}-{last.replace(' ', '-')}", f"{century} hundred {last}"]


def test_years_said_by_halves_are_those_in_digits() -> None:
    numbers = normalizer(["numbers"])
    for year in range(1000, 2100):
        written = numbers(str(year))
        assert [numbers(said) for said in spoken(year)] == [written] * len(spoken(year))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("105 men", "one hundred and five men"),
        ("2005", "two thousand and five"),
        ("1,000,017", "one million and seventeen"),
        ("the 1980s", "the nineteen eighties"),
        ("the 1980's", "the nineteen-eighties"),
        ("the 1900s", "the nineteen hundreds"),
        ("in the 80s", "in the eighties"),
        ("the 19th", "the nineteenth"),
        ("on May 21st", "on May twenty-first"),
        ("21", "twenty-one"),
    ],
)
def test_other_ways_to_say_a_number(written: str, said: str) -> None:
    numbers = normalizer(["numbers"])
    assert numbers(written) == numbers(said)


@pytest.mark.parametrize(
    "text",
    [
        "one and two",
        "five hundred and six hundred",
        "nineteen eighty thousand",
        "twenty one",
        "one thousand nineteen",
        "nineteen, eighty",
        "fifty five twelve",
        "a thousand and no more",
    ],
)
def test_what_is_no_year_stays(text: str) -> None:
    assert normalizer(["numbers"])(text) == text


def test_the_words_that_are_confused() -> None:
    references = [["the cat sat"], ["the cat sat on a mat"], ["one two", "a b c"]]
    predicted = ["the hat sat too", "a hat sat on mat", "a b"]
    found = measure(["wer", "cer"], predicted, references, bootstrap=0)["wer"]
    assert found.details["confused"] == [
        ["cat", "hat", 2],
        ["", "too", 1],
        ["a", "", 1],
        ["c", "", 1],
        ["the", "a", 1],
    ]
    counts = [found.details[kind] for kind in ("substitutions", "deletions", "insertions")]
    assert counts == [3, 2, 1]
    assert found.value == pytest.approx(100 * 6 / 12)
