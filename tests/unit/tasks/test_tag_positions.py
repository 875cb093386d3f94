"""Sources whose tags have the position 0: model.encoder.tag_positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError, RecipeError
from transduce.interop.huggingface.layout import choose_family
from transduce.interop.positions import check_parts
from transduce.recipe import Recipe, read_recipe
from transduce.recipe import Tokens as TokensKeys
from transduce.tasks.transduce import Transducer, create, load

PART = {"layers": 1, "heads": 2, "feed_forward": 16}
CORPUS = {"file": "a.tsv", "tags": 2}


def recipe(where: str = "zero", **encoder: Any) -> Recipe:
    return read_recipe(
        {
            "data": {
                "train": CORPUS,
                "valid": CORPUS,
                "tokens": {"both": {"level": "character"}},
            },
            "model": {
                "width": 8,
                "encoder": {**PART, "tag_positions": where, **encoder},
                "decoder": PART,
            },
        }
    )


def make(where: str) -> Transducer:
    tokens = Tokens.train(TokensKeys(level="character"), ["abc"], ["PL", "SG"])
    torch.manual_seed(1)
    model = create(recipe(where), tokens, tokens)
    assert isinstance(model, Transducer)
    model.network.eval()
    return model


def test_the_order_of_tags_is_nothing_to_the_model(tmp_path: Path) -> None:
    model = make("zero")
    sources, targets = ["<PL> <SG> abc", "<SG> <PL> abc"], ["ab", "ab"]
    one, other = (score.log_probability for score in model.score(sources, targets))
    assert one == pytest.approx(other, abs=1e-5)
    counted, turned = (s.log_probability for s in make("counted").score(sources, targets))
    assert counted != pytest.approx(turned, abs=1e-5)
    for source, output in zip(
        sources, model.run(sources, unknown=False, max_length=4), strict=True
    ):
        (given,) = model.score([source], [output.text])
        assert output.log_probability == pytest.approx(given.log_probability, abs=1e-4)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", "cpu")
    assert isinstance(again, Transducer)
    assert again.score(sources, targets)[0].log_probability == pytest.approx(one, abs=1e-5)


def test_engines_that_count_all_positions_are_refused() -> None:
    with pytest.raises(ModelError, match="tag_positions"):
        check_parts(recipe().model, "ONNX")
    with pytest.raises(ModelError, match="tag_positions"):
        choose_family(recipe().model)


def test_recipes_that_cannot_be() -> None:
    with pytest.raises(RecipeError, match=r"tag_positions is zero, but model\.encoder\.positions"):
        recipe(positions="rotary")
    with pytest.raises(RecipeError, match=r"but the sources of data\.train have no tags"):
        read_recipe(
            {
                "data": {"train": {"file": "a.tsv"}, "valid": {"file": "a.tsv"}},
                "model": {"encoder": {"tag_positions": "zero"}},
            }
        )
