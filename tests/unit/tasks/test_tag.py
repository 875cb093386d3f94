"""Taggers in use: a tag for each word, letters of unknown words, where words end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tiny_label_networks import SENTENCES, tagger
from tiny_models import tiny
from transduce.data.cache.tokenised import encode_corpus
from transduce.data.tokens.tokenizer import SPECIALS
from transduce.errors import DataError, ModelError
from transduce.evaluation.evaluate import evaluate_folder
from transduce.tasks import Tagger
from transduce.tasks.transduce import load
from transduce.training.distributed.processes import Processes
from transduce.training.prepare import prepare
from transduce.training.validate import loss_and_tokens

LETTERS = {"characters": {"width": 4}}


def test_each_word_has_its_likeliest_tag() -> None:
    model = tagger()
    for text, output in zip(SENTENCES, model.run(SENTENCES), strict=True):
        words = text.split()
        ids = torch.tensor([[model.source_tokens.encode(word)[0] for word in words]])
        states_1SD = model.network(ids, torch.tensor([len(words)])).detach()
        log_probs_SV = model.network.head(states_1SD)[0].log_softmax(-1).detach()
        best = log_probs_SV.max(dim=-1)
        tags = [model.target_tokens.decode([int(n) + len(SPECIALS)]) for n in best.indices.tolist()]
        assert output.tokens == tags
        assert output.text == " ".join(tags)
        assert output.source_tokens == words
        assert output.log_probability == pytest.approx(float(best.values.sum()), abs=1e-5)
        assert output.probabilities == pytest.approx(best.values.exp().tolist(), abs=1e-5)
        assert model.show(output) == " ".join(map("/".join, zip(words, tags, strict=True)))


def test_as_many_tags_as_words_whatever_white_space_there_is() -> None:
    sources = [
        "",
        " ",
        "dog",
        " The  dog\t runs\u00a0. ",
        "x\x1cy z\u2003w",
        "\u00a8 \u200b <s> <unk>",
    ]
    for source, output in zip(sources, tagger().run(sources), strict=True):
        assert len(output.tokens) == len(source.split()) == len(output.probabilities)


def test_unknown_words_are_told_apart_by_their_letters_alone() -> None:
    """What is said of one does not depend on the others that are asked at the same time."""
    model = tagger(**LETTERS)
    words = ["unheard", "of", "zyx", "dog"]
    together = model.run(words)
    alone = [model.run([word])[0] for word in words]
    for one, other in zip(together, alone, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-6)
    assert abs(together[0].log_probability - together[2].log_probability) > 1e-6
    plain = tagger()
    unknown = plain.run(["unheard", "zyx"])
    assert unknown[0].probabilities == unknown[1].probabilities
    assert model.network.front.spelled == len(model.source_tokens)


def test_letters_are_those_of_the_text_as_training_saw_it() -> None:
    model = tagger({"tokens": {"source": {"lowercase": True}}}, **LETTERS)
    small, large = model.run(["god", "GOD"])
    assert small.probabilities == large.probabilities
    assert tagger(**LETTERS).run(["Zog"])[0] != tagger(**LETTERS).run(["zog"])[0]


def test_what_is_beyond_the_positions_has_no_tag() -> None:
    settings = {"layers": 1, "heads": 2, "positions": "learned", "max_positions": 3}
    (output,) = tagger({"max_length": 2}, encoder=settings).run(["a dog runs fast"])
    assert len(output.tokens) == 3
    assert "this model has positions for 3; it was truncated" in output.warning


def test_the_column_is_the_one_it_has_learnt_from() -> None:
    assert tagger().column == "upos"
    assert tagger({"train": {"file": "a.conllu", "target": "xpos"}}).column == "xpos"
    assert tagger({"train": {"name": "copy", "split": "train"}}).column == "upos"


def test_there_is_nothing_to_set() -> None:
    with pytest.raises(ModelError, match="nbest is not a setting of a tagger; it has no settings"):
        tagger().run(SENTENCES, nbest=2)


@pytest.mark.parametrize("model", [LETTERS, {}, {"characters": {"kind": "cnn", "width": 2}}])
def test_it_is_saved_and_loaded_as_what_it_is(tmp_path: Path, model: dict[str, Any]) -> None:
    made = tagger(**model)
    made.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert type(again) is Tagger
    assert again.run([*SENTENCES, "unheard"]) == made.run([*SENTENCES, "unheard"])


@pytest.mark.parametrize("model", [tagger(**LETTERS), tagger()], ids=["letters", "words"])
def test_the_loss_of_unknown_words_sees_their_letters(tmp_path: Path, model: Tagger) -> None:
    """What `run` says of its own tags, and what the loss makes of them, are the same."""
    sources = ["zog runs", "The dog", "unheard of zog"]
    outputs = model.run(sources)
    lines = [f"{s}\t{o.text}\n" for s, o in zip(sources, outputs, strict=True)]
    (tmp_path / "a.tsv").write_text("".join(lines))
    data = model.recipe.data.model_copy(update={"folder": str(tmp_path)})
    corpus, _ = encode_corpus(data.train, data, model.source_tokens, model.target_tokens, None)
    prepared = model.prepare_corpus(corpus, sources)
    assert (prepared is corpus) == (model.network.front.letters is None)
    total, count = loss_and_tokens(model, prepared, 100)
    assert count == 7
    assert -total == pytest.approx(sum(o.log_probability for o in outputs), rel=1e-4)
    for before, after in zip(outputs, model.run(sources), strict=True):
        assert after.probabilities == pytest.approx(before.probabilities, abs=1e-6)


def test_unseen_tags_are_in_no_mean(tmp_path: Path) -> None:
    """A validation's loss is that of the tags which the model can predict at all."""
    model = tagger()
    data = model.recipe.data.model_copy(update={"folder": str(tmp_path)})
    found = []
    for tags in ("DET NOUN VERB PUNCT", "DET NEVER NEITHER PUNCT"):
        (tmp_path / "a.tsv").write_text(f"The dog runs .\t{tags}\n")
        corpus, _ = encode_corpus(data.train, data, model.source_tokens, model.target_tokens, None)
        found.append(loss_and_tokens(model, corpus, 100))
    assert [count for _, count in found] == [4, 2]
    assert 0 < found[1][0] < found[0][0]


def test_lines_with_another_number_of_tags_are_not_judged(tmp_path: Path) -> None:
    """They were not learnt from either, and no answer to them could be right."""
    model = tagger(data={"folder": str(tmp_path)})
    right = "The dog runs .\tDET NOUN VERB PUNCT\na cat/dog sleeps\tDET NOUN VERB\n"
    (tmp_path / "a.tsv").write_text(right)
    expected = evaluate_folder(model, tmp_path, split="valid")
    assert expected.skipped == 0
    (tmp_path / "a.tsv").write_text(f"{right}dogs ran\tNOUN\n")
    found = evaluate_folder(model, tmp_path, split="valid")
    assert found.skipped == 1
    assert [m.value for m in found.metrics.values()] == [m.value for m in expected.metrics.values()]
    assert len(prepare(model.recipe, None, lambda _: None, Processes()).items) == 2
    (tmp_path / "a.tsv").write_text("dogs ran\tNOUN\n")
    with pytest.raises(DataError, match=r"a\.tsv has no pair with as many labels as words"):
        evaluate_folder(model, tmp_path, split="valid")


@pytest.mark.parametrize("role", ["language_model", "rerank", "ensemble"])
def test_a_tagger_does_not_help_another_model_to_write(role: str) -> None:
    helper: Any = tagger()
    with pytest.raises(ModelError, match=r"tagger|task: tag"):
        tiny().run(["tea"], **{role: [helper] if role == "ensemble" else helper})
