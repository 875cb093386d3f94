"""A tiny Whisper of Hugging Face with random weights: folder, tokenizer, oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

SECONDS = 2.0  # a window, instead of 30
POSITIONS = 100  # encoder states of a window
LANGUAGES = ("en", "de", "fr")
SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
RATE = 16_000


def tokenizer_json(positions: int = POSITIONS) -> dict[str, Any]:
    """Byte-level BPE with a few merges, Whisper's special tokens, and timestamps."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=270,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [" tea for uncle", " the tea of uncle Iroh", " for the uncle"]
    tokenizer.train_from_iterator(texts, trainer)
    parts: dict[str, Any] = json.loads(tokenizer.to_str())
    first = len(parts["model"]["vocab"])
    times = [f"<|{number * 0.02:.2f}|>" for number in range(positions + 1)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    parts["added_tokens"] = [
        {"id": first + place, "content": name, **flags, "special": name in SPECIAL}
        for place, name in enumerate((*SPECIAL, *times))
    ]
    parts["decoder"] = {"type": "ByteLevel", **dict.fromkeys(("add_prefix_space",), True)}
    parts["decoder"] |= {"trim_offsets": True, "use_regex": True}
    return parts


def ids(parts: dict[str, Any]) -> dict[str, int]:
    return {token["content"]: token["id"] for token in parts["added_tokens"]}


def huggingface_folder(
    folder: Path, seed: int = 1, bands: int = 80, positions: int = POSITIONS, longest: int = 40
) -> Any:
    """Write a folder of Hugging Face; returns the model of `transformers` itself."""
    transformers = pytest.importorskip("transformers")
    parts = tokenizer_json(positions)
    named = ids(parts)
    size = max(named.values()) + 1
    config = transformers.WhisperConfig(
        vocab_size=size,
        num_mel_bins=bands,
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_layers=3,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
        max_source_positions=positions,
        max_target_positions=longest,
        pad_token_id=named["<|endoftext|>"],
        bos_token_id=named["<|endoftext|>"],
        eos_token_id=named["<|endoftext|>"],
        decoder_start_token_id=named["<|startoftranscript|>"],
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    torch.manual_seed(seed)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            wide = {"embed_tokens": 0.5, "decoder.embed_positions": 1.5}
            parameter.normal_(std=next((w for one, w in wide.items() if one in name), 0.25))
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
    reported = model.generation_config
    values: dict[str, Any] = {
        "is_multilingual": True,
        "lang_to_id": {f"<|{code}|>": named[f"<|{code}|>"] for code in LANGUAGES},
        "task_to_id": {task: named[f"<|{task}|>"] for task in ("transcribe", "translate")},
        "no_timestamps_token_id": named["<|notimestamps|>"],
        "prev_sot_token_id": named["<|startofprev|>"],
        "suppress_tokens": [5, 9, *(named[name] for name in SPECIAL[1:-1])],
        "begin_suppress_tokens": [3, named["<|endoftext|>"]],
        "alignment_heads": [[1, 0], [2, 3]],
        "max_initial_timestamp_index": 50,
        "max_length": 24,
        "forced_decoder_ids": None,
    }
    for name, value in values.items():
        setattr(reported, name, value)
    reported._from_model_config = False  # else it would be made anew of config.json
    model.save_pretrained(folder)
    reported.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(parts), "utf-8")
    extractor(bands, SECONDS * positions / POSITIONS).save_pretrained(folder)
    return model


def ctranslate2_folder(folder: Path, model: Any, huggingface: Path) -> None:
    """The same model as CTranslate2 has it; `huggingface` is the folder that it was saved in."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    spec = ctranslate2.specs.WhisperSpec(2, 2, 3, 4)
    loader = ctranslate2.converters.transformers.WhisperLoader()
    loader.set_encoder(spec.encoder, model.model.encoder)
    loader.set_decoder(spec.decoder, model.model.decoder)
    loader.set_linear(spec.decoder.projection, model.proj_out)
    config = json.loads((huggingface / "generation_config.json").read_text("utf-8"))
    spec.config.suppress_ids = config["suppress_tokens"]
    spec.config.suppress_ids_begin = config["begin_suppress_tokens"]
    spec.config.alignment_heads = config["alignment_heads"]
    parts = tokenizer_json(model.config.max_source_positions)
    names = sorted(parts["model"]["vocab"], key=parts["model"]["vocab"].__getitem__)
    spec.register_vocabulary([*names, *ids(parts)])
    spec.validate()
    spec.optimize(quantization=None)
    folder.mkdir()
    spec.save(str(folder))
    parts["added_tokens"] = parts["added_tokens"][: len(SPECIAL)]  # no timestamps
    (folder / "tokenizer.json").write_text(json.dumps(parts), "utf-8")


def extractor(bands: int = 80, seconds: float = SECONDS) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.WhisperFeatureExtractor(feature_size=bands, chunk_length=int(seconds))


def noises(count: int, seed: int = 4, longest: float = SECONDS) -> list[np.ndarray[Any, Any]]:
    """Waves of different lengths that are not stationary, int16."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        length = int(draw.uniform(0.2, longest) * RATE)
        loud = np.interp(np.arange(length), np.linspace(0, length, 9), draw.uniform(0, 0.4, 9))
        tone = np.sin(np.cumsum(draw.uniform(0.02, 0.4, length)))
        wave = loud * (tone + 0.3 * draw.standard_normal(length))
        found.append(np.clip(wave * 20_000, -32768, 32767).astype(np.int16))
    return found


def our_model(seed: int = 2, **prompt: Any) -> Any:
    """The same shape with random weights, as an import makes it, without transformers."""
    from transduce.tasks.transduce import create
    from transduce.whisper.shape import Generation, Shape, recipe_of
    from transduce.whisper.vocabulary import our_tokens

    parts = tokenizer_json()
    size = max(ids(parts).values()) + 1
    shape = Shape(32, 80, size, 2, 2, 48, POSITIONS, 3, 4, 64, 40)
    tokens, _ = our_tokens(parts, size)
    specials = list(range(274, 274 + len(SPECIAL) - 2 - 1))
    generation = Generation([9, 13, *specials], [3, 7], [(1, 0), (2, 3)])
    recipe = recipe_of(shape, generation, "whisper-tiny")
    assert recipe.audio is not None
    assert recipe.audio.prompt is not None
    reported = recipe.audio.prompt.model_copy(update=prompt)
    recipe = recipe.model_copy(
        update={"audio": recipe.audio.model_copy(update={"prompt": reported})}
    )
    torch.manual_seed(seed)
    model = create(recipe, tokens, tokens)
    model.network.eval()
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            wide = {"embedding.table": 0.5, "decoder.embedding.positions": 1.5}
            parameter.normal_(std=next((w for one, w in wide.items() if one in name), 0.25))
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
        model.network.head.bias.zero_()
        model.network.head.bias[:2] = -100.0
    return model
