"""Classifiers in use: labels, probabilities, alternatives, attention, settings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tiny_label_networks import FILMS, LABELS, classifier
from transduce import recipe
from transduce.data.tokens import tokenizer
from transduce.data.tokens.tokenizer import SPECIALS, Tokens
from transduce.errors import DataError, ModelError
from transduce.tasks import Classifier, Model
from transduce.tasks.transduce import create, load
from transduce.training.distributed.processes import Processes
from transduce.training.prepare import prepare


def test_the_label_that_is_likeliest_is_the_text() -> None:
    model = classifier()
    outputs = model.run(FILMS, nbest=3)
    for text, output in zip(FILMS, outputs, strict=True):
        ids = model.source_tokens.encode(text)
        average_D = model.network.front.table.weight[ids].mean(dim=0)
        logits_V = model.network.head.weight @ average_D + model.network.head.bias
        probabilities = logits_V.softmax(-1).tolist()
        names = [model.target_tokens.decode([n + len(SPECIALS)]) for n in range(3)]
        assert sorted(names) == sorted(LABELS)
        expected = sorted(zip(probabilities, names, strict=True), reverse=True)
        assert [o.text for o in output.alternatives] == [name for _, name in expected]
        for one, (probability, _) in zip(output.alternatives, expected, strict=True):
            assert one.score == pytest.approx(probability, abs=1e-5)
            assert one.probabilities == [one.score]
            assert one.log_probability == pytest.approx(math.log(one.score))
        assert (output.text, output.tokens) == (expected[0][1], [expected[0][1]])
        assert model(text) == output.text
    assert sum(o.score for o in outputs[0].alternatives) == pytest.approx(1)


@pytest.mark.parametrize("nbest", [1, 2])
def test_many_texts_have_the_outputs_that_each_has_alone(
    nbest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "AT_ONCE", 4)
    model = classifier()
    texts = [*FILMS, "", "zzz zzz fine", f"{FILMS[0]} {FILMS[1]}", "zzz"] * 3
    outputs = model.run(texts, nbest=nbest)
    assert sum(bool(output.warning) for output in outputs) == 6
    for text, output in zip(texts, outputs, strict=True):
        (alone,) = model.run([text], nbest=nbest)
        assert output.score == pytest.approx(alone.score, rel=1e-6)
        for field in ("text", "tokens", "source_tokens", "warning"):
            assert getattr(output, field) == getattr(alone, field)
        ids = model.source_tokens.encode(text)
        assert output.source_tokens == model.source_tokens.pieces(ids)
        assert [o.text for o in output.alternatives] == [o.text for o in alone.alternatives]


def test_one_label_has_no_alternatives_and_empty_texts_have_none() -> None:
    outputs = classifier().run(["", "fine", "  "])
    assert [bool(output.text) for output in outputs] == [False, True, False]
    assert outputs[1].alternatives == []
    assert classifier().run([]) == []


def test_tags_of_a_call_are_before_every_text() -> None:
    model = classifier()
    tagged = Tokens.train(recipe.Tokens(level="word"), FILMS, ["de", "en"])
    model = create(model.recipe, tagged, model.target_tokens)
    blank, text = model.run(["", FILMS[0]], tags=["en"])
    assert not blank.text
    assert [text] == model.run([f"<en> {FILMS[0]}"])
    assert text != model.run([f"<de> {FILMS[0]}"])[0]
    with pytest.raises(ModelError, match="has no tag fr; its tags are de, en"):
        model.run(FILMS, tags=["fr"])


def test_attention_is_how_much_of_the_average_each_word_is() -> None:
    model = classifier(pooling="attention")
    with torch.no_grad():
        model.network.front.table.weight.mul_(4)
    for text, output in zip(FILMS, model.run(FILMS, attention=True), strict=True):
        ids = model.source_tokens.encode(text)
        assert output.attention.shape == (1, 1, 1, len(ids))
        x_SD = model.network.front.table.weight[ids]
        weights_S = (x_SD @ x_SD.T).softmax(-1).mean(dim=0).detach()
        torch.testing.assert_close(torch.tensor(output.attention[0, 0, 0]), weights_S)
        assert output.source_tokens == model.source_tokens.pieces(ids)
        assert output.to_json()["attention"][0][0] == pytest.approx(float(weights_S[0]), abs=1e-4)
    assert classifier().run(FILMS, attention=True)[0].attention is None


def test_what_training_cut_is_cut_in_use() -> None:
    long = "fine film " * 10 + "dull"
    cut, whole = (
        classifier({"max_length": 2, "overlong": overlong}) for overlong in ("truncate", "skip")
    )
    assert cut.run([long])[0].score == cut.run(["fine film"])[0].score
    assert whole.run([long])[0].score != whole.run(["fine film"])[0].score
    assert len(cut.run([long])[0].source_tokens) == 2
    assert not cut.run([long])[0].warning


def test_positions_that_end_are_reported() -> None:
    settings = {"layers": 1, "heads": 2, "positions": "learned", "max_positions": 4}
    model = classifier({"max_length": 3}, encoder=settings)
    assert "this model has positions for 4" in model.run(["fine " * 6])[0].warning


@pytest.mark.parametrize("setting", [{"beam": 3}, {"prefix": "a"}, {"nbset": 2}])
def test_settings_of_a_search_are_not_for_it(setting: dict[str, Any]) -> None:
    name = next(iter(setting))
    with pytest.raises(
        ModelError, match=f"{name} is not a setting of a classifier; its settings are tags, nbest"
    ):
        classifier().run(FILMS, **setting)


def test_what_it_cannot_do_it_says() -> None:
    model = classifier()
    with pytest.raises(ModelError, match="does not score targets; `transduce run --scor"):
        model.score(FILMS, FILMS)
    with pytest.raises(ModelError, match="a classifier does not stream its output"):
        model.stream("a")
    with pytest.raises(ModelError, match="a classifier does not support precision int8"):
        model.compute_in("int8")
    with pytest.raises(ModelError, match="list of sources"):
        model.run("a")


def test_it_is_saved_and_loaded_as_what_it_is(tmp_path: Path) -> None:
    model = classifier(pooling="attention")
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert type(again) is Classifier
    assert again.run(FILMS) == model.run(FILMS)
    assert again.recipe.model.decoder is None


def test_the_network_is_left_as_it_was() -> None:
    model = classifier(dropout=0.5)
    model.network.train()
    first = model.run(FILMS)
    assert model.network.training
    assert model.run(FILMS) == first


def test_every_task_has_a_class() -> None:
    assert Model.tasks["classify"] is Classifier


def test_there_is_at_least_one_best() -> None:
    with pytest.raises(ModelError, match="nbest is 0; it must be 1 or more"):
        classifier().run(["fine"], nbest=0)
    assert len(classifier().run(["fine"], nbest=9)[0].alternatives) == len(LABELS)


def prepared(folder: Path, train: str, valid: str) -> list[str]:
    """What is said before training begins."""
    (folder / "a.tsv").write_text(train)
    (folder / "b.tsv").write_text(valid)
    model = classifier(data={"folder": str(folder), "valid": {"file": "b.tsv"}})
    said: list[str] = []
    prepare(model.recipe, None, said.append, Processes())
    return said


def test_labels_that_training_has_not_are_named(tmp_path: Path) -> None:
    said = prepared(tmp_path, "fine\tgood\ndull\tbad\n", "fine\tgood\ndull\tso so\n")
    assert "  warning: labels that do not occur in training count as wrong: so so" in said
    said = prepared(tmp_path, "fine\tgood\ndull\tbad\n", "fine\tgood\n")
    assert not any("labels that" in line for line in said)


def test_one_label_is_nothing_to_tell_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.tsv has only one label"):
        prepared(tmp_path, "fine\tgood\ndull\tgood\n", "fine\tgood\n")


def test_a_text_of_unknown_words_has_a_warning() -> None:
    known, half, unknown = classifier().run(
        ["a fine film", "a film xyzzy plugh", "xyzzy plugh foo"]
    )
    assert known.warning == half.warning == ""
    assert unknown.warning.startswith("3 of its 3 tokens are not in the vocabulary")
