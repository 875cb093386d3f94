"""Whisper in a folder of CTranslate2, as faster-whisper uses it: model.bin, config.json, tokenizer.

Encoder and decoder are told apart by the names of the variables; heads and activation are variables
too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transduce.errors import ModelError
from transduce.interop.imports.configuration import (
    MAX_WHOLE,
    read_configuration,
    read_json,
)
from transduce.interop.imports.ctranslate2_file import ModelFile, parts_of, read_model_file
from transduce.tasks.model import Model
from transduce.whisper.shape import ENGLISH, Generation, Shape, assemble, ids_of
from transduce.whisper.vocabulary import our_tokens, read_tokenizer
from transduce.whisper.weights import CTRANSLATE2, from_theirs

MODEL = "model.bin"
NAME = "Whisper, of CTranslate2 (faster-whisper)"
SPECIFICATION = "WhisperSpec"
GELU = 3  # its number among CTranslate2's activations
BEGINNING = 64  # bytes in which a file says what it is


def recognises(source: Path) -> bool:
    file = source / MODEL
    try:
        file = next(iter(parts_of(file)), file)
    except ModelError:
        return True  # `read` says which part is missing
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return SPECIFICATION.encode() in opened.read(BEGINNING)


def read(source: Path) -> Model:
    file = read_model_file(source / MODEL)
    config = read_configuration(source / "config.json")
    shape = _shape(file)
    tokens, order = our_tokens(read_tokenizer(source), shape.vocabulary)
    generation = Generation(
        ids_of(config.wholes("suppress_ids"), order),
        ids_of(config.wholes("suppress_ids_begin"), order),
        config.pairs("alignment_heads", shape.decoder_layers, shape.decoder_heads),
        multilingual=shape.vocabulary != ENGLISH,
    )
    weights = from_theirs(CTRANSLATE2, file.tensor, shape, order)
    origin: dict[str, Any] = {
        "format": "ctranslate2",
        "type": file.variable("decoder/embeddings/weight").dtype,
        "config": config.values,
        "preprocessor_config": _preprocessor(source),
    }
    return assemble(shape, generation, tokens, order, weights, origin, source.resolve().name)


def _preprocessor(source: Path) -> dict[str, Any] | None:
    path = source / "preprocessor_config.json"
    return read_json(path) if path.is_file() else None


def _shape(file: ModelFile) -> Shape:
    for name, wanted in (
        ("decoder/activation", GELU),
        ("decoder/pre_norm", 1),
        ("decoder/alibi", 0),
        ("decoder/scale_embeddings", 0),
        ("decoder/start_from_zero_embedding", 0),
    ):
        if file.number(name, wanted) != wanted:
            raise ModelError(f"{file.path}: {name} is {file.number(name):g}, in Whisper {wanted}")
    layers = {
        side: len({name.split("/")[1] for name in file if name.startswith(f"{side}/layer_")} - NORM)
        for side in ("encoder", "decoder")
    }
    width, mel_bands, _ = _size(file, "encoder/conv1/weight", 3)
    return Shape(
        width=width,
        mel_bands=mel_bands,
        vocabulary=_size(file, "decoder/embeddings/weight", 2)[0],
        encoder_layers=layers["encoder"],
        encoder_heads=_heads(file, "encoder"),
        encoder_feed_forward=_size(file, "encoder/layer_0/ffn/linear_0/weight", 2)[0],
        encoder_positions=_size(file, "encoder/position_encodings/encodings", 2)[0],
        decoder_layers=layers["decoder"],
        decoder_heads=_heads(file, "decoder"),
        decoder_feed_forward=_size(file, "decoder/layer_0/ffn/linear_0/weight", 2)[0],
        decoder_positions=_size(file, "decoder/position_encodings/encodings", 2)[0],
        tied=file.aliases.get("decoder/projection/weight") == "decoder/embeddings/weight",
    )


NORM = {"layer_norm"}


def _heads(file: ModelFile, side: str) -> int:
    value = file.number(f"{side}/num_heads")
    if value != int(value) or not 1 <= value <= MAX_WHOLE:
        raise ModelError(f"{file.path}: {side}/num_heads is {value:g}, which is no number of heads")
    return int(value)


def _size(file: ModelFile, name: str, dimensions: int) -> tuple[int, ...]:
    shape = file.variable(name).shape
    if len(shape) != dimensions:
        raise ModelError(f"{file.path}: {name} is {list(shape)}; it must have {dimensions} numbers")
    return shape
