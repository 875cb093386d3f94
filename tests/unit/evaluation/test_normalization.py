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
