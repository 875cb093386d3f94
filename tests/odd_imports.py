"""Folders of other toolkits with something odd in them: wrong types, sizes, ids, texts and files.

`models` writes one small whole folder for each format that can be imported; `cases` names the ways
to spoil one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import hf_models
import tiny_whisper
from tiny_models import tiny

Change = Callable[[Path], object]

NO_NUMBERS: dict[str, Any] = {
    "text": "many",
    "NaN": float("nan"),
    "infinity": float("inf"),
    "negative": -2,
    "list": [2],
    "object": {"a": 1},
    "surrogate": "\ud800",
    "huge": 2**70,
}
"""What no size and no share can be."""
NO_SIZES = {**NO_NUMBERS, "null": None, "zero": 0, "fraction": 1.5, "yes": True, "large": 2**31 - 1}
NO_IDS = {**NO_NUMBERS, "list": ["a"], "fraction": 1.5, "yes": True, "large": 2**31 - 1}
NO_SWITCHES = {name: NO_NUMBERS[name] for name in ("text", "NaN", "list", "huge")}
NO_WORDS = {name: NO_NUMBERS[name] for name in ("NaN", "negative", "list", "object", "surrogate")}
SIDES = ("encoder", "decoder")


class Case(NamedTuple):
    """One way to spoil a folder."""

    format: str
    name: str
    change: Change

    def __str__(self) -> str:
        return f"{self.format}: {self.name}"


# ------------------------------------------------------------------------------ whole folders


def models(folder: Path) -> dict[str, Path]:
    """A whole folder of each format, under its name."""
    found = {}
    for name, write in WRITERS.items():
        found[name] = folder / name
        found[name].mkdir()
        write(found[name])
    return found


def _t5(folder: Path) -> None:
    import transformers

    hf_models.learn_sentencepiece(folder / "learned.model", "unigram", 110)
    pieces = hf_models.pieces_of(folder / "learned.model")
    (folder / "learned.model").unlink()
    listed = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces]
    tokenizer = transformers.T5Tokenizer(vocab=listed, extra_ids=3)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(
        **sizes, num_decoder_layers=2, vocab_size=len(tokenizer), decoder_start_token_id=0
    )
    hf_models.save(folder, transformers.T5ForConditionalGeneration(config), tokenizer)


def _language_model(folder: Path, kind: str, sizes: dict[str, Any]) -> None:
    import transformers

    vocabulary, merges = hf_models.byte_level(folder, ["<unk>", "<s>", "</s>"])
    tokenizer = transformers.GPT2Tokenizer(
        vocab=vocabulary, merges=merges, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = getattr(transformers, f"{kind}Config")(**sizes, **ids, vocab_size=len(tokenizer))
    made = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}[kind]
    hf_models.save(folder, getattr(transformers, made)(config), tokenizer)


def _gpt2(folder: Path) -> None:
    _language_model(folder, "GPT2", {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32})


def _llama(folder: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    _language_model(folder, "Llama", {**sizes, **heads, "max_position_embeddings": 64})


def _whisper(folder: Path) -> None:
    tiny_whisper.huggingface_folder(folder)


def _whisper_ctranslate2(folder: Path) -> None:
    from transduce.whisper.export import export

    export(tiny_whisper.our_model(), folder, "ctranslate2", None)


def _ctranslate2(folder: Path) -> None:
    from transduce.interop.ctranslate2 import export

    export(tiny(), folder)
    for name in ("recipe.yaml", "source.tokens.json", "target.tokens.json", "model.sha256"):
        (folder / name).unlink(missing_ok=True)  # as one of others


def _g2p(folder: Path) -> None:
    shapes: dict[str, tuple[int, ...]] = {"enc_emb": (29, 6), "dec_emb": (74, 6)}
    for side in ("enc", "dec"):
        shapes |= {f"{side}_w_ih": (18, 6), f"{side}_w_hh": (18, 6)}
        shapes |= {f"{side}_b_ih": (18,), f"{side}_b_hh": (18,)}
    shapes |= {"fc_w": (74, 6), "fc_b": (74,)}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    np.savez(folder / "checkpoint20.npz", **arrays)  # type: ignore[arg-type]


FAIRSEQ: dict[str, Any] = {
    "arch": "transformer_tiny",
    "activation_fn": "relu",
    "encoder_normalize_before": True,
    "decoder_normalize_before": True,
    "max_source_positions": 40,
    "max_target_positions": 40,
    "source_lang": "xx",
    "target_lang": "yy",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    **{f"{side}_layers": 1 for side in SIDES},
    **{f"{side}_attention_heads": 2 for side in SIDES},
    **{f"{side}_ffn_embed_dim": 12 for side in SIDES},
}


def _fairseq(folder: Path, changes: dict[str, Any] | None = None, **root: Any) -> None:
    weights: dict[str, torch.Tensor] = {}

    def linear(name: str, rows: int, columns: int) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = (
            torch.ones(rows, columns),
            torch.ones(rows),
        )

    def norm(name: str) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = torch.ones(8), torch.ones(8)

    for side in SIDES:
        weights[f"{side}.embed_tokens.weight"] = torch.ones(12, 8)
        norm(f"{side}.layer_norm")
        layer = f"{side}.layers.0"
        for attention in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                linear(f"{layer}.{attention}.{part}", 8, 8)
            norm(f"{layer}.{attention}_layer_norm")
        linear(f"{layer}.fc1", 12, 8)
        linear(f"{layer}.fc2", 8, 12)
        norm(f"{layer}.final_layer_norm")
    space = argparse.Namespace(**(FAIRSEQ | (changes or {})))
    torch.save({"args": space, "model": weights, **root}, folder / "checkpoint_best.pt")
    for language, letters in (("xx", "abcdefgh"), ("yy", "ijklmnop")):
        lines = [f"{letter} 9\n" for letter in letters]
        (folder / f"dict.{language}.txt").write_text("".join(lines))


WRITERS: dict[str, Callable[[Path], None]] = {
    "marian": hf_models.marian,
    "bart": hf_models.bart,
    "m2m100": hf_models.m2m100,
    "mbart": hf_models.mbart,
    "t5": _t5,
    "gpt2": _gpt2,
    "llama": _llama,
    "whisper": _whisper,
    "whisper_ctranslate2": _whisper_ctranslate2,
    "ctranslate2": _ctranslate2,
    "fairseq": _fairseq,
    "g2p_en": _g2p,
}
LANGUAGES = {"m2m100": ("en", "de"), "mbart": ("en_XX", "de_DE")}


# ------------------------------------------------------------------------------------ changes


def set_key(file: str, *path: Any, value: Any) -> Change:
    """Put a value at a place of a JSON file."""

    def change(folder: Path) -> None:
        whole = json.loads((folder / file).read_text("utf-8"))
        inner = whole
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        (folder / file).write_text(json.dumps(whole), "utf-8")

    return change


def without(file: str, *path: Any) -> Change:
    """Remove a place of a JSON file."""

    def change(folder: Path) -> None:
        whole = json.loads((folder / file).read_text("utf-8"))
        inner = whole
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
        (folder / file).write_text(json.dumps(whole), "utf-8")

    return change


def write(file: str, content: bytes) -> Change:
    return lambda folder: (folder / file).write_bytes(content)


def cut(file: str, share: float) -> Change:
    def change(folder: Path) -> None:
        whole = (folder / file).read_bytes()
        (folder / file).write_bytes(whole[: int(len(whole) * share)])

    return change


def shard_index(value: Any) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(value))

    return change


def header(name: str, shape: list[int]) -> bytes:
    """A safetensors file that declares one tensor and has no bytes for it."""
    size = 4 * int(np.prod([float(one) for one in shape]))
    text = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    return len(text).to_bytes(8, "little") + text


def setting(key: str, value: Any) -> Change:
    """A setting of a checkpoint of fairseq."""
    return lambda folder: _fairseq(folder, {key: value})


# -------------------------------------------------------------------------------------- cases

SEQ2SEQ_SIZES = (
    "d_model",
    "vocab_size",
    "max_position_embeddings",
    *(f"{side}_{part}" for side in SIDES for part in ("layers", "attention_heads", "ffn_dim")),
)
CONFIGS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    # format: sizes, ids, shares
    "marian": (SEQ2SEQ_SIZES, ("pad_token_id", "eos_token_id"), ("dropout", "attention_dropout")),
    "bart": (
        SEQ2SEQ_SIZES,
        ("pad_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id"),
        ("dropout", "activation_dropout"),
    ),
    "m2m100": (("d_model", "vocab_size", "max_position_embeddings"), ("pad_token_id",), ()),
    "t5": (
        ("d_model", "d_kv", "d_ff", "num_layers", "num_heads", "vocab_size"),
        ("pad_token_id", "eos_token_id", "decoder_start_token_id"),
        ("dropout_rate", "layer_norm_epsilon"),
    ),
    "gpt2": (("n_embd", "n_layer", "n_head"), ("eos_token_id", "bos_token_id"), ()),
    "llama": (
        ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        ("eos_token_id",),
        ("rms_norm_eps", "attention_multiplier", "embedding_multiplier"),
    ),
    "whisper": (
        (
            "num_mel_bins",
            "max_source_positions",
            "max_target_positions",
            *(key for key in SEQ2SEQ_SIZES if key != "max_position_embeddings"),
        ),
        (),
        (),
    ),
}
OPTIONAL = {
    "null": {
        # these mean their usual value
        "max_position_embeddings",
        "num_mel_bins",
        "max_source_positions",
        "max_target_positions",
        "bos_token_id",
        "forced_bos_token_id",
    },
}
START = ("decoder_start_token_id",)
TOKENIZERS = ("bart", "mbart", "t5", "gpt2", "llama", "whisper")


def cases() -> Iterator[Case]:
    """Every case, each of which must be refused."""
    yield from _configurations()
    yield from _tokenizers()
    yield from _vocabularies()
    yield from _generation()
    yield from _files()
    yield from _checkpoints()


def _configurations() -> Iterator[Case]:
    for kind, (sizes, ids, shares) in CONFIGS.items():
        for keys, values in ((sizes, NO_SIZES), (ids, NO_IDS), (shares, NO_NUMBERS)):
            for key in keys:
                for name, value in values.items():
                    if key in OPTIONAL.get(name, ()):
                        continue
                    # Where both files say it, the one about generation counts.
                    file = "generation_config.json" if key in START else "config.json"
                    yield Case(kind, f"{key} is {name}", set_key(file, key, value=value))
    for kind in ("marian", "bart", "whisper"):
        for name, value in NO_WORDS.items():
            change = set_key("config.json", "activation_function", value=value)
            yield Case(kind, f"activation_function is {name}", change)
        for name, value in NO_SWITCHES.items():
            change = set_key("config.json", "scale_embedding", value=value)
            yield Case(kind, f"scale_embedding is {name}", change)
    for key, value in {
        "rope_theta": "a",
        "rope_parameters": [1],
        "rope_scaling": "a",
        "partial_rotary_factor": {},
    }.items():
        yield Case("llama", f"{key} is odd", set_key("config.json", key, value=value))
    for key in ("layer_norm_epsilon", "unk_token", "eos_token", "decoder_start_token"):
        values = NO_NUMBERS if key == "layer_norm_epsilon" else NO_WORDS
        for name, value in values.items():
            yield Case("ctranslate2", f"{key} is {name}", set_key("config.json", key, value=value))


def _tokenizers() -> Iterator[Case]:
    file = "tokenizer.json"
    for kind in TOKENIZERS:
        yield Case(kind, "tokenizer without model", without(file, "model"))
        yield Case(kind, "tokenizer without vocabulary", without(file, "model", "vocab"))
        for name, value in {"null": None, "list": [1], "text": "a", "number": 1}.items():
            yield Case(kind, f"tokenizer's model is {name}", set_key(file, "model", value=value))
            change = set_key(file, "added_tokens", value=[value])
            yield Case(kind, f"an added token is {name}", change)
            change = set_key(file, "model", "vocab", value=value)
            yield Case(kind, f"the vocabulary is {name}", change)
        for name, value in {"null": None, "text": "a", "negative": -1, "huge": 2**70}.items():
            change = set_key(file, "added_tokens", 0, "id", value=value)
            yield Case(kind, f"an added token's id is {name}", change)
        change = set_key(file, "added_tokens", 0, "content", value="\ud800")
        yield Case(kind, "an added token is a surrogate", change)
        change = set_key(file, "added_tokens", 0, "content", value=7)
        yield Case(kind, "an added token is a number", change)
    for kind in ("bart", "gpt2", "llama", "whisper"):
        for name, value in {"repeated": 60, "negative": -3, "text": "a", "huge": 2**40}.items():
            change = set_key(file, "model", "vocab", "a", value=value)
            yield Case(kind, f"an id of the vocabulary is {name}", change)
        change = set_key(file, "model", "vocab", "\udfff", value=61)
        yield Case(kind, "a token is a surrogate", change)
        yield Case(kind, "merges are odd", set_key(file, "model", "merges", value=[["a"]]))
    for kind in ("bart", "mbart"):
        for name, value in {"list": [1], "text": "a", "number": 1}.items():
            change = set_key(file, "post_processor", value=value)
            yield Case(kind, f"its post-processor is {name}", change)
        change = set_key(file, "post_processor", value={"type": "TemplateProcessing"})
        yield Case(kind, "its post-processor is empty", change)


def _vocabularies() -> Iterator[Case]:
    for kind in ("marian", "m2m100"):
        for name, value in {
            "repeated": 5,
            "negative": -1,
            "text": "a",
            "null": None,
            "fraction": 1.5,
            "yes": True,
            "huge": 2**40,
        }.items():
            change = set_key("vocab.json", "▁", value=value)
            yield Case(kind, f"an id of the vocabulary is {name}", change)
        yield Case(kind, "a surrogate", set_key("vocab.json", "\ud812", value=3))
        yield Case(kind, "no unknown token", without("vocab.json", "<unk>"))
    name = "tokenizer_config.json"
    for value in (5, "a", [5], [{}], [{"content": 5}]):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            yield Case("m2m100", f"{key} is {value}", set_key(name, key, value=value))
    yield Case("ctranslate2", "tokens are numbers", write(VOCABULARY, b"[1, 2, 3, 4, 5, 6]"))
    yield Case("ctranslate2", "no list of tokens", write(VOCABULARY, b'{"a": 1}'))
    surrogates = json.dumps(["<blank>", "<unk>", "<s>", "</s>", "\ud800", "a"]).encode()
    yield Case("ctranslate2", "a surrogate", write(VOCABULARY, surrogates))


VOCABULARY = "source_vocabulary.json"


def _generation() -> Iterator[Case]:
    file = "generation_config.json"
    for kind in ("bart", "t5"):
        for name in ("text", "NaN", "infinity", "negative", "huge", "object"):
            value = NO_NUMBERS[name]
            yield Case(kind, f"num_beams is {name}", set_key(file, "num_beams", value=value))
    for name in ("text", "NaN", "infinity", "object"):
        value = NO_NUMBERS[name]
        yield Case(
            "bart", f"length_penalty is {name}", set_key(file, "length_penalty", value=value)
        )
    for key in ("suppress_tokens", "begin_suppress_tokens"):
        for value in (5, "a", ["a"], [[1]], {"a": 1}, [None]):
            yield Case("whisper", f"{key} is {value}", set_key(file, key, value=value))
    for value in (5, "ab", [5], [[1]], [["a", "b"]], [[0, 99]], [[-1, 0]], [[1.5, 0]]):
        for kind in ("whisper", "whisper_ctranslate2"):
            where = file if kind == "whisper" else "config.json"
            change = set_key(where, "alignment_heads", value=value)
            yield Case(kind, f"alignment_heads is {value}", change)
    for value in (5, "a", [None], {"a": 1}):
        change = set_key("config.json", "suppress_ids", value=value)
        yield Case("whisper_ctranslate2", f"suppress_ids is {value}", change)


FILES: dict[str, tuple[str, ...]] = {
    "marian": ("config.json", "model.safetensors", "source.spm", "vocab.json"),
    "bart": ("config.json", "model.safetensors", "tokenizer.json"),
    "m2m100": ("model.safetensors", "sentencepiece.bpe.model", "vocab.json"),
    "t5": ("model.safetensors", "tokenizer.json"),
    "gpt2": ("model.safetensors", "tokenizer.json"),
    "llama": ("model.safetensors", "tokenizer.json"),
    "whisper": ("model.safetensors", "tokenizer.json"),
    "whisper_ctranslate2": ("model.bin", "tokenizer.json"),
    "ctranslate2": ("model.bin",),
    "fairseq": ("checkpoint_best.pt", "dict.xx.txt"),
    "g2p_en": ("checkpoint20.npz",),
}


def _files() -> Iterator[Case]:
    for kind, names in FILES.items():
        for name in names:
            yield Case(
                kind, f"{name} is missing", lambda folder, name=name: (folder / name).unlink()
            )
            yield Case(kind, f"{name} is empty", write(name, b""))
            yield Case(kind, f"{name} is cut", cut(name, 0.6))
            yield Case(kind, f"{name} is of nothing", write(name, b"\0" * 64))
            if name.endswith(".json"):
                yield Case(kind, f"{name} is deep", write(name, b"[" * 100_000))
                yield Case(kind, f"{name} has a long number", write(name, b"9" * 100_000))
                yield Case(kind, f"{name} is a list", write(name, b"[]"))
                yield Case(kind, f"{name} is an empty object", write(name, b"{}"))
    for kind, name in (
        ("marian", "model.shared.weight"),
        ("t5", "shared.weight"),
        ("gpt2", "transformer.wte.weight"),
        ("whisper", "model.decoder.embed_tokens.weight"),
    ):
        for shape in ([2**40, 2**20], [2**31, 16], [0, 0], [3], []):
            change = write("model.safetensors", header(name, shape))
            yield Case(kind, f"a declared shape {shape}", change)
    for value in (5, {"weight_map": 5}, {"weight_map": {"a": 5}}, {"weight_map": {"a": "../x"}}):
        yield Case("bart", f"an index of shards {value}", shard_index(value))
    surrogate = {"weight_map": {"a": "\ud800.safetensors"}}
    yield Case("bart", "a shard that is a surrogate", shard_index(surrogate))
    yield Case("bart", "a shard with a zero", shard_index({"weight_map": {"a": "a\0.safetensors"}}))


def _checkpoints() -> Iterator[Case]:
    sizes = [key for key in FAIRSEQ if key.endswith(("layers", "heads", "dim"))]
    for key in sizes:
        for name, value in NO_SIZES.items():
            yield Case("fairseq", f"{key} is {name}", setting(key, value))
    for key in ("dropout", "attention_dropout"):
        for name, value in NO_NUMBERS.items():
            yield Case("fairseq", f"{key} is {name}", setting(key, value))
    for name, value in NO_WORDS.items():
        yield Case("fairseq", f"activation_fn is {name}", setting("activation_fn", value))
    deep: Any = ()
    for _ in range(60):
        deep = (deep, deep)  # to write it out would take 2^60 letters
    for key in ("arch", "activation_fn", "encoder_layers", "dropout", "source_lang"):
        yield Case("fairseq", f"{key} is a nested tuple", setting(key, deep))
    yield Case(
        "fairseq", "weights by number", lambda folder: _fairseq(folder, model={1: torch.ones(2)})
    )
