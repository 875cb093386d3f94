"""A Whisper with made-up weights, and recordings: for benchmarks/whisper.py without a download.

    python benchmarks/whisper_made.py FOLDER [--tokens 32] [--files 256] [--size base]

Writes FOLDER/hub, as transformers saves it, FOLDER/ours, which `transduce import` makes of it, and
FOLDER/list.tsv with recordings of noise, 1.5 to 4 s long. The network has the shape of Whisper base
and as many tokens; its weights are random numbers. END is never allowed: every output has --tokens
tokens, so both systems do the same work, and no output says anything. Outputs of the two systems
need not agree, as random weights have near ties.
"""

from __future__ import annotations

import argparse
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transduce.interop.imports.registry import import_model
from transduce.whisper.vocabulary import BEGIN_NAME, END_NAME

TEXT = 50_257  # tokens of text
LANGUAGES = ("en", "de", "fr")
SPECIAL = (
    END_NAME,
    BEGIN_NAME,
    *(f"<|{code}|>" for code in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
POSITIONS, RATE = 1500, 16_000
SIZES = {"base": (512, 6, 8, 2048), "tiny": (32, 2, 2, 48)}  # width, layers, heads, feed-forward
SHORTEST, LONGEST = 1.5, 4.0  # seconds of a recording


def tokenizer() -> dict[str, Any]:
    """Byte-level BPE without merges, filled up with tokens that no text has."""
    from tokenizers.pre_tokenizers import ByteLevel

    names = sorted(ByteLevel.alphabet())
    names += [f"x{number}" for number in range(TEXT - len(names))]
    times = [f"<|{number * 0.02:.2f}|>" for number in range(POSITIONS + 1)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": TEXT + place, "content": name, **flags, "special": name in SPECIAL}
            for place, name in enumerate((*SPECIAL, *times))
        ],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": True},
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {name: number for number, name in enumerate(names)},
            "merges": [],
        },
    }


def write_hub(folder: Path, size: str, tokens: int) -> None:
    """The folder of transformers."""
    import transformers

    parts = tokenizer()
    named = {token["content"]: token["id"] for token in parts["added_tokens"]}
    end = named[END_NAME]
    width, layers, heads, feed_forward = SIZES[size]
    config = transformers.WhisperConfig(
        vocab_size=TEXT + len(parts["added_tokens"]),
        num_mel_bins=80,
        d_model=width,
        encoder_layers=layers,
        encoder_attention_heads=heads,
        encoder_ffn_dim=feed_forward,
        decoder_layers=layers,
        decoder_attention_heads=heads,
        decoder_ffn_dim=feed_forward,
        max_source_positions=POSITIONS,
        max_target_positions=2 * (tokens + 1),  # our outputs may take half of them, END included
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=named[BEGIN_NAME],
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    torch.manual_seed(1)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    values: dict[str, Any] = {
        "is_multilingual": True,
        "lang_to_id": {f"<|{code}|>": named[f"<|{code}|>"] for code in LANGUAGES},
        "task_to_id": {task: named[f"<|{task}|>"] for task in ("transcribe", "translate")},
        "no_timestamps_token_id": named["<|notimestamps|>"],
        "prev_sot_token_id": named["<|startofprev|>"],
        "suppress_tokens": [named[name] for name in SPECIAL[:-1]],
        "begin_suppress_tokens": [],
        "max_length": tokens,  # transformers adds the prompt
        "forced_decoder_ids": None,
    }
    for name, value in values.items():
        setattr(model.generation_config, name, value)
    model.generation_config._from_model_config = False  # else it is made anew of config.json
    model.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(parts), "utf-8")
    names = dict.fromkeys(("eos_token", "unk_token", "bos_token"), END_NAME)
    described = {"tokenizer_class": "WhisperTokenizer", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(described), "utf-8")
    transformers.WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)


def write_recordings(folder: Path, files: int) -> None:
    """Noise, and a list of it."""
    draw, lines = np.random.default_rng(1), []
    for number in range(files):
        length = int(RATE * draw.uniform(SHORTEST, LONGEST))
        samples = (3000 * draw.standard_normal(length)).clip(-32768, 32767).astype("<i2")
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(samples.tobytes())
        lines.append(f"{number}.wav\tnoise\n")
    (folder / "list.tsv").write_text("".join(lines), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=32, help="of an output")
    parser.add_argument("--files", type=int, default=256)
    parser.add_argument("--size", choices=SIZES, default="base")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    write_recordings(asked.folder, asked.files)
    write_hub(asked.folder / "hub", asked.size, asked.tokens)
    import_model(asked.folder / "hub", asked.folder / "ours")
    print(f"{asked.folder}: hub, ours, list.tsv")


if __name__ == "__main__":
    main()
