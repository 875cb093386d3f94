"""Tiny classifiers and taggers, untrained."""

from __future__ import annotations

from typing import Any

import torch

from transduce import recipe
from transduce.data.tokens.tokenizer import Tokens
from transduce.recipe import Recipe
from transduce.tasks import Classifier, Tagger
from transduce.tasks.transduce import create

FILMS = ["a fine film", "dull , dull , dull", "a film", "fine"]
LABELS = ["very good", "bad", "so so"]
SENTENCES = ["The dog runs .", "a cat/dog sleeps", "dogs ran"]
TAGS = ["DET NOUN VERB PUNCT", "ADP <s>"]


def classifier(data: dict[str, Any] | None = None, **model: Any) -> Classifier:
    corpus = {"train": {"file": "a.tsv"}, "valid": {"file": "a.tsv"}}
    settings = Recipe.model_validate(
        {
            "task": "classify",
            "data": {**corpus, **(data or {})},
            "model": {"width": 8, "dropout": 0.0, "encoder": {"kind": "pooled"}, **model},
        }
    )
    torch.manual_seed(1)
    words = Tokens.train(recipe.Tokens(level="word"), FILMS)
    made = create(settings, words, Tokens.train(recipe.Tokens(level="label"), LABELS))
    assert isinstance(made, Classifier)
    return made


def tagger(data: dict[str, Any] | None = None, **model: Any) -> Tagger:
    corpus = {"train": {"file": "a.tsv"}, "valid": {"file": "a.tsv"}}
    encoder = {"kind": "recurrent", "cell": "gru"}
    settings = Recipe.model_validate(
        {
            "task": "tag",
            "data": {**corpus, **(data or {})},
            "model": {"width": 8, "dropout": 0.0, "encoder": encoder, **model},
        }
    )
    torch.manual_seed(1)
    words = Tokens.train(settings.data.tokens.source, SENTENCES)
    made = create(settings, words, Tokens.train(recipe.Tokens(level="symbol"), TAGS))
    assert isinstance(made, Tagger)
    with torch.no_grad():
        made.network.head.weight.mul_(10)  # so that words differ
    return made
