"""Lines as tokens: what the model does not know is left out, words keep their tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_sounds import sound_model, sound_recipe
from transduce.alignment.lines import read_text, spell
from transduce.data.tokens import Tokens
from transduce.errors import DataError, ModelError
from transduce.recipe import Tokens as TokensRecipe
from transduce.tasks import Hearing
from transduce.transducer import create


def phone_model(phones: str) -> Hearing:
    tokens = Tokens.train(TokensRecipe(level="symbol"), [phones])
    model = create(sound_recipe("data.tokens.both.level=symbol"), tokens, tokens)
    assert isinstance(model, Hearing)
    return model


def test_letters_are_folded_and_strangers_left_out() -> None:
    model = sound_model(letters="abcde '")
    (line, strange) = spell(model, ["“Bad  cab”, 7 DEED!", "xyz"])
    assert model.source_tokens.decode(line.ids) == "bad cab deed"
    spelt = [(word, model.source_tokens.decode(line.ids[a:b])) for word, a, b in line.words]
    assert spelt == [("bad", "bad"), ("cab", "cab"), ("deed", "deed")]
    assert strange.ids == ()


def test_phones_of_words() -> None:
    pytest.importorskip("espeakng_loader", reason="needs the package espeakng-loader")
    model = phone_model("w iː ɑː f ɹ")
    (line,) = spell(model, ["We are, free!"], "en")
    assert line.phones == ("w", "iː", "ɑː", "f", "ɹ", "iː")
    assert line.words == (("We", 0, 2), ("are,", 2, 3), ("free!", 3, 6))
    with pytest.raises(DataError, match="espeak does not know the language xx"):
        spell(model, ["We"], "xx")


def test_phones_as_they_are() -> None:
    (line,) = spell(phone_model("w iː"), ["w iː zz w"])
    assert line.phones == ("w", "iː", "w")
    with pytest.raises(DataError, match="knows none of the signs of this text; name its --lang"):
        spell(phone_model("w iː"), ["we are"])


def test_a_model_without_ctc() -> None:
    model = sound_model("model.ctc=0", "decode.ctc=0")
    with pytest.raises(ModelError, match="aligning needs a model with CTC"):
        spell(model, ["abc"])


def test_texts(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("one\n\n two\n", "utf-8")
    assert read_text(tmp_path / "plain.txt") == ["one", "", "two"]
    (tmp_path / "named.txt").write_text("a_0001\tone two\na_0002\tthree\n", "utf-8")
    assert read_text(tmp_path / "named.txt") == ["one two", "three"]
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(DataError, match="holds no text"):
        read_text(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes(b"\xe9t\xe9")
    with pytest.raises(DataError, match="is not text in UTF-8"):
        read_text(tmp_path / "latin.txt")
