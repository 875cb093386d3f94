"""Hallucinated pairs: another stem on both sides, the same endings, tags and lengths."""

from __future__ import annotations

from difflib import SequenceMatcher
from pathlib import Path
from unicodedata import category

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from transduce import recipe
from transduce.data.cache.tokenised import Encoded, encode_corpus
from transduce.data.text.pairs import read_pairs
from transduce.data.tokens.hallucination import (
    common_substrings,
    hallucinating,
    stems_in_words,
)
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.tokenizer import Tokens
from transduce.recipe import Data, Recipe

VERBS = [
    ("walk", "walked", "V;PST"),
    ("jump", "jumped", "V;PST"),
    ("spielen", "gespielt", "V;PTCP"),
    ("lachen", "gelacht", "V;PTCP"),
    ("go", "went", "V;PST"),
]


def corpus(
    folder: Path, rows: list[tuple[str, str, str]], **keys: object
) -> tuple[Data, tuple[Tokens, Tokens], Encoded]:
    (folder / "forms.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
    columns = recipe.Columns(file="forms.tsv", tags=2)
    both = recipe.TokensOfSides(both=recipe.Tokens(level="character"))
    data = Data(folder=str(folder), train=columns, valid=columns, **{"tokens": both, **keys})
    tokens = train_tokens(data, lambda line: None)
    encoded, _ = encode_corpus(columns, data, *tokens, None)
    return data, tokens, encoded


def texts(encoded: Encoded, tokens: tuple[Tokens, Tokens]) -> list[tuple[list[str], str]]:
    return [
        (tokens[0].pieces(encoded.source(row)), "".join(tokens[1].pieces(encoded.target(row))))
        for row in range(len(encoded))
    ]


def epoch(
    folder: Path, rows: list[tuple[str, str, str]], seed: int = 1, **asked: object
) -> list[tuple[list[str], str]]:
    data, tokens, encoded = corpus(folder, rows, hallucination=recipe.Hallucination(**asked))
    vary = hallucinating(data, *tokens)
    assert vary is not None
    return texts(vary(encoded, np.random.default_rng(seed)), tokens)


@pytest.mark.parametrize("letters", ["any", "substrings"])
def test_the_stem_changes_on_both_sides_and_nothing_else(tmp_path: Path, letters: str) -> None:
    walk, jump, spielen, lachen, go = epoch(tmp_path, VERBS, share=1.0, letters=letters)
    for pieces, form in (walk, jump):
        assert pieces[:2] == ["<V>", "<PST>"]
        stem = "".join(pieces[2:])
        assert form == stem + "ed"
        assert len(stem) == 4
    assert walk[1] != "walked"
    assert jump[1] != "jumped"
    for (pieces, form), length in ((spielen, 5), (lachen, 4)):
        stem = "".join(pieces[2:])[:length]
        assert pieces[:2] == ["<V>", "<PTCP>"]
        assert "".join(pieces[2:]) == stem + "en"
        assert form == f"ge{stem}t"
    # No common substring of three letters.
    assert go == (["<V>", "<PST>", "g", "o"], "went")


@pytest.mark.parametrize("letters", ["any", "substrings"])
def test_letters_beside_an_ending_or_a_prefix_are_kept(tmp_path: Path, letters: str) -> None:
    rows = [*VERBS[:4], ("anker", "geanker", "V"), ("x-ab", "y-abcd", "V"), ("tanz", "tanz", "V")]
    rows += [("rufen", "ruf", "V"), ("zutun", "tun", "V")]
    seen: list[set[str]] = [set() for _ in rows]
    for seed in range(30):
        made = epoch(tmp_path, rows, seed, share=1.0, letters=letters, kept=2)
        for forms, (pieces, form), (lemma, _, _) in zip(seen, made, rows, strict=True):
            forms.add(form)
            assert len([one for one in pieces if not one.startswith("<")]) == len(lemma)
    walked, jumped, spielt, gelacht, anker, ab, tanz, ruf, tun = seen
    assert {form[2:] for form in walked} == {"lked"}
    assert len({form[:2] for form in walked}) > 5
    assert {form[2:] for form in jumped} == {"mped"}
    # Both ends: one letter of five is left, and none of four.
    assert {form[:4] + form[5:] for form in spielt} == {"gesp" + "elt"}
    assert len(spielt) > 3
    assert gelacht == {"gelacht"}
    # Only a prefix: the end is free. No stem; and nothing that changes, so that all is free.
    assert {form[:4] for form in anker} == {"gean"}
    assert len({form[4:] for form in anker}) > 5
    assert ab == {"y-abcd"}
    assert len({form[:2] for form in tanz}) > 5
    assert len({form[2:] for form in tanz}) > 5
    # An ending or a prefix of the lemma alone.
    assert {form[1:] for form in ruf} == {"uf"}
    assert {form[:2] for form in tun} == {"tu"}


def test_marks_are_no_letters_that_are_kept(tmp_path: Path) -> None:
    rows = [("ke\u0301ze\u0301l", "ke\u0301ze\u0301lben", "N"), ("macska", "macska", "N")]
    forms = {epoch(tmp_path, rows, seed, share=1.0, kept=2)[0][1] for seed in range(20)}
    assert {form[4:] for form in forms} == {"e\u0301lben"}
    assert len({form[:4] for form in forms}) > 5


def test_each_epoch_has_other_stems_and_a_seed_the_same(tmp_path: Path) -> None:
    first, again, other = (epoch(tmp_path, VERBS, seed, share=1.0) for seed in (1, 1, 2))
    assert first == again != other


def test_a_share_of_the_pairs_is_replaced(tmp_path: Path) -> None:
    rows = [VERBS[0]] * 2000
    found = epoch(tmp_path, rows, share=0.3, letters="any")
    changed = sum(form != "walked" for _, form in found)
    assert abs(changed / 2000 - 0.3) < 0.04


def test_substrings_are_those_of_one_training_word(tmp_path: Path) -> None:
    rows = [("abcdefgh", "abcdefghi", "X"), ("mn opqrst", "mn opqrstu", "X")]
    known = ("abcdefgh", "mn", "opqrst")
    found = epoch(tmp_path, rows * 50, share=1.0, letters="substrings")
    pairs = {form[at : at + 2] for _, form in found[1::2] for at in (3, 5, 7)}
    assert len({form for _, form in found}) > 50
    for _, form in found[1::2]:
        # The space stays where it is, with the word before it.
        assert form.startswith("mn▁")
        assert form.endswith("u")
    begun = {form[3:5] for _, form in found[1::2]}
    assert all(any(pair in word for word in known) for pair in begun)
    assert len(pairs) > 5


def test_copies_are_lemmas_without_tags(tmp_path: Path) -> None:
    found = epoch(tmp_path, VERBS * 100, share=1e-9, copies=0.4)
    copies = [row for row in found if not row[0][0].startswith("<")]
    assert abs(len(copies) / len(found) - 0.4) < 0.07
    assert {("".join(pieces), form) for pieces, form in copies} == {
        (lemma, lemma) for lemma, _, _ in VERBS
    }
    others = {form for pieces, form in found if pieces[0].startswith("<")}
    assert others == {form for _, form, _ in VERBS}


def test_a_pair_without_tags_is_not_made_a_copy(tmp_path: Path) -> None:
    """Without tags, nothing would tell a copy from a form."""
    rows = [("walk", "walked", ""), ("jump", "jumped", "V")] * 20
    found = epoch(tmp_path, rows, share=0.0, copies=0.9)
    assert {("".join(pieces), form) for pieces, form in found} == {
        ("walk", "walked"),
        ("jump", "jump"),
        ("<V>jump", "jumped"),
    }


@pytest.mark.parametrize("letters", ["any", "substrings"])
def test_marks_stay_with_a_letter(tmp_path: Path, letters: str) -> None:
    """Gujarati: vowel signs follow a consonant. Of decomposed é and è only the mark differs."""
    rows = [
        ("વહેરવું", "વહેરે", "V"),
        ("શણગારવું", "શણગારે", "V"),
        ("marche\u0301", "marche\u0300s", "V"),
    ]
    for seed in range(30):
        for number, (pieces, form) in enumerate(
            epoch(tmp_path, rows, seed, share=1.0, letters=letters)
        ):
            lemma = "".join(pieces[1:])
            for word in (lemma, form):
                assert not category(word[0]).startswith("M")
            if number == 2:
                assert lemma.endswith("e\u0301")
                assert form.endswith("e\u0300s")
                assert lemma[:-2] == form[:-3]


def test_hangul_letters_take_their_own_places(tmp_path: Path) -> None:
    tokens = recipe.TokensOfSides(both=recipe.Tokens(level="character", normalize="nfd"))
    asked = recipe.Hallucination(share=1.0, letters="any")
    rows = [("흥분하다", "흥분할", "V"), ("중요시하다", "중요시할", "V")]
    data, both, encoded = corpus(tmp_path, rows, tokens=tokens, hallucination=asked)
    vary = hallucinating(data, *both)
    assert vary is not None
    for seed in range(20):
        made = vary(encoded, np.random.default_rng(seed))
        for row in range(2):
            lemma, form = both[0].decode(made.source(row)), both[1].decode(made.target(row))
            # Whole syllables still, which compose as before.
            assert (len(lemma), len(form)) == (len(rows[row][0]), len(rows[row][1]))


def test_vocabularies_of_their_own(tmp_path: Path) -> None:
    """A letter that the target does not have is in no invented stem."""
    sides = recipe.Tokens(level="character")
    tokens = recipe.TokensOfSides(source=sides, target=sides)
    rows = [("walk", "walked", "V"), ("zzzz", "a", "V"), ("gehen", "geht", "V")]
    asked = recipe.Hallucination(share=1.0, letters="any")
    data, apart, encoded = corpus(tmp_path, rows, tokens=tokens, hallucination=asked)
    vary = hallucinating(data, *apart)
    assert vary is not None
    for seed in range(20):
        walk, other, _ = texts(vary(encoded, np.random.default_rng(seed)), apart)
        assert walk[1] == "".join(walk[0][1:]) + "ed"
        assert "z" not in walk[1]
        assert other == (["<V>", *"zzzz"], "a")


def test_letters_that_only_copying_knows_stay(tmp_path: Path) -> None:
    """Their ids are beyond the vocabulary: those of a position of the source."""
    rare = recipe.TokensOfSides(both=recipe.Tokens(level="character", min_count=3))
    rows = [("walk", "walked", "V"), ("walkx", "walkxed", "V"), ("talk", "talked", "V")]
    asked = recipe.Hallucination(share=1.0, copies=0.3)
    data, tokens, _ = corpus(tmp_path, rows, tokens=rare, hallucination=asked)
    encoded, _ = encode_corpus(data.train, data, *tokens, None, copied=True)
    assert encoded.source_ids.max() >= len(tokens[0])
    vary = hallucinating(data, *tokens)
    assert vary is not None
    for seed in range(10):
        made = vary(encoded, np.random.default_rng(seed))
        assert made.source(1)[5] == encoded.source(1)[5]
        assert made.target(1)[4:].tolist() == encoded.target(1)[4:].tolist()
        assert made.target(1)[:4].tolist() == made.source(1)[1:5].tolist()


@given(st.lists(st.tuples(st.text("abc", max_size=7), st.text("abc", max_size=7)), min_size=1))
def test_common_substrings_are_the_longest(pairs: list[tuple[str, str]]) -> None:
    def padded(words: list[str], fill: int) -> np.ndarray:
        width = max(map(len, words))
        return np.array([[*map(ord, word), *[fill] * (width - len(word))] for word in words])

    found = common_substrings(
        padded([one for one, _ in pairs], -1), padded([two for _, two in pairs], -2)
    )
    for (one, two), here, there, length in zip(
        pairs, *(part.tolist() for part in found), strict=True
    ):
        assert one[here : here + length] == two[there : there + length]
        longest = SequenceMatcher(None, one, two, autojunk=False).find_longest_match()
        assert length == longest.size


def test_how_many_pairs_have_a_stem_is_said(tmp_path: Path) -> None:
    data, tokens, encoded = corpus(tmp_path, VERBS, hallucination=recipe.Hallucination())
    assert "80% of the pairs have a stem" in stems_in_words(data, encoded, tokens)
    data, tokens, encoded = corpus(tmp_path, VERBS[-1:], hallucination=recipe.Hallucination())
    assert "changes nothing" in stems_in_words(data, encoded, tokens)
    copies = recipe.Hallucination(share=0.0, copies=0.1)
    data, tokens, encoded = corpus(tmp_path, VERBS[-1:], hallucination=copies)
    assert stems_in_words(data, encoded, tokens) == ""


def test_validation_and_test_parts_stay(tmp_path: Path) -> None:
    data, _, _ = corpus(tmp_path, VERBS, hallucination=recipe.Hallucination(share=1.0))
    assert [pair.target for pair in read_pairs(data.valid, data.folder)] == [
        form for _, form, _ in VERBS
    ]


COLUMNS: dict[str, object] = {"file": "a.tsv", "tags": 2}
DATA: dict[str, object] = {
    "train": COLUMNS,
    "valid": COLUMNS,
    "tokens": {"both": {"level": "character"}},
    "hallucination": {},
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokens": {"both": {"level": "subword"}}}, "data.tokens.both.level is subword"),
        ({"train": {"file": "a.tsv"}, "hallucination": {"copies": 0.1}}, "without tags"),
        ({"hallucination": {"share": 0}}, "changes nothing"),
    ],
)
def test_where_it_cannot_be_used(changed: dict[str, object], message: str) -> None:
    Recipe.model_validate({"data": DATA})
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate({"data": {**DATA, **changed}})


def test_only_texts_have_stems() -> None:
    text = {"text": "a.txt"}
    with pytest.raises(ValidationError, match=r"data\.hallucination is for task: transduce"):
        Recipe.model_validate(
            {"task": "language_modeling", "data": {**DATA, "train": text, "valid": text}}
        )
