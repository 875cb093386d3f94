"""Lines as tokens: what the model does not know is left out, words keep their tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_sounds import audio_model, phone_model
from transduce.alignment.align import read_text, spell
from transduce.errors import DataError, ModelError


def test_letters_are_folded_and_strangers_left_out() -> None:
    model = audio_model(letters="abcde '")
    (line, strange) = spell(model, ["“Bad  cab”, 7 DEED!", "xyz"])
    assert model.source_tokens.decode(line.ids) == "bad cab deed"
    spelt = [(word, model.source_tokens.decode(line.ids[a:b])) for word, a, b in line.words]
    assert spelt == [("bad", "bad"), ("cab", "cab"), ("deed", "deed")]
    assert strange.ids == ()
    assert (line.unknown, strange.unknown) == (("7",), ("xyz",))


def test_phones_of_words() -> None:
    pytest.importorskip("espeakng_loader", reason="needs the package espeakng-loader")
    model = phone_model("w iː ɑː f ɹ")
    (line,) = spell(model, ["We are, free!"], "en")
    assert line.phones == ("w", "iː", "ɑː", "f", "ɹ", "iː")
    assert line.words == (("We", 0, 2), ("are,", 2, 3), ("free!", 3, 6))
    with pytest.raises(DataError, match="espeak does not know the language xx"):
        spell(model, ["We"], "xx")


def test_every_word_of_a_group_has_phones() -> None:
    pytest.importorskip("espeakng_loader", reason="needs the package espeakng-loader")
    model = phone_model("ɪ t w ʌ z ð ɛ n d ɒ v ə eɪ")
    (line,) = spell(model, ["It was the end of the day."], "en")
    spelt = [(word, "".join(line.phones[a:b])) for word, a, b in line.words]
    words = "It:ɪt was:wʌz the:ðɪ end:ɛnd of:ɒv the:ðə day.:deɪ"
    assert spelt == [tuple(pair.split(":")) for pair in words.split()]
    assert line.unknown == ()
    (line,) = spell(phone_model("ɪ t"), ["It was"], "en")
    assert (line.words, line.unknown) == ((("It", 0, 2),), ("was",))


def test_phones_as_they_are() -> None:
    (line,) = spell(phone_model("w iː"), ["w iː w iː w iː w iː w zz w"])
    assert "".join(line.phones) == "wiːwiːwiːwiːww"
    assert line.unknown == ("zz",)


@pytest.mark.parametrize("text", ["we are", "a phone a day", "w iː zz"])
def test_words_are_no_phones(text: str) -> None:
    """Of a sentence, the words that are spelt like a phone would be found anywhere."""
    with pytest.raises(DataError, match=r"not written in phones: there is no phone.*--language en"):
        spell(phone_model("w iː a"), [text])


def test_a_model_without_ctc() -> None:
    model = audio_model("model.ctc_weight=0", "decode.ctc_weight=0")
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
