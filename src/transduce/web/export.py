"""Write a model for the browser: one file with its tensors, tokenizers and description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save

from transduce.data.tokens.tokenizer import Tokens
from transduce.decoding.source_limit import max_source_tokens
from transduce.errors import ModelError
from transduce.recipe.model import max_length_of, max_source_length
from transduce.tasks.transduce import Transducer
from transduce.web.description import Description

FORMAT = "transduce web 1"
METADATA = "transduce_web"
RUNTIME = Path(__file__).with_name("runtime")
DECODING = ("beam", "length_penalty", "patience", "max_ratio", "max_extra")
UNSUPPORTED = ("coverage_penalty", "no_repeat_ngram")


def model_bytes(model: Transducer, *, int8: bool = False) -> bytes:
    """The file of a model. Raises ModelError for one that a browser cannot run yet."""
    recipe = model.recipe
    for key in UNSUPPORTED:
        if getattr(recipe.decode, key):
            raise ModelError(f"decode.{key} is not supported in a browser; set it to 0")
    made = Description(int8)
    network = made.network(model.network)
    positions = max_source_length(recipe.model)
    description = {
        "format": FORMAT,
        "kind": "encoder-decoder",
        "network": network,
        "tokens": {
            "source": _tokens(model.source_tokens),
            "target": None
            if model.target_tokens is model.source_tokens
            else _tokens(model.target_tokens),
        },
        "decode": {key: getattr(recipe.decode, key) for key in DECODING},
        "limits": {
            "source": min(max_source_tokens(recipe), positions - 1),
            "target": max_length_of(recipe.model.decoder),
        },
        "card": {"name": recipe.name, "task": recipe.task},
    }
    return save(made.tensors, {METADATA: json.dumps(description, ensure_ascii=False)})


def _tokens(tokens: Tokens) -> dict[str, Any]:
    if tokens.registered is not None:
        raise ModelError(f"the tokenizer {tokens.registered} of a plugin does not run in a browser")
    return {"file": json.loads(tokens.to_json()), "form": tokens.form}
