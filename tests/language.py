"""Tiny language models for tests."""

from __future__ import annotations

from typing import Any

import torch

from transduce import recipe
from transduce.models.language import LanguageNetwork, build_language


def language_network(
    vocabulary: int, decoder: dict[str, Any] | None = None, width: int = 8, seed: int = 3
) -> LanguageNetwork:
    """In float64, ready to be asked, with opinions: its weights are three times as large as they
    are drawn, or every distribution would be nearly flat."""
    shape: dict[str, Any] = {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 16}
    torch.manual_seed(seed)
    decoder = shape if decoder is None else decoder
    settings = recipe.Model.model_validate({"width": width, "decoder": decoder})
    network = build_language(settings, vocabulary).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3.0)
    return network


LSTM = {"kind": "recurrent", "cell": "lstm", "layers": 1, "attention": "none"}
