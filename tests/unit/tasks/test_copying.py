"""Models that copy, in a person's hands: letters that they never saw come out of every search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.data.cache.tokenised import encode_corpus
from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.errors import ModelError, RecipeError
from transduce.inspection.analysis import attribute
from transduce.inspection.look.collect import collect
from transduce.interop.huggingface.layout import choose_family
from transduce.interop.positions import check_parts
from transduce.recipe import Recipe, read_recipe
from transduce.recipe import Tokens as TokensKeys
from transduce.tasks.transduce import Transducer, create, load

TRANSFORMER = {"layers": 2, "heads": 2, "feed_forward": 24}
RECURRENT = {"kind": "recurrent", "cell": "gru"}
KINDS = {"transformer": TRANSFORMER, "recurrent": RECURRENT}
LEVEL = {"level": "character"}


def settings(kind: str = "transformer", **more: Any) -> dict[str, Any]:
    part = KINDS[kind]
    return {
        "data": {
            "train": {"name": "copy", "split": "train"},
            "valid": {"name": "copy", "split": "valid"},
            "tokens": {"both": LEVEL},
        },
        "model": {"width": 16, "encoder": part, "decoder": {**part, "copying": True}},
        "decode": {"max_ratio": 1.0, "max_extra": 1},
        **more,
    }


def make(kind: str = "transformer", copies: bool = True, seed: int = 1) -> Transducer:
    """Random weights, and a gate that copies almost always."""
    recipe = settings(kind)
    recipe["model"]["decoder"] = {**KINDS[kind], "copying": copies}
    tokens = Tokens.train(TokensKeys.model_validate(LEVEL), ["abcdefghijk"])
    torch.manual_seed(seed)
    model = create(read_recipe(recipe), tokens, tokens)
    assert isinstance(model, Transducer)
    if copies:
        pointer: Any = model.network.pointer
        with torch.no_grad():
            pointer.gate.weight.zero_()
            pointer.gate.bias.fill_(-20.0)
    model.network.eval()
    return model.freeze()


def best(model: Transducer, source: str, **keys: Any) -> str:
    return model.run([source], **keys)[0].text


WAYS: dict[str, Callable[[Transducer], str]] = {
    "greedy": lambda model: best(model, "жжжжжж", beam=1),
    "beam": lambda model: best(model, "жжжжжж", beam=3, nbest=2),
    "groups": lambda model: best(model, "жжжжжж", beam=4, groups=2),
    "sample": lambda model: best(model, "жжжжжж", sample=True, top_k=1),
    "no unknown": lambda model: best(model, "жжжжжж", unknown=False),
    "ensemble": lambda model: best(model, "жжжжжж", ensemble=[model], beam=2),
    "rerank": lambda model: best(model, "жжжжжж", rerank=model, beam=2),
    "mbr": lambda model: best(model, "жжжжжж", mbr="chrf", sample=True, top_k=1, nbest=2),
    "coverage": lambda model: best(model, "жжжжжж", coverage_penalty=0.1, beam=2),
    "stream": lambda model: "".join(model.stream("жжжжжж")),
    "int8": lambda model: best(model.compute_in("int8"), "жжжжжж"),
    "bfloat16": lambda model: best(model.compute_in("bfloat16"), "жжжжжж"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_letter_that_is_in_no_vocabulary_is_written(kind: str, way: str) -> None:
    assert WAYS[way](make(kind)).startswith("жжж")


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_lenses_agree_with_search(kind: str) -> None:
    model = make(kind)
    with model.lens("pointer.copied", "next_token") as seen:
        (output,) = model.run(["aжbщж"], beam=2)
    (score,) = model.score(["aжbщж"], [output.text])
    assert score.log_probability == pytest.approx(output.log_probability, abs=1e-4)
    assert score.tokens == output.tokens
    assert output.source_tokens == ["a", "ж", "b", "щ", "ж", "</s>"]
    assert set(output.text) <= set("aжbщ")
    entry = seen[0]
    assert entry["pointer.copied"].shape == (len(output.tokens), 1)
    assert entry["pointer.copied"][0, 0] > 0.5
    assert entry.next_tokens is not None
    assert set(entry.next_tokens.tokens[0][:4]) == set("aжbщ")


def test_the_page_and_attributions_show_what_was_copied() -> None:
    model = make("recurrent")
    page = collect(model, "жщ", beam=2)
    assert set(page["text"]) <= set("жщ")
    assert page["axes"]["source"] == ["ж", "щ", "</s>"]
    assert "copied from the source" in page["cells"][-1]["rows"]
    assert set(page["text"]) <= {node[1] for node in page["beam"]["nodes"]}
    total = sum(step["log_probability"] for step in page["steps"])
    assert total == pytest.approx(page["log_probability"], abs=1e-2)
    why = attribute(model, "жщ", "щж", method="erasure")
    assert why.target_tokens == ["щ", "ж", "</s>"]
    values = model.score(["жщ"], ["щж"])[0].token_log_probabilities
    assert why.values.tolist() == pytest.approx(values, abs=1e-4)


def test_a_saved_model_copies_as_before(tmp_path: Path) -> None:
    model = make()
    model.save(tmp_path)
    (before,), (after,) = (one.run(["aжbщж"]) for one in (model, load(tmp_path)))
    assert (after.text, after.log_probability) == (before.text, before.log_probability)


def test_a_corpus_gives_credit_for_what_stands_in_the_source(tmp_path: Path) -> None:
    (tmp_path / "valid.tsv").write_text("aжb\tжж\naж\tщ\n", "utf-8")
    model = make()
    data = settings()["data"]
    data["valid"] = {"file": str(tmp_path / "valid.tsv")}
    made = read_recipe({**settings(), "data": data})
    both = (model.source_tokens, model.target_tokens)
    sizes = 2 * len(model.target_tokens)
    for _ in range(2):  # the second time from the cache
        encoded, report = encode_corpus(
            made.data.valid, made.data, *both, tmp_path / "cache", copied=True
        )
        assert encoded.source(0).tolist()[1] == sizes + 1
        assert encoded.target(0).tolist() == [len(model.target_tokens) + 1] * 2
        assert encoded.target(1).tolist() == [UNKNOWN]
        assert (report.source_unknown, report.target_unknown) == (0, 1)
    plain, report = encode_corpus(made.data.valid, made.data, *both, tmp_path / "cache")
    assert plain.target(0).tolist() == [UNKNOWN] * 2


# ----------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"model.decoder.kind": "recurrent", "model.decoder.attention": "none"}, "points at"),
        ({"data.tokens.both.bpe_dropout": 0.1, "data.tokens.both.level": "subword"}, "would move"),
        ({"train.teacher": {"model": "runs/other"}}, "no probabilities of copies"),
    ],
)
def test_a_recipe_with_which_nothing_can_be_copied_is_refused(
    changed: dict[str, Any], why: str
) -> None:
    recipe = settings()
    recipe["model"]["decoder"] = {"copying": True}
    recipe["model"]["encoder"] = {}
    overrides = [f"{key}={value}" for key, value in changed.items()]
    with pytest.raises(RecipeError, match=f"model.decoder.copying is true, but .*{why}"):
        read_recipe(recipe, overrides)


def test_a_language_model_and_audio_have_nothing_to_copy() -> None:
    text = {"text": "a.txt"}
    of_text = {"train": text, "valid": text, "tokens": {"both": LEVEL}}
    model = {"width": 16, "decoder": {**TRANSFORMER, "copying": True}}
    with pytest.raises(RecipeError, match="a language model has no source to copy from"):
        read_recipe({"task": "language_modeling", "data": of_text, "model": model})
    recordings = {"file": "a.tsv", "audio": "x", "target": "y"}
    of_audio = {"train": recordings, "valid": recordings, "tokens": {"both": LEVEL}}
    with pytest.raises(RecipeError, match="audio has no tokens that could be copied"):
        read_recipe({"data": of_audio, "model": model})


def test_models_of_which_one_copies_are_no_ensemble() -> None:
    model, other = make(), make(copies=False)
    with pytest.raises(ModelError, match="only one copies from the source"):
        model.run(["ab"], ensemble=[other])


def test_exports_refuse_with_the_reason() -> None:
    copying: Recipe = make().recipe
    elsewhere = r"use transduce's own engine \(--to native\), or a browser \(--to html, --to web\)"
    with pytest.raises(ModelError, match=f"copies from the source .* to ONNX: {elsewhere}"):
        check_parts(copying.model, "ONNX")
    with pytest.raises(ModelError, match=f"it copies from the source .*; {elsewhere}"):
        choose_family(copying.model)
