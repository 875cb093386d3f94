"""espeak: phones of words, at their times; languages by their tags; what it says when it cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from transduce.errors import DataError
from transduce.synthesis import espeak as module
from transduce.synthesis.espeak import Espeak
from transduce.synthesis.voices import HELD_OUT, KNOWN, voices

loader = pytest.importorskip("espeakng_loader", reason="needs the package espeakng-loader")


@pytest.fixture(scope="module")
def espeak() -> Espeak:
    return module.espeak()


def test_phones_belong_to_words(espeak: Espeak) -> None:
    reading = espeak.read("The church judges  seven boys.", "gmw/en")
    assert reading.symbols == "ð ə tʃ ɜː tʃ dʒ ʌ dʒ ɪ z s ɛ v ə n b ɔɪ z"
    spelt = ["".join(p.symbol for p in reading.phones if p.word == word) for word in range(5)]
    assert spelt == ["ðə", "tʃɜːtʃ", "dʒʌdʒɪz", "sɛvən", "bɔɪz"]


@pytest.mark.parametrize(
    ("voice", "text", "spelt"),
    [
        ("gmw/en", "It was the end of the day.", "ɪt wʌz ðɪ ɛnd ɒv ðə deɪ"),
        ("gmw/en", "There was a cat on the mat", "ðeə wɒz ɐ kat ɒn ðə mat"),
        ("gmw/en", "all of the — others", "ɔːl ɒv ðə  ʌðəz"),
        ("roa/fr", "Il n'y a pas de quoi", "il ni a pa də kwa"),
    ],
)
def test_words_of_one_group_have_their_own_phones(
    espeak: Espeak, voice: str, text: str, spelt: str
) -> None:
    """espeak says "was the" in one breath, and tells where it begins, not where "the" does."""
    phones = espeak.read(text, voice).phones
    words = range(len(text.split()))
    found = ["".join(p.symbol for p in phones if p.word == word) for word in words]
    assert found == spelt.split(" ")


def test_phones_have_times(espeak: Espeak) -> None:
    """A pause between two words is silent, and no phone lies in it."""
    reading = espeak.read("Stop. Go.", "gmw/en")
    assert all(a.end <= b.start for a, b in zip(reading.phones, reading.phones[1:], strict=False))
    stop, go = ([p for p in reading.phones if p.word == word] for word in (0, 1))
    pause = reading.samples[round(stop[-1].end * espeak.rate) : round(go[0].start * espeak.rate)]
    assert len(pause) > 0.1 * espeak.rate
    assert np.abs(pause[len(pause) // 2 :]).max() < 0.01
    assert go[-1].end <= len(reading.samples) / espeak.rate
    loud = np.abs(reading.samples[round(go[0].start * espeak.rate) :]).max()
    assert loud > 0.1


def test_stress_and_tones_are_left_out(espeak: Espeak) -> None:
    assert espeak.read("Tất cả", "aav/vi").symbols == "t̪ ə t̪ k aː"
    assert "ˈ" not in espeak.read("record", "gmw/en").symbols


def test_languages(espeak: Espeak) -> None:
    assert espeak.voice_of("en") == "gmw/en"
    assert espeak.voice_of("de-1996") == "gmw/de"
    assert espeak.voice_of("pt-BR") == "roa/pt-BR"
    assert espeak.voice_of("zh") == "sit/cmn"
    assert espeak.voice_of("xx") is None
    assert espeak.voice_of("") is None
    with pytest.raises(DataError, match="espeak has no voice xx"):
        espeak.read("a", "xx")


def test_a_script_that_is_spelt_is_reported(espeak: Espeak) -> None:
    assert espeak.read("信託統治地域", "jpx/ja").foreign
    assert not espeak.read("すべて", "jpx/ja").foreign


def test_speed_and_voice_are_heard(espeak: Espeak) -> None:
    slow = espeak.read("All are equal.", "gmw/en", speed=120)
    fast = espeak.read("All are equal.", "gmw/en", speed=240)
    assert len(slow.samples) > 1.4 * len(fast.samples)


def test_every_variant_is_there() -> None:
    """espeak itself takes any name without a word, and reads in its usual voice."""
    variants = {p.name for p in (Path(loader.get_data_path()) / "voices" / "!v").iterdir()}
    assert {*KNOWN, *HELD_OUT} <= variants
    assert not set(KNOWN) & set(HELD_OUT)
    assert len(set(KNOWN)) == len(KNOWN)


def test_more_voices_are_the_same_and_others() -> None:
    assert [voice for voice in voices(3) if voice.held_out] == voices(9)[9:]
    assert voices(3)[:3] == voices(9)[:3]
    with pytest.raises(DataError, match="voices can be 1 to 23, not 0"):
        voices(0)


def test_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(module, "import_module", gone)
    with pytest.raises(DataError, match=r"espeakng-loader.*pip install '\.\[speech\]'"):
        Espeak()
