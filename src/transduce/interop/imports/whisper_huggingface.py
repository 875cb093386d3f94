"""Whisper in a folder of Hugging Face: config.json, weights, tokenizer, generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from transduce.errors import ModelError
from transduce.interop.imports.huggingface import model_type, read_config, read_json, read_weights
from transduce.interop.whisper.model import assemble, ids_of
from transduce.interop.whisper.shape import ENGLISH, Generation, Shape
from transduce.interop.whisper.tokens import our_tokens, read_tokenizer
from transduce.interop.whisper.weights import from_huggingface
from transduce.tasks.model import Model

NAME = "Whisper, of Hugging Face"
FIXED = {"activation_function": "gelu", "scale_embedding": False}
FILES = ("generation_config.json", "preprocessor_config.json")


def recognises(source: Path) -> bool:
    return model_type(source) == "whisper"


def read(source: Path) -> Model:
    config = read_config(source)
    for key, wanted in FIXED.items():
        if config.get(key, wanted) != wanted:
            raise ModelError(
                f"{source} has {key}: {config[key]}, which we have no equal of; it must be {wanted}"
            )
    weights = read_weights(source)
    shape = _shape(source, config, weights)
    tokens, order = our_tokens(read_tokenizer(source), shape.vocabulary)
    files = {name: read_json(source / name) for name in FILES if (source / name).is_file()}
    told = files.get("generation_config.json", {})
    generation = Generation(
        ids_of(told.get("suppress_tokens", config.get("suppress_tokens")), order),
        ids_of(told.get("begin_suppress_tokens", config.get("begin_suppress_tokens")), order),
        [(int(layer), int(head)) for layer, head in told.get("alignment_heads") or []],
        multilingual=bool(told.get("is_multilingual", shape.vocabulary != ENGLISH)),
    )

    def get(name: str, *size: int) -> Tensor:
        found = weights.get(name, weights.get(name.removeprefix("model.")))
        if found is None:
            raise ModelError(f"{source} has no weight {name}; download it again")
        if tuple(found.shape) != size:
            raise ModelError(f"{source}: {name} is {list(found.shape)}, not {list(size)}")
        return found.float()

    first = next(iter(weights.values()))
    origin: dict[str, Any] = {
        "format": "huggingface",
        "type": str(first.dtype).removeprefix("torch."),
        "config": config,
        **{name.removesuffix(".json"): values for name, values in files.items()},
    }
    ours = from_huggingface(get, shape, order)
    return assemble(shape, generation, tokens, order, ours, origin, source.resolve().name)


def _shape(source: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Shape:
    try:
        return Shape(
            width=int(config["d_model"]),
            mel_bands=int(config.get("num_mel_bins", 80)),
            vocabulary=int(config["vocab_size"]),
            encoder_layers=int(config["encoder_layers"]),
            encoder_heads=int(config["encoder_attention_heads"]),
            encoder_feed_forward=int(config["encoder_ffn_dim"]),
            encoder_positions=int(config.get("max_source_positions", 1500)),
            decoder_layers=int(config["decoder_layers"]),
            decoder_heads=int(config["decoder_attention_heads"]),
            decoder_feed_forward=int(config["decoder_ffn_dim"]),
            decoder_positions=int(config.get("max_target_positions", 448)),
            tied=bool(config.get("tie_word_embeddings", True)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{source / 'config.json'} is no configuration of Whisper ({error})"
        ) from None
