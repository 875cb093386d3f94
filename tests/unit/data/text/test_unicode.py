"""Unicode forms: what was learnt from composed text is written composed, whatever tokens are."""

from __future__ import annotations

from pathlib import Path
from unicodedata import is_normalized, normalize

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce import recipe
from transduce.data.text.unicode import composed, continued, form_of, stable_prefix
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.tokenizer import Tokens
from transduce.recipe import parse_recipe
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.transduce import create

COMPOSED = ["déjà vu à Noël", "한국어", "τὸ ἄλφα", "plain"]
DECOMPOSED = [normalize("NFD", text) for text in COMPOSED]
FORMS = {"NFC": COMPOSED, "NFD": DECOMPOSED}


@pytest.mark.parametrize("level", ["character", "subword", "word", "symbol", "byte", "label"])
@pytest.mark.parametrize("form", ["nfc", "nfd", "nfkc", "nfkd", "none"])
@pytest.mark.parametrize("had", ["NFC", "NFD"])
def test_texts_come_back_in_the_form_that_training_had(
    level: str, form: str, had: str, tmp_path: Path
) -> None:
    texts = [text for text in FORMS[had] if level != "word" or " " not in text]
    made = Tokens.train(recipe.Tokens(level=level, normalize=form, size=400), texts * 3)
    made.save(tmp_path / "tokens.json")
    other = {"NFC": "NFD", "NFD": "NFC"}[had]
    for tokens in (made, Tokens.load(tmp_path / "tokens.json")):
        for text in texts:
            ids = tokens.encode(text)
            assert tokens.decode(ids) == text
            if form != "none":  # however it is given: a source, a prefix, a target to score
                assert tokens.encode(normalize(other, text)) == ids
        if level == "label":
            assert tokens.pieces(tokens.encode(texts[0])) == [texts[0]]


def test_tokens_are_those_that_they_were_without_the_form_of_texts() -> None:
    """NFD after NFC finds the same letters as NFD alone."""
    keys = recipe.Tokens(level="character", normalize="nfd")
    one, other = (Tokens.train(keys, texts) for texts in (COMPOSED, DECOMPOSED))
    assert one.names() == other.names()
    assert (one.form, other.form) == ("NFC", None)
    assert one.encode(COMPOSED[1]) == other.encode(COMPOSED[1])
    assert len(one.encode("한")) == 3


@pytest.mark.parametrize(("source", "form"), [("NFD", "NFC"), ("NFC", None)])
def test_one_vocabulary_for_both_sides_has_the_form_of_targets(
    source: str, form: str | None, tmp_path: Path
) -> None:
    target = {"NFC": "NFD", "NFD": "NFC"}[source]
    (tmp_path / "a.txt").write_text("\n".join(FORMS[source]), "utf-8")
    (tmp_path / "b.txt").write_text("\n".join(FORMS[target]), "utf-8")
    text = """data:
  train: {source: a.txt, target: b.txt}
  valid: {source: a.txt, target: b.txt}
  tokens: {both: {level: character, normalize: nfd}}
"""
    shared, _ = train_tokens(parse_recipe(text, "my.yaml", tmp_path).data)
    assert shared.form == form


def test_most_of_the_texts_decide() -> None:
    assert form_of(["plain", "漢字"]) is None
    assert form_of([COMPOSED[0], DECOMPOSED[0]]) == "NFC"
    assert form_of([COMPOSED[0], DECOMPOSED[0], DECOMPOSED[1]]) == "NFD"
    assert form_of(iter(COMPOSED)) == "NFC"
    assert form_of([COMPOSED[0] + DECOMPOSED[0]]) is None  # both in one line tell nothing


TEXT = st.text(alphabet="ae한각ㅎ한ᆨ\u0301\u0323 xเ\u0bc6\u0bbe", max_size=8)


@given(text=TEXT, more=TEXT)
@settings(max_examples=300, deadline=None)
def test_what_is_settled_does_not_change(text: str, more: str) -> None:
    for form in ("NFC", "NFD"):
        early, late = normalize(form, text), normalize(form, text + more)
        assert late.startswith(stable_prefix(early))
        assert normalize("NFC", continued(early, more, form)) == normalize("NFC", text + more)
    assert continued(text, more, None) == text + more


def test_a_letter_waits_for_its_accent() -> None:
    assert stable_prefix("cafe") == "caf"
    assert stable_prefix("") == stable_prefix("e\u0301") == ""
    assert composed("e\u0301") == "é"
    assert continued("cafe", "\u0301 noir", "NFC") == "café noir"
    assert is_normalized("NFC", continued("cafe", "\u0301", "NFC"))


CORPUS = ["éèê", "ãõñ", "üöä", "αάὰᾶ", "한국", "eau"]


def untrained(task: str) -> GenerativeModel:
    """Written with random weights, letters and accents come in any order."""
    text = "{text: a, lines: apart}" if task == "language_modeling" else "{source: a, target: a}"
    data = f"  train: {text}\n  valid: {text}\n"
    keys = "  tokens: {both: {level: character, normalize: nfd}}\n"
    shape = "model: {preset: transformer-tiny, width: 32}\n"
    made = parse_recipe(f"task: {task}\ndata:\n{data}{keys}{shape}", "my.yaml", Path("/"))
    both = made.data.tokens.both
    assert both is not None
    tokens = Tokens.train(both, CORPUS)
    torch.manual_seed(3)
    model = create(made, tokens, tokens)
    model.network.eval()
    assert isinstance(model, GenerativeModel)
    return model


@pytest.mark.parametrize("task", ["transduce", "language_modeling"])
def test_outputs_are_composed_at_once_and_piece_by_piece(task: str) -> None:
    model = untrained(task)
    accented = 0
    for seed, source in enumerate(CORPUS * 3):
        asked = {"sample": True, "seed": seed, "max_length": 30, "beam": 1}
        (output,) = model.run([source], **asked)
        assert is_normalized("NFC", output.text)
        assert "".join(model.stream(source, **asked)) == output.text
        accented += not is_normalized("NFD", output.text)
    assert accented > 5
    outputs = model.run(CORPUS, beam=4, nbest=3)
    assert all(is_normalized("NFC", one.text) for out in outputs for one in out.alternatives)


def test_a_prefix_may_be_composed_or_not() -> None:
    model = untrained("transduce")
    one, other = (
        model.run(["eau"], prefix=normalize(form, "ñü"), include=[normalize(form, "ê")], beam=4)[0]
        for form in ("NFC", "NFD")
    )
    assert one.text == other.text
    assert one.text.startswith("ñü")
    assert "ê" in one.text
    scores = [model.score(["eau"], [normalize(form, one.text)])[0] for form in ("NFC", "NFD")]
    assert scores[0] == scores[1]


def test_a_tag_is_known_composed_or_not() -> None:
    keys = recipe.Tokens(level="character")
    for form in ("NFC", "NFD"):
        tokens = Tokens.train(keys, ["abc"], [normalize(form, "français")])
        assert list(tokens.tags) == ["français"]
        for given_form in ("NFC", "NFD"):
            ids = tokens.encode(normalize(given_form, "<français> abc"))
            assert ids[0] == tokens.tags["français"]
            assert len(ids) == 4
