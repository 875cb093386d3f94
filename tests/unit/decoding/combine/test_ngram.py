"""n-gram models against back-off by hand; files that are not what they say."""

from __future__ import annotations

import gzip
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, Tokens
from transduce.decoding.combine.ngram import NgramModel, is_arpa
from transduce.decoding.combine.ngram_fusion import (
    NgramTokens,
    NgramWords,
    PlaceSteps,
    log_probability,
    scorer_of,
)
from transduce.errors import DataError

ARPA = """
\\data\\
ngram 1=6
ngram 2=4
ngram 3=1

\\1-grams:
-99\t<s>\t-0.5
-1.0\t</s>
-2.0\t<unk>
-0.6\tthe\t-0.4
-0.9\tdog\t-0.3
-1.2\tbarks

\\2-grams:
-0.2\t<s> the\t-0.1
-0.5\tthe dog\t-0.2
-0.3 dog barks
-0.7\tdog </s>

\\3-grams:
-0.1\t<s> the dog

\\end\\
"""


def read(text: str) -> NgramModel:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.arpa"
        path.write_text(text)
        return NgramModel.load(path)


MODEL = read(ARPA)
LETTERS = ["the dog barks, Tx", "bog ark hot dogs, the"]
VOCABULARIES = [
    (tokens, scorer_of(MODEL, tokens, "cpu"))
    for tokens in (
        Tokens.train(recipe.Tokens(level="character"), LETTERS),
        Tokens.train(recipe.Tokens(level="subword", size=30), LETTERS * 5),
    )
]


@pytest.fixture
def model(tmp_path: Path) -> NgramModel:
    path = tmp_path / "dogs.arpa"
    path.write_text(ARPA)
    assert is_arpa(path)
    return NgramModel.load(path)


# By hand, in log10: each word with its context, and what the file says of it.
BY_HAND = [
    ((), "the", -0.6),
    (("<s>",), "the", -0.2),
    (("<s>", "the"), "dog", -0.1),  # the 3-gram
    (("dog", "the"), "dog", -0.5),  # no 2-gram "dog the", which so has no weight
    (("the", "dog"), "barks", -0.2 - 0.3),
    (("the", "dog"), "the", -0.2 - 0.3 - 0.6),
    (("<s>", "the"), "barks", -0.1 - 0.4 - 1.2),
    (("the", "barks"), "dog", -0.9),  # no weight is zero
    (("<s>", "the"), "<unk>", -0.1 - 0.4 - 2.0),
]


@pytest.mark.parametrize(("context", "word", "expected"), BY_HAND)
def test_back_off(model: NgramModel, context: tuple[str, ...], word: str, expected: float) -> None:
    before = tuple(model.words[one] for one in context)
    found = model.log_probability(before, model.words[word])
    assert found == pytest.approx(expected * math.log(10), abs=1e-5)
    every = model.distribution(before)
    assert every[model.words[word]] == pytest.approx(found, abs=1e-5)


def test_contexts_are_as_long_as_the_model_can_use(model: NgramModel) -> None:
    the, dog = model.words["the"], model.words["dog"]
    assert model.after(model.begin, the) == (*model.begin, the)
    assert model.after((*model.begin, the), dog) == (the, dog)
    assert model.after((the, dog), None) == ()
    assert model.number("cat") == model.words["<unk>"]
    assert model.number("Dog,") == dog


def test_without_unk_a_strange_word_is_as_rare_as_the_rarest(tmp_path: Path) -> None:
    path = tmp_path / "one.arpa"
    path.write_text("\\data\\\nngram 1=2\n\\1-grams:\n-0.3 a\n-0.7 b\n\\end\\\n")
    model = NgramModel.load(path)
    assert model.number("c") is None
    assert model.log_probability((), None) == pytest.approx(-0.7 * math.log(10))


def test_gzip_is_read_as_well(model: NgramModel, tmp_path: Path) -> None:
    path = tmp_path / "dogs.arpa.gz"
    path.write_bytes(gzip.compress(ARPA.encode()))
    again = NgramModel.load(path)
    for ours, theirs in zip(model.orders, again.orders, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))
    path.write_bytes(gzip.compress(ARPA.encode())[:-20])
    with pytest.raises(DataError, match=r"dogs\.arpa\.gz:.*cannot be read"):
        NgramModel.load(path)


@pytest.mark.parametrize(
    ("old", "new", "line", "why"),
    [
        ("\\data\\", "data", "", "no line is \\\\data\\\\"),
        ("ngram 2=4", "ngram 3=4", ":4:", "as in ngram 2=1000"),
        ("ngram 2=4", "ngram 2=five", ":4:", "as in ngram 2=1000"),
        ("ngram 3=1", "ngram 3=2", ":21:", "there are 1 3-grams, but the head says 2"),
        ("-0.6\tthe", "-0.x\tthe", ":11:", "log p, a number, before the words"),
        ("-0.6\tthe", "nan\tthe", ":11:", "finite and at most 0"),
        ("-0.6\tthe", "0.6\tthe", ":11:", "finite and at most 0"),
        ("-0.9\tdog", "-0.9\tthe", ":12:", "'the' stands where a word that is not there yet"),
        ("-0.5\tthe dog", "-0.5\tthe cat", ":17:", "'cat' stands where a word of the 1-grams"),
        ("-0.5\tthe dog\t-0.2", "-0.5\tdog", ":17:", "log p, 2 words and perhaps"),
        ("-0.5\tthe dog", "-0.5\t<s> the", ":17:", "each n-gram once"),
        ("-0.1\t<s> the dog", "-0.1\tdog the dog", ":22:", "first words are an n-gram"),
        ("\\3-grams:", "\\4-grams:", ":21:", "3-grams: must be"),
    ],
)
def test_a_file_that_is_wrong_is_told_with_its_line(
    tmp_path: Path, old: str, new: str, line: str, why: str
) -> None:
    path = tmp_path / "bad.arpa"
    assert old in ARPA
    path.write_text(ARPA.replace(old, new, 1))
    with pytest.raises(DataError, match=why) as caught:
        NgramModel.load(path)
    assert str(caught.value).startswith(f"{path}{line}")


# --------------------------------------------------------------------------------------- fusion


def test_words_of_characters_are_scored_where_they_end(model: NgramModel) -> None:
    tokens = Tokens.train(recipe.Tokens(level="character"), ["the dog barks"])
    scorer = scorer_of(model, tokens, "cpu")
    assert isinstance(scorer, NgramWords)
    # <s> the dog: -0.2 - 0.1; then barks: -0.2 - 0.3; then </s> after "dog barks": -1.0.
    whole = log_probability(scorer, tokens.encode("the dog barks"))
    assert whole == pytest.approx(-(0.2 + 0.1 + 0.5 + 1.0) * math.log(10), abs=1e-4)
    place = scorer.start
    for token in tokens.encode("the do"):
        place = scorer.after(place, token)
    added_V = scorer.added([place])[0]
    g, b, space = (tokens.encode(letter)[0] for letter in "gb ")
    # "do" has cost what "dog" costs at best, the 3-gram, and may go on with it; "dob" is unknown.
    assert float(added_V[g]) == 0
    assert float(added_V[b]) == pytest.approx((-2.0 + 0.1) * math.log(10), abs=1e-4)
    assert float(added_V[space]) == pytest.approx((-0.1 - 0.4 - 2.0 + 0.1) * math.log(10), abs=1e-4)


@settings(max_examples=40)
@given(st.text(alphabet="thedogbarksx ,T", max_size=25))
def test_the_costs_of_tokens_are_those_of_words(text: str) -> None:
    """Whatever is written, and however it is cut into tokens."""
    text = " ".join(text.split())
    model, numbers = MODEL, [MODEL.number(word) for word in text.split()]
    context, total = model.begin, 0.0
    for number in (*numbers, model.words["</s>"]):
        total += model.log_probability(context, number)
        context = model.after(context, number)
    for tokens, scorer in VOCABULARIES:
        ids = tokens.encode(text)
        assert log_probability(scorer, ids) == pytest.approx(total, abs=1e-3)
        place = scorer.start
        for token in (*ids, END):
            added_V = scorer.added([place])[0]
            assert (added_V <= 1e-4).all()
            place = scorer.after(place, token)


def test_words_of_subwords(model: NgramModel) -> None:
    tokens = Tokens.train(recipe.Tokens(level="subword", size=20), ["the dog barks"] * 9)
    whole = log_probability(scorer_of(model, tokens, "cpu"), tokens.encode("the dog barks"))
    assert whole == pytest.approx(-(0.2 + 0.1 + 0.5 + 1.0) * math.log(10), abs=1e-4)


def test_a_model_of_tokens_scores_each(model: NgramModel) -> None:
    tokens = Tokens.train(recipe.Tokens(level="word"), ["the dog barks cat"])
    scorer = scorer_of(model, tokens, "cpu")
    assert isinstance(scorer, NgramTokens)
    assert not scorer.endless
    whole = log_probability(scorer, tokens.encode("the dog barks"))
    assert whole == pytest.approx(-(0.2 + 0.1 + 0.5 + 1.0) * math.log(10), abs=1e-4)
    steps = PlaceSteps(scorer)
    state = steps.start(torch.zeros(2, 1), torch.ones(2))
    first_RV, state = steps.step(torch.tensor([BEGIN, BEGIN]), state)
    state.reorder(torch.tensor([1, 0]))
    the, cat = tokens.encode("the")[0], tokens.encode("cat")[0]
    second_RV, _ = steps.step(torch.tensor([the, cat]), state)
    by_hand = [(-0.2), (-0.1 - 0.4 - 1.0), (-1.0), (-0.5 - 2.0)]
    found = [first_RV[0, the], second_RV[0, END], second_RV[1, END], first_RV[1, cat]]
    assert [float(one) for one in found] == pytest.approx([math.log(10) * x for x in by_hand])
