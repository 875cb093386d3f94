"""Language identification among the languages that are served."""

from __future__ import annotations

import pytest

from transduce.serving.languages import Detector, name_of

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
