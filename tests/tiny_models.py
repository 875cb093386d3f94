"""Tiny Transformers over letters with random weights, of any shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from transduce import recipe
from transduce.adapters import AdapterState, LowRankWeights, adaptable
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, Tokens
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build
from transduce.models.weights import weights_of
from transduce.nn.low_rank import row_norms
from transduce.recipe import Recipe
from transduce.tasks.transduce import Transducer

WORDS = ["tea", "uncle", "a cup of tea", "zuko", "iroh made tea"]
SOURCES = ["iroh made tea", "zuko", "", "e tea", "a", "a cup of tea made uncle iroh"]
TARGETS = ["tea cup", "uncle", "", "a", "tea", "a cup of"]


def tiny(
    encoder: dict[str, Any] | None = None,
    decoder: dict[str, Any] | None = None,
    *,
    tie_embeddings: str = "target",
    seed: int = 3,
    banned: bool = False,
    source_end: bool = True,
    tags: Sequence[str] = (),
    **parts: Any,
) -> Transducer:
    """`banned`: PAD and BEGIN have next to no probability, as after training."""
    shape = {"layers": 2, "heads": 2, "feed_forward": 24}
    others = ({"kind": "recurrent"}, {"kind": "convolutional"})
    sides = [part if part in others else shape | (part or {}) for part in (encoder, decoder)]
    settings = Recipe.model_validate(
        {
            "data": {
                "train": {"name": "copy", "split": "train"},
                "valid": {"name": "copy", "split": "valid"},
                "tokens": {"both": {"level": "character"}},
            },
            "model": {
                "width": 16,
                "tie_embeddings": tie_embeddings,
                "source_end": source_end,
                "encoder": sides[0],
                "decoder": sides[1],
            },
            "decode": {"beam": 3, "max_ratio": 1.5, "max_extra": 3},
            **parts,
        }
    )
    tokens = Tokens.train(recipe.Tokens(level="character"), WORDS, tags)
    torch.manual_seed(seed)
    model = Transducer.create(settings, tokens, tokens)
    model.network.eval()
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            parameter.normal_(std=0.3)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
        model.network.head.bias[END] -= 0.3
        if banned:
            model.network.head.bias[[PAD, BEGIN]] = -20.0
    return model


def difference(model: Transducer, other: Transducer) -> float:
    """The largest between log-probabilities of the same tokens."""
    ours, theirs = model.score(SOURCES, TARGETS), other.score(SOURCES, TARGETS)
    return max(
        abs(a - b)
        for one, two in zip(ours, theirs, strict=True)
        for a, b in zip(one.token_log_probabilities, two.token_log_probabilities, strict=True)
    )


def drawn(shape: dict[str, Any], vocabulary: int) -> EncoderDecoder:
    """The network of a shape, all its weights far from what they begin as; outputs end in time."""
    torch.manual_seed(8)
    sizes = Vocabulary(vocabulary, vocabulary)
    made = build(recipe.Model.model_validate(shape), sizes).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.normal_(std=0.3)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
        made.head.bias[END] += 1.5
    return made


def adapter_state(
    model: Transducer, seed: int = 1, kind: str = "lora", size: float = 0.3
) -> AdapterState:
    torch.manual_seed(seed)
    weights, found = weights_of(model.network), {}
    for name, place in adaptable(model.network).items():
        matrix = place.of(weights)
        found[name] = LowRankWeights(
            torch.randn(2, matrix.shape[1]) * size,
            torch.randn(len(matrix), 2) * size,
            1.5,
            row_norms(matrix) * 1.2 if kind == "dora" else None,
        )
    return AdapterState(found, {"head.bias": weights["head.bias"] + 0.1})
