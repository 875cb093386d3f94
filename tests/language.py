"""Tiny language models for tests."""

from __future__ import annotations

from typing import Any

import torch

from transduce import recipe
from transduce.data.tokens.tokenizer import Tokens
from transduce.models.build import build_language_model
from transduce.models.language_model import LanguageModelNetwork
from transduce.recipe import Recipe
from transduce.tasks import LanguageModel


def language_network(
    vocabulary: int, decoder: dict[str, Any] | None = None, width: int = 8, seed: int = 3
) -> LanguageModelNetwork:
    """In float64, ready to be asked, with opinions: its weights are three times as large as they
    are drawn, or every distribution would be nearly flat. Convolutions have no norm between
    layers, and would be sure of everything."""
    shape: dict[str, Any] = {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 16}
    torch.manual_seed(seed)
    decoder = shape if decoder is None else decoder
    settings = recipe.Model.model_validate({"width": width, "decoder": decoder})
    network = build_language_model(settings, vocabulary).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.2 if decoder["kind"] == "convolutional" else 3.0)
    return network


LSTM = {"kind": "recurrent", "cell": "lstm", "layers": 1, "attention": "none"}


def language_model(
    level: str = "character",
    lines: str = "joined",
    decoder: dict[str, Any] | None = None,
    seed: int = 3,
    **parts: Any,
) -> LanguageModel:
    """Over the letters of a line of tea, windows of eight tokens."""
    shape: dict[str, Any] = {"layers": 1, "heads": 2, "feed_forward": 16}
    text = {"text": "tea.txt", "lines": lines}
    settings = Recipe.model_validate(
        {
            "task": "language_modeling",
            "data": {
                "train": text,
                "valid": text,
                "tokens": {"both": {"level": level}},
                "max_length": 8,
                **parts.pop("data", {}),
            },
            "model": {"width": 8, "decoder": shape if decoder is None else decoder},
            "decode": {"beam": 1, "max_extra": 6},
            **parts,
        }
    )
    tokens = Tokens.train(recipe.Tokens(level=level, size=60), [TEA])
    torch.manual_seed(seed)
    model = LanguageModel.create(settings, tokens, tokens)
    model.network.double().eval()
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(3.0)
    return model


TEA = "uncle iroh made a cup of tea\nand zuko spilt it"
