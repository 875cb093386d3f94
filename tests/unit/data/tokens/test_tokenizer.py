"""Tokens: round trips, fixed ids, injection, determinism, and what a person can do wrong."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, SPECIALS, UNKNOWN, Tokens
from transduce.errors import TokensError

TEXTS = [
    "A dog runs.",
    "Two dogs run  over the street, <s> and back.",
    "der Hund läuft — schnell!",
    "dogs</s> and <pad> cats <unk>",
    "one two three dog dogs runs running",
] * 3
SEEN = sorted(set("".join(TEXTS)))
LEVELS = ["character", "subword", "word", "symbol", "byte"]


def learn(level: str = "subword", **keys: object) -> Tokens:
    return Tokens.train(recipe.Tokens(level=level, **{"size": 300, **keys}), TEXTS)


LOSSLESS = {
    "character": learn("character"),
    "bpe": learn("subword", algorithm="bpe"),
    "unigram": learn("subword", algorithm="unigram"),
    "byte": learn("byte"),
}


@pytest.mark.parametrize("name", ["character", "bpe", "unigram"])
@given(text=st.text(alphabet=SEEN, max_size=40))
@settings(max_examples=150, deadline=None)
def test_text_of_seen_characters_comes_back_whole(name: str, text: str) -> None:
    tokens = LOSSLESS[name]
    ids = tokens.encode(text)
    assert tokens.decode(ids) == text
    assert not {PAD, UNKNOWN, BEGIN, END} & set(ids)


@pytest.mark.parametrize("name", LOSSLESS)
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_any_ids_are_joined_as_the_tokenizer_joins_them(name: str, data: st.DataObject) -> None:
    tokens = LOSSLESS[name]
    ids = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=20))
    assert tokens.decode(ids) == Tokenizer.from_str(tokens.to_json()).decode(ids)


def test_tags_are_joined_as_the_tokenizer_joins_them() -> None:
    settings = recipe.Tokens(level="subword", algorithm="bpe", size=60)
    tokens = Tokens.train(settings, ["a cup of tea"] * 3, ["fre"])
    ids = tokens.encode("<fre> a cup")
    assert ids[0] == tokens.tags["fre"]
    assert tokens.decode(ids) == Tokenizer.from_str(tokens.to_json()).decode(ids) == "a cup"


def test_a_tokenizer_from_elsewhere_joins_by_its_own_rules() -> None:
    made = Tokenizer.from_str(LOSSLESS["bpe"].to_json())
    made.decoder = decoders.Sequence([decoders.Replace("▁", "_"), decoders.Fuse()])
    tokens = Tokens.from_json(made.to_str())
    assert tokens.decode(tokens.encode("A dog runs.")) == "_A_dog_runs."


def test_ids_may_be_of_any_kind_of_number() -> None:
    tokens = LOSSLESS["bpe"]
    ids = tokens.encode("A dog runs.")
    for some in (np.array(ids), torch.tensor(ids)):
        assert tokens.decode(some) == "A dog runs."
        assert tokens.pieces(some) == tokens.pieces(ids)


@given(text=st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_bytes_bring_any_text_back(text: str) -> None:
    tokens = LOSSLESS["byte"]
    ids = tokens.encode(text)
    assert ids == [byte + 4 for byte in text.encode("utf-8")]
    assert tokens.decode(ids) == text


@pytest.mark.parametrize("name", ["character", "byte"])
@given(text=st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_the_quick_way_says_what_the_tokenizers_file_says(name: str, text: str) -> None:
    tokens = LOSSLESS[name]
    slow = tokens._tokenizer.encode(text, add_special_tokens=False).ids
    assert tokens.encode(text) == slow


@pytest.mark.parametrize("text", ["  two  runs ", " dog", "dog ", "   ", ""])
@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_spaces_are_kept_by_subwords(name: str, text: str) -> None:
    assert LOSSLESS[name].decode(LOSSLESS[name].encode(text)) == text


def test_words_and_symbols_come_back_with_single_spaces() -> None:
    assert learn("word").decode(learn("word").encode("Two  dogs run.")) == "Two dogs run ."
    assert learn("symbol").decode(learn("symbol").encode("two   three ")) == "two three"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("reloaded", [False, True])
def test_a_spelt_special_stays_text(level: str, reloaded: bool, tmp_path: Path) -> None:
    tokens = learn(level)
    if reloaded:
        tokens.save(tmp_path / "tokens.json")
        tokens = Tokens.load(tmp_path / "tokens.json")
    for special in SPECIALS:
        ids = tokens.encode(f"dogs {special} run{special}") + tokens.encode(special)
        assert not {PAD, BEGIN, END} & set(ids), special
    for special in ("<s>", "</s>", "<pad>", "<unk>"):
        if level == "symbol" and special == "<s>":
            assert tokens.decode(tokens.encode("and <s> back.")) == "and <s> back."
        if level in ("character", "subword", "byte"):
            assert tokens.decode(tokens.encode(special)) == special


def test_a_special_that_is_common_in_training_text_is_no_subword() -> None:
    for algorithm in ("bpe", "unigram"):
        settings = recipe.Tokens(algorithm=algorithm, size=60)
        tokens = Tokens.train(settings, ["<s> a b </s>", "<s>a</s>"] * 50)
        assert not {BEGIN, END} & set(tokens.encode("<s> a </s>"))
        assert tokens.decode(tokens.encode("<s> a </s>")) == "<s> a </s>"


@pytest.mark.parametrize("level", LEVELS)
def test_specials_have_their_ids_and_are_dropped_from_text(level: str) -> None:
    tokens = learn(level)
    assert tokens.pieces([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]
    ids = tokens.encode("dog")
    assert tokens.decode([BEGIN, *ids, END, PAD, PAD]) == tokens.decode(ids)


@pytest.mark.parametrize("level", LEVELS)
def test_a_saved_file_alone_restores_everything(level: str, tmp_path: Path) -> None:
    tokens = learn(level, lowercase=True, normalize="nfc")
    tokens.save(tmp_path / "tokens.json")
    again = Tokens.load(tmp_path / "tokens.json")
    assert (again.level, len(again)) == (level, len(tokens))
    for text in [*TEXTS, "Two  DOGS, ", "ünseen 漢"]:
        assert again.encode(text) == tokens.encode(text)
        assert again.decode(again.encode(text)) == tokens.decode(tokens.encode(text))
    assert list(tmp_path.iterdir()) == [tmp_path / "tokens.json"]


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_training_twice_gives_the_same_tokens(algorithm: str) -> None:
    texts = [f"{a}{b} {b}{a} {a}" for a in ("ab", "bc", "ca", "abc") for b in "xyzuvw"]
    settings = recipe.Tokens(algorithm=algorithm, size=40)
    trained = {Tokens.train(settings, texts).to_json() for _ in range(6)}
    assert len(trained) == 1


def test_pieces_are_what_a_person_reads() -> None:
    bpe, character, byte = LOSSLESS["bpe"], LOSSLESS["character"], LOSSLESS["byte"]
    assert "".join(bpe.pieces(bpe.encode("two dogs"))) == "▁two▁dogs"
    assert character.pieces(character.encode("a d")) == ["a", "▁", "d"]
    assert byte.pieces(byte.encode("a é")) == ["a", "▁", "<C3>", "<A9>"]
    symbol = learn("symbol")
    assert symbol.pieces(symbol.encode("<s> and")) == ["<s>", "and"]


def test_encode_batch_agrees_with_encode() -> None:
    for tokens in LOSSLESS.values():
        assert tokens.encode_batch(TEXTS) == [tokens.encode(text) for text in TEXTS]
        assert tokens.encode_batch([]) == []


def test_unknowns_are_named_by_level() -> None:
    for name in ("character", "bpe", "unigram"):
        assert LOSSLESS[name].unknowns(["dog 漢字字", "dog"]) == {"漢": 1, "字": 2}
    assert learn("word").unknowns(["dog zebra, zebra"]) == {"zebra": 2}
    assert learn("symbol").unknowns(["two zebra,"]) == {"zebra,": 1}
    assert LOSSLESS["byte"].unknowns(["漢字"]) == {}


@pytest.mark.parametrize("level", ["character", "subword"])
def test_min_count_makes_the_rare_unknown(level: str) -> None:
    settings = recipe.Tokens(level=level, size=200, min_count=2)
    for texts in (["aab abb q"] * 1 + ["aab"], iter(["aab abb q", "aab"])):
        tokens = Tokens.train(settings, texts)
        assert tokens.unknowns(["aabq"]) == {"q": 1}


def test_min_count_and_size_of_words() -> None:
    texts = ["a a a b b c"]
    assert Tokens.train(recipe.Tokens(level="word", min_count=2), texts).unknowns(texts) == {"c": 1}
    small = Tokens.train(recipe.Tokens(level="word", size=5), texts)
    assert len(small) == 5
    assert small.unknowns(texts) == {"b": 2, "c": 1}


def test_lowercase_and_normal_forms() -> None:
    tokens = Tokens.train(recipe.Tokens(level="character", lowercase=True), ["ABC"])
    assert tokens.decode(tokens.encode("aBc")) == "abc"
    composed = Tokens.train(recipe.Tokens(level="character", normalize="nfc"), ["é"])
    assert len(composed.encode("e\u0301")) == 1
    compatible = Tokens.train(recipe.Tokens(size=30, normalize="nfkc"), ["fi"])
    assert compatible.decode(compatible.encode("ﬁ")) == "fi"


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_a_size_below_the_alphabet_is_reported(algorithm: str) -> None:
    with pytest.raises(TokensError, match="vocabulary of 10 cannot hold"):
        Tokens.train(recipe.Tokens(algorithm=algorithm, size=10), TEXTS)


@pytest.mark.parametrize("level", ["character", "subword", "word", "symbol"])
@pytest.mark.parametrize("texts", [[], ["", "  "]])
def test_no_text_is_reported(level: str, texts: list[str]) -> None:
    for algorithm in ("bpe", "unigram"):
        with pytest.raises(TokensError, match="no text to learn tokens from"):
            Tokens.train(recipe.Tokens(level=level, algorithm=algorithm), texts)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@pytest.mark.parametrize("texts", [["a"], ["aaaa"], ["ab"] * 3, ["漢字"]])
def test_a_tiny_corpus_will_do(algorithm: str, texts: list[str]) -> None:
    tokens = Tokens.train(recipe.Tokens(algorithm=algorithm), texts)
    assert tokens.decode(tokens.encode(texts[0])) == texts[0]


def test_files_that_are_no_tokens_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    with pytest.raises(TokensError, match=r"no tokens file .*tokens\.json"):
        Tokens.load(path)
    tokens = learn()
    tokens.save(path)
    whole = path.read_text()
    for damaged in ("", "{", whole[: len(whole) // 2], '{"a": 1}', "[]"):
        path.write_text(damaged)
        with pytest.raises(TokensError, match=r"tokens\.json is not a tokenizers JSON"):
            Tokens.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TokensError, match=r"tokens\.json cannot be read"):
        Tokens.load(path)
    foreign = json.loads(whole)
    foreign["added_tokens"] = []
    foreign["model"] = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    path.write_text(json.dumps(foreign))
    with pytest.raises(TokensError, match=r"tokens\.json cannot be used: the first four tokens"):
        Tokens.load(path)
    with pytest.raises(TokensError, match="could not be written"):
        tokens.save(tmp_path / "nowhere" / "tokens.json")


@pytest.mark.parametrize("level", ["subword", "word", "byte"])
def test_half_a_surrogate_pair_is_reported(level: str) -> None:
    with pytest.raises(TokensError, match="surrogate"):
        learn(level).encode("dog \ud800")


def test_a_label_is_a_whole_text() -> None:
    texts = ["very good", "bad", "very  good ", "</s>", "bad, really"]
    labels = Tokens.train(recipe.Tokens(level="label"), texts)
    assert (labels.level, len(labels)) == ("label", 4 + 4)
    ids = labels.encode_batch(texts)
    assert [len(row) for row in ids] == [1] * 5
    assert ids[0] == ids[2]
    assert [labels.decode(row) for row in ids[:2]] == ["very good", "bad"]
    assert labels.decode(ids[3]) == labels.pieces(ids[3])[0] == "</s>"  # spelt, not the special
    assert labels.encode("very bad") == [UNKNOWN]
    assert Tokens.from_json(labels.to_json()).level == "label"
    assert labels.unknowns(["good enough", "bad"]) == {"good enough": 1}


def test_a_text_as_it_is_before_it_is_cut() -> None:
    settings = recipe.Tokens(level="symbol", lowercase=True, normalize="nfkc")
    assert Tokens.train(settings, ["a b"]).normalized("ＡbÇ") == "abç"
    assert Tokens.train(recipe.Tokens(level="word"), ["a b"]).normalized("AbÇ") == "AbÇ"


@pytest.mark.parametrize("level", ["word", "symbol"])
def test_the_more_frequent_word_has_the_lower_id(level: str) -> None:
    """Taggers give embeddings of their own to the first words alone."""
    tokens = Tokens.train(recipe.Tokens(level=level), ["b c b a", "b c d"])
    assert tokens.encode("b c")[0] == len(SPECIALS)
    assert tokens.encode("b c")[1] == len(SPECIALS) + 1
    assert set(tokens.encode("a d")) == {len(SPECIALS) + 2, len(SPECIALS) + 3}


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_what_has_no_spaces_for_long_is_learnt_in_time(algorithm: Any) -> None:
    """Merges within one word cost the square of its length: a minute for this one."""
    kind = recipe.Tokens(size=60, algorithm=algorithm)
    start = time.process_time()
    tokens = Tokens.train(kind, ["tea", "ab" * 50_000, "a " * 1000 + "xy" * 5000])
    assert time.process_time() - start < 5
    assert tokens.decode(tokens.encode("abxyab tea")) == "abxyab tea"


SENTENCES = ["It is. Is it? (It is, it is!)", "He said: it is «here».", "Is it here? It is."] * 10


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_punctuation_is_apart_where_asked(algorithm: str) -> None:
    asked = recipe.Tokens.model_validate(
        {"algorithm": algorithm, "size": 60, "punctuation": "apart"}
    )
    apart = Tokens.train(asked, SENTENCES)
    for name in apart.names()[4:]:
        letters = name.replace("▁", "")
        assert letters.isalnum() or len(name) == 1, name
    for text in [*SENTENCES, " two  spaces. ", "...", "a-b_c"]:
        known = "".join(
            letter for letter in text if letter in " .?!,:()«»" or letter in "Itishereadf"
        )
        assert apart.decode(apart.encode(known)) == known
    again = Tokens.from_json(apart.to_json())
    assert (again.level, again.encode(SENTENCES[0])) == ("subword", apart.encode(SENTENCES[0]))
    joined = Tokens.train(recipe.Tokens(size=60), SENTENCES)  # the default, as it always was
    assert any(len(name) > 1 and name[-1] in ".?!," for name in joined.names()[4:])
