"""Tokenising word by word gives what the tokenizer gives, for every level and any text."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from itertools import pairwise
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce import recipe
from transduce.data.tokens import learn, tokenizer, word_pieces, words
from transduce.data.tokens.tokenizer import AT_ONCE, Tokens
from transduce.data.tokens.word_pieces import WordPieces
from transduce.errors import TokensError
from transduce.shared_library import LIBRARY_FILE

TRAINED = [
    "a cat saw a cat",
    "Cats SAW <s> é e\u0301 한국 말",
    "one, two; three. ｆｕｌｌ Σας",
    "x\tﬁ ½",
]
SETTINGS: dict[str, dict[str, Any]] = {
    "bpe": {"size": 60},
    "bpe, normalized": {"size": 80, "normalize": "nfkd", "lowercase": True},
    "bpe, punctuation apart": {"size": 60, "punctuation": "apart", "normalize": "nfc"},
    "unigram": {"size": 60, "algorithm": "unigram"},
    "word": {"level": "word", "lowercase": True},
    "symbol": {"level": "symbol", "normalize": "nfkc"},
    "character": {"level": "character", "normalize": "nfd"},
    "byte": {"level": "byte", "lowercase": True},
    "label": {"level": "label"},
}
TOKENS = {
    name: Tokens.train(recipe.Tokens(**keys), TRAINED, tags=["fre", "ger"])
    for name, keys in SETTINGS.items()
}
PIECES = [
    *("cat", "Cats", "saw", "one,", "<s>", "</s>", "<fre>", "<ger>", "<unk>", "▁", "\u00a0", "\t"),
    *("\n", "\r", "é", "e\u0301", "\u0301", "한", "Σ", "ﬁ", "½", "¨", "\u3000", "😀", "x" * 70, ""),
    *(
        "\x01",
        "a\x02b",
        "\x1c",
        "a\u2028b",
        "\x85",
        "$5",
        "¿_?",
        "i.e.",
        "c++",
        "\u200b",
        "İ",
        "一。二",
    ),
]
TEXTS = st.lists(
    st.lists(st.sampled_from([*PIECES, " ", " ", " ", " "]), max_size=12).map("".join), max_size=6
)


def rows_of(flat: tuple[Any, Any]) -> list[list[int]]:
    ids, offsets = flat
    assert offsets[-1] == len(ids)
    return [ids[a:b].tolist() for a, b in pairwise(offsets.tolist())]


@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=25, deadline=None)
@given(texts=TEXTS)
def test_the_ids_are_those_of_the_tokenizer(name: str, texts: list[str]) -> None:
    tokens = TOKENS[name]
    assert rows_of(tokens.encode_flat(texts)) == tokens.encode_batch(texts)


@pytest.mark.parametrize("with_library", [True, False])
@pytest.mark.parametrize("more", [{}, {"size": 9}, {"min_count": 2}])
@pytest.mark.parametrize("name", ["word", "symbol"])
@settings(max_examples=25, deadline=None)
@given(texts=TEXTS)
def test_the_vocabulary_is_that_of_the_trainer(
    name: str, more: dict[str, int], with_library: bool, texts: list[str]
) -> None:
    asked = recipe.Tokens(**SETTINGS[name], **more)
    texts = [*texts, "a cat", "cat"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WordPieces, "of", lambda tokenizer: None)
        expected = Tokens.train(asked, texts).to_json()
        patch.undo()
        patch.setattr(words, "MAX_WORDS", 4)
        patch.setattr(word_pieces, "AT_ONCE", 3)
        if not with_library:
            patch.setattr(word_pieces, "word_counts", lambda: None)
        assert Tokens.train(asked, texts).to_json() == expected


@pytest.mark.parametrize(
    "more", [{}, {"punctuation": "apart"}, {"algorithm": "unigram"}, {"min_count": 2}]
)
@settings(max_examples=20, deadline=None)
@given(texts=TEXTS)
def test_subwords_are_those_of_the_trainer(more: dict[str, Any], texts: list[str]) -> None:
    asked = recipe.Tokens(size=80, **more)
    texts = [*texts, "a cat\na <cat", "a<s>cat, cat  saw▁a <unk>", *TRAINED] * 3

    def on_texts(tokenizer: Any, trainer: Any, asked: recipe.Tokens, texts: Iterable[str]) -> None:
        tokenizer.train_from_iterator(texts, trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learn, "_train_on_words", on_texts)
        expected = Tokens.train(asked, texts).to_json()
        patch.undo()
        patch.setattr(learn, "AT_ONCE", 2)
        assert Tokens.train(asked, texts).to_json() == expected


@pytest.mark.parametrize("name", SETTINGS)
def test_many_texts_have_the_ids_that_each_has_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [" ".join(PIECES[i % 9 : i % 9 + i % 4]) for i in range(23)]
    monkeypatch.setattr(tokenizer, "AT_ONCE", 5)
    tokens, asked = TOKENS[name], 0
    expected = [tokens.encode(text) for text in texts]
    find = words.WordTable.encode

    def encode(self: words.WordTable, some: Sequence[str]) -> Any:
        nonlocal asked
        asked += len(some)
        assert len(some) <= 5
        return find(self, some)

    monkeypatch.setattr(words.WordTable, "encode", encode)
    assert tokens.encode_batch(texts) == expected
    assert asked == (len(texts) if tokens._words is not None else 0)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "label"])
def test_a_word_is_asked_of_the_tokenizer_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if words.word_table(TOKENS[name].encode_flat, True, None) is None:
        pytest.skip("there is no C library here")
    tokens = Tokens.from_json(TOKENS[name].to_json())
    asked: list[str] = []
    of_words = Tokens._encode_words

    def encode(self: Tokens, texts: Sequence[str]) -> Any:
        asked.extend(texts)
        return of_words(self, texts)

    monkeypatch.setattr(Tokens, "_encode_words", encode)
    for _ in range(2):
        tokens.encode_flat(["a cat saw", "saw a cat cat"])
    assert sorted(asked) == ["a", "cat", "saw"]


def test_a_full_table_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MAX_WORDS", 3)
    tokens = Tokens.from_json(TOKENS["bpe"].to_json())
    for text in ("a cat saw", "one two three", "a one cat", "saw cat two"):
        assert rows_of(tokens.encode_flat([text])) == tokens.encode_batch([text])


def test_texts_may_have_more_words_than_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MAX_WORDS", 3)
    tokens = Tokens.from_json(TOKENS["bpe"].to_json())
    texts = ["a cat", "saw", "one two three a cat", "cat", "", "saw two a", "three cats saw one"]
    for _ in range(2):
        assert rows_of(tokens.encode_flat(texts)) == tokens.encode_batch(texts)


def test_words_that_the_tokenizer_refused_have_no_ids_later() -> None:
    tokens, ends = TOKENS["bpe"], [KeyboardInterrupt()]

    def encode(texts: list[str]) -> Any:
        if ends:
            raise ends.pop()
        return words.flattened(tokens.encode_batch(texts))

    table = words.word_table(encode, False, None)
    if table is None:
        pytest.skip("there is no C library here")
    with pytest.raises(KeyboardInterrupt):
        table.encode(["cat saw"])
    assert rows_of(table.encode(["cat saw"])) == tokens.encode_batch(["cat saw"])


def test_half_of_a_surrogate_pair_is_refused() -> None:
    for name in ("bpe", "byte", "word", "symbol"):
        with pytest.raises(TokensError, match="surrogate"):
            TOKENS[name].encode_flat(["cat \ud800"])
    for name in ("word", "symbol"):
        with pytest.raises(TokensError, match="surrogate"):
            Tokens.train(recipe.Tokens(**SETTINGS[name]), ["cat", "\ud800"])


def test_threads_share_a_table() -> None:
    tokens = Tokens.from_json(TOKENS["bpe"].to_json())
    texts = [f"cat{number % 50} saw {number % 70}" for number in range(2000)]
    expected, found = tokens.encode_batch(texts), dict[int, list[list[int]]]()

    def encode(thread: int) -> None:
        found[thread] = rows_of(tokens.encode_flat(texts))

    threads = [Thread(target=encode, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[thread] == expected for thread in range(4))


def test_the_library_has_the_table() -> None:
    """Otherwise all of the above would only compare the tokenizer with itself."""
    if not LIBRARY_FILE.is_file():
        pytest.skip("there is no C library here")
    assert hasattr(ctypes.CDLL(str(LIBRARY_FILE)), "words_find")
    assert TOKENS["bpe"]._words is not None
    assert TOKENS["label"]._words is None


@pytest.mark.parametrize("name", SETTINGS)
def test_many_texts_have_the_ids_that_each_has(name: str) -> None:
    tokens = TOKENS[name]
    texts = ["", " ", *PIECES, *(f"<fre>{one} cat {one}" for one in PIECES), *TRAINED]
    many = [texts[number % len(texts)] for number in range(AT_ONCE + 3)]
    each = {text: tokens.encode(text) for text in texts}
    assert tokens.encode_batch(many) == [each[text] for text in many]
