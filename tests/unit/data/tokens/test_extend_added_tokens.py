"""Tokens and tags added to vocabularies, also to those of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import ByteLevelBPETokenizer

from transduce import recipe
from transduce.data.tokens.extend import add_tags, add_tokens, extended, extended_pair, old_pieces
from transduce.data.tokens.foreign import with_prefix
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import TokensError

TEXTS = ["the cat sat on the mat (here)", "a cat and a dog: x y z bbs."] * 3


def trained(algorithm: str, tags: tuple[str, ...] = (), level: str = "subword") -> Tokens:
    values = {"level": level, "algorithm": algorithm, "size": 60}
    return Tokens.train(recipe.Tokens.model_validate(values), TEXTS, tags)


@pytest.fixture
def byte_level(tmp_path: Path) -> Tokens:
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(TEXTS, vocab_size=290, special_tokens=["<pad>", "<unk>", "</s>"])
    learned.save(str(tmp_path / "tokenizer.json"))
    return Tokens.load(tmp_path / "tokenizer.json", foreign=True)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_a_token_is_never_cut_apart_and_texts_come_back(algorithm: str) -> None:
    old = trained(algorithm, ("fr",))
    new = add_tokens(old, ["[X]", "<µ>", "cat"])
    for text in ("the [X]", "a[X]b", "([X][X]) cats [X].", "<µ>b  [X] <µ>"):
        assert new.decode(new.encode(f"<fr> {text}")) == text
        assert new.encode(f"<fr> {text}")[0] == new.tags["fr"]
    assert new.pieces(new.encode("a[X][X]"))[-2:] == ["[X]", "[X]"]
    assert Tokens.from_json(new.to_json()).encode("a[X]") == new.encode("a[X]")
    plain = add_tokens(old, ["[X]"])
    assert [plain.pieces(plain.encode(text)) for text in TEXTS] == [
        old.pieces(old.encode(text)) for text in TEXTS
    ]


def test_byte_level_vocabularies_take_what_they_can_write(byte_level: Tokens) -> None:
    new = add_tokens(byte_level, ["[X]", "→"])
    assert new.decode(new.encode("a[X]b →.")) == "a[X]b →."
    assert new.pieces(new.encode("a→")) == ["a", "→"]
    with pytest.raises(TokensError, match="writes one of them as µ"):
        add_tokens(byte_level, ["µ"])


def test_what_texts_begin_with_moves_with_its_tag() -> None:
    """As in mBART, whose sources and targets differ in nothing else."""
    parts = trained("unigram", ("de", "fr")).to_json()
    source, target = (Tokens.from_json(with_prefix(parts, tag)) for tag in ("de", "fr"))
    size = recipe.Tokens(size=len(source) + 3)
    sides = extended_pair(source, target, size, ["quick quick quick"] * 4)
    assert sides[0].names() == sides[1].names()
    assert len(sides[0]) == len(source) + 3
    for old, new, tag in zip((source, target), sides, ("de", "fr"), strict=True):
        for grown in (new, add_tags(add_tokens(old, ["[X]"]), ["it"])):
            assert grown.pieces(grown.encode("a cat"))[0] == f"<{tag}>"
            assert grown.encode("<fr> a")[0] == grown.tags["fr"]


def test_a_tag_begins_as_the_mean_of_the_others_or_of_its_name() -> None:
    old = trained("unigram", ("de", "fr"))
    new = add_tags(old, ["it"])
    assert old_pieces(old, new)(new.tags["it"]) == list(old.tags.values())
    plain = trained("bpe")
    tagged = add_tags(plain, ["cat_dog"])
    found = old_pieces(plain, tagged)(tagged.tags["cat_dog"])
    assert "".join(plain.pieces(found)) == "▁cat▁dog"


def test_learned_pieces_do_not_push_tags_out() -> None:
    old = trained("unigram", ("fr",))
    new = extended(old, recipe.Tokens(size=len(old) + 4), ["über über zebra zebra quick"] * 4)
    assert len(new) > len(old)
    assert list(new.tags) == ["fr"]
    assert new.tags["fr"] == len(new) - 1
    assert json.loads(new.to_json())["added_tokens"][-1]["id"] == len(new) - 1


@pytest.mark.parametrize(
    ("level", "name", "message"),
    [
        ("subword", "a b", "is a text without spaces"),
        ("subword", "</s>", "which every vocabulary has"),
        ("character", "[X]", "this one has characters"),
    ],
)
def test_what_cannot_be_added(level: str, name: str, message: str) -> None:
    with pytest.raises(TokensError, match=message):
        add_tokens(trained("bpe", level=level), [name])
