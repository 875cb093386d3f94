"""Whisper in a folder of Hugging Face: config.json, weights, tokenizer, generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from transduce.errors import ModelError
from transduce.interop.imports.configuration import (
    MAX_TOKENS,
    Configuration,
    describe,
    read_configuration,
)
from transduce.interop.imports.huggingface import model_type, read_config, read_weights
from transduce.tasks.model import Model
from transduce.whisper.shape import ENGLISH, Generation, Shape, assemble, ids_of
from transduce.whisper.vocabulary import our_tokens, read_tokenizer
from transduce.whisper.weights import HUGGINGFACE, from_theirs

NAME = "Whisper, of Hugging Face"
FIXED = {"activation_function": "gelu", "scale_embedding": False}
FILES = ("generation_config.json", "preprocessor_config.json")


def recognises(source: Path) -> bool:
    return model_type(source) == "whisper"


def read(source: Path) -> Model:
    config = read_config(source)
    for key, wanted in FIXED.items():
        if not config.is_one_of(key, (wanted, None)):
            raise ModelError(
                f"{config.where}: {key} is {describe(config.values[key])}, which transduce has no "
                f"equal of; it must be {describe(wanted)}"
            )
    weights = read_weights(source)
    shape = _shape(config)
    tokens, order = our_tokens(read_tokenizer(source), shape.vocabulary)
    files = {name: read_configuration(source / name) for name in FILES if (source / name).is_file()}
    stated = files.get("generation_config.json", Configuration({}, source))
    banned = ("suppress_tokens", "begin_suppress_tokens")
    suppress, first = ((stated if key in stated.values else config).wholes(key) for key in banned)
    generation = Generation(
        ids_of(suppress, order),
        ids_of(first, order),
        stated.pairs("alignment_heads", shape.decoder_layers, shape.decoder_heads),
        multilingual=stated.switch("is_multilingual", shape.vocabulary != ENGLISH),
    )

    def get(name: str, *size: int) -> Tensor:
        found = weights.get(name, weights.get(name.removeprefix("model.")))
        if found is None:
            raise ModelError(f"{source} has no weight {name}; download it again")
        if tuple(found.shape) != size:
            raise ModelError(f"{source}: {name} is {list(found.shape)}, not {list(size)}")
        return found.float()

    stored = next(iter(weights.values())).dtype
    origin: dict[str, Any] = {
        "format": "huggingface",
        "type": str(stored).removeprefix("torch."),
        "config": config.values,
        **{name.removesuffix(".json"): one.values for name, one in files.items()},
    }
    ours = from_theirs(HUGGINGFACE, get, shape, order)
    return assemble(shape, generation, tokens, order, ours, origin, source.resolve().name)


def _shape(config: Configuration) -> Shape:
    return Shape(
        width=config.whole("d_model"),
        mel_bands=config.whole("num_mel_bins", 80),
        vocabulary=config.whole("vocab_size", maximum=MAX_TOKENS),
        encoder_layers=config.whole("encoder_layers"),
        encoder_heads=config.whole("encoder_attention_heads"),
        encoder_feed_forward=config.whole("encoder_ffn_dim"),
        encoder_positions=config.whole("max_source_positions", 1500),
        decoder_layers=config.whole("decoder_layers"),
        decoder_heads=config.whole("decoder_attention_heads"),
        decoder_feed_forward=config.whole("decoder_ffn_dim"),
        decoder_positions=config.whole("max_target_positions", 448),
        tied=config.switch("tie_word_embeddings", True),
    )
