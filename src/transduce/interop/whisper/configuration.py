"""The configuration files of a Whisper folder, made of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transduce.interop.whisper.shape import Shape
from transduce.interop.whisper.tokens import NEW
from transduce.nn.speech.whisper import HOP, WINDOW
from transduce.tasks.whisper import WhisperModel


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
