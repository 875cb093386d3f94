"""Export of a Whisper-shaped model to a folder of Hugging Face, or of CTranslate2 (faster-whisper).

Weights are written as they are; the folder is then read back and compared with the model.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import SPECIALS
from transduce.errors import ModelError
from transduce.interop.huggingface.files import write_weights
from transduce.interop.imports.ctranslate2_file import TYPES
from transduce.interop.imports.huggingface import read_origin
from transduce.interop.parity import Compared
from transduce.models.weights import weights_of
from transduce.nn.speech.whisper import HOP, WINDOW
from transduce.storage import make_folder, write_json
from transduce.whisper import import_ctranslate2, import_huggingface
from transduce.whisper.model import WhisperModel
from transduce.whisper.shape import Shape, shape_of
from transduce.whisper.vocabulary import NEW, original_order, whisper_tokenizer
from transduce.whisper.weights import (
    BANNED_BIAS,
    CTRANSLATE2,
    HUGGINGFACE,
    TABLE,
    Weights,
    to_theirs,
)

FORMATS = ("huggingface", "ctranslate2")
PRECISIONS = ("float32", "float16")
UNUSED = -50.0  # the bias of PAD and UNKNOWN is below this: they are never chosen
VERSION, REVISION = 6, 3  # of model.bin and of its specification of Whisper


@dataclass(frozen=True)
class Original:
    """What an export writes, in Whisper's own order."""

    shape: Shape
    order: list[int]
    weights: Weights
    type: str
    """Of the weights: float32, or float16 where this loses nothing."""
    origin: dict[str, Any]
    """What the model was before it was imported; empty: unknown."""


def export(model: WhisperModel, folder: Path, to: str, quantize: str | None = None) -> Compared:
    """Write the folder and read it again: all weights are the same bit for bit.

    Raises ModelError for what the format does not have, and where a weight is another one.
    """
    if to not in FORMATS:
        raise ModelError(f"a Whisper model is exported to {' or '.join(FORMATS)}, not to {to}")
    if quantize is not None and quantize not in PRECISIONS:
        raise ModelError(
            f"quantize is {quantize}; for a Whisper model it is {' or '.join(PRECISIONS)}: "
            f"faster-whisper quantizes when it loads a model (compute_type)"
        )
    original = _original(model, quantize)
    make_folder(folder)
    write: Callable[[WhisperModel, Original, Path], None] = (
        _huggingface if to == "huggingface" else _ctranslate2
    )
    write(model, original, folder)
    read = import_huggingface.read if to == "huggingface" else import_ctranslate2.read
    again = weights_of(read(folder).network)
    same = {name: _as(tensor, original.type) for name, tensor in original.weights.items()}
    for name, tensor in same.items():
        if name.endswith("in_projection.bias") and to == "huggingface":
            keys = slice(len(tensor) // 3, 2 * len(tensor) // 3)
            tensor = tensor.clone()
            tensor[keys] = 0.0  # it changes nothing, and has no place there
        if not torch.equal(again[name], tensor):
            raise ModelError(f"the export has another {name} than the model; please report this")
    return Compared(to, len(same))


def _original(model: WhisperModel, quantize: str | None) -> Original:
    shape = shape_of(model.recipe, len(model.target_tokens) - NEW)
    weights = dict(weights_of(model.network))
    if model.network.ctc is not None:
        raise ModelError("Whisper has no CTC layer, and this model has one: it is not exported")
    bias_V = model.network.head.bias.detach()
    if bool(bias_V[NEW:].any()) or float(bias_V[:NEW].max()) > UNUSED:
        raise ModelError(
            "Whisper's output layer has no bias, and this model learned one: freeze head.bias in "
            "training"
        )
    # Rows of tokens that Whisper does not have.
    weights["head.bias"] = torch.cat((bias_V.new_full((NEW,), BANNED_BIAS), bias_V[NEW:]))
    for name in {TABLE, "head.weight"} & weights.keys():
        rows_VD = weights[name]
        weights[name] = torch.cat((torch.zeros_like(rows_VD[:NEW]), rows_VD[NEW:]))
    origin = (read_origin(model.origin.folder) or {}) if model.origin is not None else {}
    end = model.prompt_tokens.first_special - len(SPECIALS)
    begin, end = origin.get("order", (end + 1, end))
    kind = quantize or str(origin.get("type", "float32"))
    exact = kind != "float16" or all(torch.equal(w, _as(w, kind)) for w in weights.values())
    if not exact and quantize is None:
        kind = "float32"  # it was trained on
    return Original(shape, original_order(begin, end, shape.vocabulary), weights, kind, origin)


def _as(tensor: Tensor, kind: str) -> Tensor:
    """A tensor rounded to a type, in float32."""
    return tensor.half().float() if kind == "float16" else tensor.float()


def _huggingface(model: WhisperModel, original: Original, folder: Path) -> None:
    kind = torch.float16 if original.type == "float16" else torch.float32
    weights = to_theirs(HUGGINGFACE, original.weights, original.shape, original.order)
    write_weights(folder, {name: tensor.to(kind) for name, tensor in weights.items()})
    files = {
        "config.json": huggingface_config(original.shape, original.order, original.type),
        "generation_config.json": generation_config(model, original.shape, original.order),
        "preprocessor_config.json": preprocessor_config(original.shape),
        "tokenizer.json": whisper_tokenizer(model.target_tokens, original.order),
        "tokenizer_config.json": tokenizer_config(),
    }
    if original.origin.get("format") == "huggingface":
        kept = ("config", "generation_config", "preprocessor_config")
        files |= {f"{name}.json": original.origin[name] for name in kept if name in original.origin}
    for name, values in files.items():
        write_json(folder / name, values)


def _ctranslate2(model: WhisperModel, original: Original, folder: Path) -> None:
    shape = original.shape
    weights = to_theirs(CTRANSLATE2, original.weights, shape, original.order)
    kind = torch.float16 if original.type == "float16" else torch.float32
    variables = {name: tensor.to(kind) for name, tensor in weights.items()}
    for name, value, small in (
        ("decoder/activation", 3, torch.int8),
        ("decoder/alibi", 0, torch.int8),
        ("decoder/alignment_heads", 1, torch.int16),
        ("decoder/alignment_layer", -1, torch.int16),
        ("decoder/num_heads", shape.decoder_heads, torch.int16),
        ("decoder/pre_norm", 1, torch.int8),
        ("decoder/scale_embeddings", 0, torch.int8),
        ("decoder/start_from_zero_embedding", 0, torch.int8),
        ("encoder/num_heads", shape.encoder_heads, torch.int16),
    ):
        variables[name] = torch.tensor(value, dtype=small)
    aliases = {"decoder/projection/weight": "decoder/embeddings/weight"} if shape.tied else {}
    write_model_file(folder / "model.bin", "WhisperSpec", variables, aliases)
    tokenizer = whisper_tokenizer(model.target_tokens, original.order)
    names = {number: name for name, number in tokenizer["model"]["vocab"].items()}
    names |= {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    config = ctranslate2_config(model, shape, original.order)
    if original.origin.get("format") == "ctranslate2":
        config = original.origin["config"]
    write_json(folder / "config.json", config)
    write_json(folder / "vocabulary.json", [names[number] for number in sorted(names)])
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "preprocessor_config.json", preprocessor_config(shape))


def write_model_file(
    path: Path, specification: str, variables: Weights, aliases: dict[str, str]
) -> None:
    """Write a model.bin of CTranslate2; see interop/imports/ctranslate2_file.py for its format."""
    with path.open("wb") as file:

        def string(text: str) -> None:
            raw = text.encode("utf-8") + b"\0"
            file.write(struct.pack("<H", len(raw)) + raw)

        file.write(struct.pack("<I", VERSION))
        string(specification)
        file.write(struct.pack("<II", REVISION, len(variables)))
        for name, tensor in sorted(variables.items()):
            string(name)
            file.write(struct.pack("<B", tensor.dim()))
            file.write(struct.pack(f"<{tensor.dim()}I", *tensor.shape))
            kind = TYPES.index(str(tensor.dtype).removeprefix("torch."))
            raw = tensor.contiguous().numpy()
            file.write(struct.pack("<BI", kind, raw.nbytes % 2**32))
            file.write(raw.astype(raw.dtype.newbyteorder("<")).tobytes())
        file.write(struct.pack("<I", len(aliases)))
        for alias, name in sorted(aliases.items()):
            string(alias)
            string(name)


# ---------------------------------------------------------------- configuration files


def huggingface_config(shape: Shape, order: Sequence[int], kind: str) -> dict[str, Any]:
    begin, end = order[0], order[1]
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "is_encoder_decoder": True,
        "activation_function": "gelu",
        "scale_embedding": False,
        "d_model": shape.width,
        "num_mel_bins": shape.mel_bands,
        "vocab_size": shape.vocabulary,
        "encoder_layers": shape.encoder_layers,
        "encoder_attention_heads": shape.encoder_heads,
        "encoder_ffn_dim": shape.encoder_feed_forward,
        "max_source_positions": shape.encoder_positions,
        "decoder_layers": shape.decoder_layers,
        "decoder_attention_heads": shape.decoder_heads,
        "decoder_ffn_dim": shape.decoder_feed_forward,
        "max_target_positions": shape.decoder_positions,
        "num_hidden_layers": shape.encoder_layers,
        "tie_word_embeddings": shape.tied,
        "dropout": 0.0,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": begin,
        "torch_dtype": kind,
    }


def generation_config(model: WhisperModel, shape: Shape, order: Sequence[int]) -> dict[str, Any]:
    tokens, settings = model.prompt_tokens, model.prompt_settings
    begin, end = order[0], order[1]
    values: dict[str, Any] = {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": begin,
        "suppress_tokens": _theirs(settings.suppress, order),
        "begin_suppress_tokens": _theirs(settings.suppress_first, order),
        "no_timestamps_token_id": order[tokens.no_timestamps - NEW],
        "max_initial_timestamp_index": 50,
        "max_length": shape.decoder_positions,
        "is_multilingual": tokens.multilingual,
        "return_timestamps": False,
    }
    if tokens.previous is not None:
        values["prev_sot_token_id"] = order[tokens.previous - NEW]
    if settings.alignment_heads:
        values["alignment_heads"] = settings.alignment_heads
    if tokens.multilingual:
        values["lang_to_id"] = {f"<|{c}|>": order[n - NEW] for c, n in tokens.languages.items()}
        values["task_to_id"] = {task: order[n - NEW] for task, n in tokens.tasks.items()}
    return values


def ctranslate2_config(model: WhisperModel, shape: Shape, order: Sequence[int]) -> dict[str, Any]:
    tokens, settings = model.prompt_tokens, model.prompt_settings
    layers = range(shape.decoder_layers // 2, shape.decoder_layers)
    upper = [[layer, head] for layer in layers for head in range(shape.decoder_heads)]
    return {
        "alignment_heads": settings.alignment_heads or upper,
        "lang_ids": sorted(order[number - NEW] for number in tokens.languages.values()),
        "suppress_ids": _theirs(settings.suppress, order),
        "suppress_ids_begin": _theirs(settings.suppress_first, order),
    }


def preprocessor_config(shape: Shape) -> dict[str, Any]:
    frames = 2 * shape.encoder_positions
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": shape.mel_bands,
        "sampling_rate": 16_000,
        "hop_length": HOP,
        "n_fft": WINDOW,
        "chunk_length": frames * HOP // 16_000,
        "n_samples": frames * HOP,
        "nb_max_frames": frames,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "WhisperTokenizer",
        "processor_class": "WhisperProcessor",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "add_prefix_space": False,
        "errors": "replace",
        "model_max_length": 1024,
    }


def _theirs(ours: Sequence[int], order: Sequence[int]) -> list[int]:
    return sorted(order[number - NEW] for number in ours if number >= NEW)
