"""Language identification among the languages that are served."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from transduce.data.languages.detect import lingua_codes
from transduce.serving.languages import Detector, choose_detector, name_of

SENTENCES = {
    "en": "A man in a blue shirt is standing on a ladder and cleaning a window.",
    "de": "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
    "fr": "Un homme en chemise bleue est debout sur une échelle et nettoie une fenêtre.",
    "ru": "Мужчина в синей рубашке стоит на лестнице и моет окно.",
    "uk": "Чоловік у синій сорочці стоїть на драбині й миє вікно.",
    "zh": "一个穿蓝色衬衫的男人站在梯子上擦窗户。",
    "ja": "青いシャツを着た男性がはしごに登って窓を拭いています。",
    "el": "Ένας άνδρας με μπλε πουκάμισο στέκεται σε μια σκάλα.",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_sentence_is_told_apart(language: str) -> None:
    first, *_ = Detector(SENTENCES).detect(SENTENCES[language])
    assert first.language == language
    assert first.confidence > 25


def test_a_language_that_is_not_served_has_low_confidence() -> None:
    """With one language to choose from, the answer is that one; how sure it is stays honest."""
    detector = Detector(["en"])
    (right,), (wrong,) = detector.detect(SENTENCES["en"]), detector.detect(SENTENCES["de"])
    assert right.language == wrong.language == "en"
    assert right.confidence > 90
    assert wrong.confidence < 1


def test_a_text_without_letters_is_in_no_language() -> None:
    assert Detector(["en", "de"]).detect("12:30 !?") == []


def test_a_language_without_a_profile_is_known_by_its_vocabulary() -> None:
    vocabulary = ["▁mwana", "▁ngá", "▁wa", "ɛ", "ɔ", "▁obá", "▁kúsá", "▁dzwa", "bwɛ"]
    detector = Detector(["mdw", "en"], {"mdw": vocabulary})
    assert detector.detect("mwana wa ngá obá bwɛ kúsá")[0].language == "mdw"
    assert detector.detect(SENTENCES["en"])[0].language == "en"


def test_a_variant_has_the_profile_of_its_language() -> None:
    assert Detector(["en-GB", "de"]).detect(SENTENCES["en"])[0].language == "en-GB"


def test_names_are_english() -> None:
    assert name_of("de") == "German"
    assert name_of("pt-BR") == "Portuguese (BR)"
    assert name_of("mdw") == "mdw"


@pytest.fixture
def lingua(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stand-in for the package, which knows three languages."""

    def language(code: str) -> Any:
        return SimpleNamespace(iso_code_639_1=SimpleNamespace(name=code))

    class Builder:
        @classmethod
        def from_all_languages(cls) -> Builder:
            return cls()

        def build(self) -> Builder:
            return self

        def compute_language_confidence_values(self, text: str) -> list[Any]:
            values = {"EN": 0.2, "DE": 0.7, "FR": 0.1}
            return [SimpleNamespace(language=language(c), value=v) for c, v in values.items()]

    known = SimpleNamespace(all=lambda: [language(code) for code in ("EN", "DE", "FR")])
    package = SimpleNamespace(LanguageDetectorBuilder=Builder, Language=known)
    monkeypatch.setitem(sys.modules, "lingua", package)  # type: ignore[arg-type]
    lingua_codes.cache_clear()
    yield
    lingua_codes.cache_clear()


@pytest.mark.usefixtures("lingua")
def test_lingua_is_used_where_it_knows_all_languages() -> None:
    detector = choose_detector(["en-GB", "de"])
    assert detector.engine == "lingua"
    first, second = detector.detect("anything")
    assert (first.language, first.confidence) == ("de", 70.0)
    assert (second.language, second.confidence) == ("en-GB", 20.0)
    assert detector.detect("12:30 !?") == []
    assert choose_detector(["en", "mdw"]).engine == "n-grams"
    assert choose_detector([]).engine == "n-grams"


def test_without_lingua_profiles_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lingua", None)
    lingua_codes.cache_clear()
    detector = choose_detector(["en", "de"])
    lingua_codes.cache_clear()
    assert detector.engine == "n-grams"
    assert detector.detect(SENTENCES["en"])[0].language == "en"
