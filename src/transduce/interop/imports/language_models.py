"""Language models of Hugging Face: GPT-2, and Llama with what has its shape.

Radford et al. 2019; Touvron et al. 2023, https://arxiv.org/abs/2302.13971. Mistral and Qwen2 have
the shape of Llama where they attend to all of a text; Granite has it where its factors are those of
an export of ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from transduce.data.tokens.foreign import tag_of, token_names, with_ids
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, SPECIALS, UNKNOWN, Tokens
from transduce.errors import ModelError
from transduce.interop.imports.configuration import Configuration, describe
from transduce.interop.imports.huggingface import model_type, read_config, read_weights
from transduce.interop.imports.tokenizer_file import (
    JSON,
    read_tokenizer_file,
    tokens_of,
    using,
)
from transduce.interop.imports.weights import (
    Layout,
    Linear,
    Parts,
    Weights,
    create_model,
    fill,
    fill_block,
    fill_norm,
    halves_to_pairs,
    imported_recipe,
    repeated_heads,
)
from transduce.models.decoders import TransformerDecoder
from transduce.nn.positions import Learned
from transduce.tasks.language_model import LanguageModel

NAME = "a language model of Hugging Face"
LLAMAS = ("llama", "mistral", "qwen2", "granite")
TYPES = ("gpt2", *LLAMAS)
KEPT = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "added_tokens.json",
    "generation_config.json",
)
"""Files that an export puts back."""
LONGEST = 1 << 17  # tokens of a context, at most
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
ACTIVATIONS |= {name: name for name in ("gelu", "relu", "silu")}
# Settings that make another network than ours, and the values with which they do not.
GPT2_PLAIN = {
    "scale_attn_weights": (True, None),
    "scale_attn_by_inverse_layer_idx": (False, None),
    "add_cross_attention": (False, None),
}
LLAMA_PLAIN = {
    "hidden_act": ("silu", None),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "residual_multiplier": (1.0, None),
    "logits_scaling": (1.0, None),
}


def recognises(source: Path) -> bool:
    return model_type(source) in TYPES


def read(source: Path) -> LanguageModel:
    """The model. Raises ModelError, with the reason, for what we have no equal of."""
    config = read_config(source)
    stored = read_weights(source)
    names = {name: _short(name) for name in stored}
    weights = Weights({names[name]: tensor for name, tensor in stored.items()}, source)
    read_model = _read_gpt2 if config.text("model_type") == "gpt2" else _read_llama
    model, layout = read_model(source, config, weights)
    weights.check_all_used()
    model.imported = {
        "format": config.text("model_type"),
        "config": config.values,
        "ids": {"rows": list(layout.rows), "unwritten": sorted(layout.unwritten)},
        "names": {name: (names[name], str(stored[name].dtype)[6:]) for name in stored},
        "files": [name for name in KEPT if (source / name).is_file()],
        "tensors": {
            names[name]: tensor.clone()
            for name, tensor in stored.items()
            if name.endswith((".attn.bias", ".masked_bias", ".inv_freq"))
        },
    }
    model.network.eval()
    return model


def _short(name: str) -> str:
    """A name without the model's before it, which files of a model without its head lack."""
    return name.removeprefix("transformer.").removeprefix("model.")


def _create(
    source: Path,
    config: Configuration,
    weights: Weights,
    table: str,
    section: dict[str, Any],
    longest: int,
) -> tuple[LanguageModel, Layout]:
    """A model with its embeddings and its output layer; blocks and norms are still to be filled."""
    table_VD = weights[table]
    head_VD = weights.get("lm_head.weight")
    head_VD = table_VD if head_VD is None else head_VD
    tokens, layout = read_language_tokens(source, config, len(table_VD))
    tied = torch.equal(head_VD, table_VD)
    settings = imported_recipe(
        source.resolve().name,
        {
            "width": table_VD.shape[1],
            "tie_embeddings": "target" if tied else "none",
            "decoder": section,
        },
        (tokens, tokens),
        task="language_modeling",
        max_length=max(min(longest, LONGEST) - 1, 1),
        decode={"beam": 1, "max_extra": 50},
    )
    model = create_model(settings, (tokens, tokens), weights.size, source)
    assert isinstance(model, LanguageModel)
    network = model.network
    embedding = network.decoder.embedding
    fill(embedding.table.weight, layout.embeddings(table_VD), f"{source}: {table}")
    fill(network.head.weight, layout.embeddings(head_VD), f"{source}: lm_head")
    bias_V = layout.bias(torch.zeros(len(table_VD)))
    fill(network.head.bias, bias_V, f"{source}: the bias of the output layer")
    return model, layout


def _check_plain(config: Configuration, plain: Mapping[str, tuple[Any, ...]]) -> None:
    for key, allowed in plain.items():
        if not config.is_one_of(key, allowed):
            raise ModelError(
                f"{config.where}: {key} is {describe(config.values[key])}, and a language model of "
                f"transduce has no equal of that"
            )


# ------------------------------------------------------------------------------------------ GPT-2


def _read_gpt2(
    source: Path, config: Configuration, weights: Weights
) -> tuple[LanguageModel, Layout]:
    _check_plain(config, GPT2_PLAIN)
    width = config.whole("n_embd")
    places_TD = weights["wpe.weight"]
    section = {
        "layers": config.whole("n_layer"),
        "heads": config.whole("n_head"),
        "feed_forward": config.whole("n_inner", 4 * width),
        "activation": config.choice("activation_function", ACTIVATIONS, "gelu_new"),
        "norm_epsilon": config.number("layer_norm_epsilon", 1e-5, 0, 1),
        "positions": "learned",
        "max_positions": len(places_TD),
        "scale_embeddings": False,
    }
    model, layout = _create(source, config, weights, "wte.weight", section, len(places_TD))
    decoder = model.network.decoder
    assert isinstance(decoder, TransformerDecoder)
    assert decoder.embedding.positions is not None
    learned = decoder.embedding.positions.positions
    assert isinstance(learned, Learned)
    fill(learned.table_TD, places_TD, f"{source}: wpe")
    for number, block in enumerate(decoder.stack):
        name = f"h.{number}"
        fill_block(block, partial(_gpt2_parts, weights, name), f"{source}: {name}")
    fill_norm(decoder.norm, weights.linear("ln_f"), f"{source}: ln_f")
    return model, layout


def _gpt2_parts(weights: Weights, name: str, kind: str) -> Parts:
    if kind == "feed_forward":
        into, out_of = (_turned(weights, f"{name}.mlp.{part}") for part in ("c_fc", "c_proj"))
        return Parts([into], out_of, weights.linear(f"{name}.ln_2"))
    weights.ignore(f"{name}.attn.bias", f"{name}.attn.masked_bias")  # masks, in old files
    into, out_of = (_turned(weights, f"{name}.attn.{part}") for part in ("c_attn", "c_proj"))
    return Parts([into], out_of, weights.linear(f"{name}.ln_1"))


def _turned(weights: Weights, name: str) -> Linear:
    """Its weights are [in, out]."""
    found = weights.linear(name)
    return Linear(found.weight.t().contiguous(), found.bias)


# ------------------------------------------------------------------------------------------ Llama


def _read_llama(
    source: Path, config: Configuration, weights: Weights
) -> tuple[LanguageModel, Layout]:
    if not config.switch("use_sliding_window", True):
        config = Configuration({**config.values, "sliding_window": None}, config.where)
    _check_plain(config, LLAMA_PLAIN)
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    shared = config.whole("num_key_value_heads", heads)
    own = config.whole("head_dim", max(width // heads, 1))
    if heads % shared:
        raise ModelError(f"its {heads} heads cannot be divided among {shared} heads of keys")
    _check_factor(config, "attention_multiplier", own**-0.5, "1 / √(width of a head)")
    longest = config.whole("max_position_embeddings", 2048)
    section = {
        "layers": config.whole("num_hidden_layers"),
        "heads": heads,
        "head_width": None if heads * own == width else own,
        "feed_forward": config.whole("intermediate_size"),
        "activation": "swiglu",
        "norm": "rms",
        "norm_epsilon": config.number("rms_norm_eps", 1e-6, 0, 1),
        "positions": "rotary",
        "rotary_base": _base(config),
        "scale_embeddings": _is_scaled(config, width),
    }
    model, layout = _create(source, config, weights, "embed_tokens.weight", section, longest)
    decoder = model.network.decoder
    assert isinstance(decoder, TransformerDecoder)
    for number, block in enumerate(decoder.stack):
        name = f"layers.{number}"
        parts = partial(_llama_parts, weights, name, heads, shared)
        fill_block(block, parts, f"{source}: {name}")
    fill_norm(decoder.norm, weights.linear("norm"), f"{source}: norm")
    return model, layout


def _llama_parts(weights: Weights, name: str, heads: int, shared: int, kind: str) -> Parts:
    if kind == "feed_forward":
        gate, up, down = (
            weights.linear(f"{name}.mlp.{one}_proj") for one in ("gate", "up", "down")
        )
        return Parts([gate, up], down, weights.linear(f"{name}.post_attention_layernorm"))
    query, key, value = (weights.linear(f"{name}.self_attn.{part}_proj") for part in "qkv")
    # Heads that share keys and values have copies of them here, which is exact.
    into = [
        halves_to_pairs(query, heads),
        repeated_heads(halves_to_pairs(key, shared), shared, heads // shared),
        repeated_heads(value, shared, heads // shared),
    ]
    weights.ignore(f"{name}.self_attn.rotary_emb.inv_freq")
    out_of = weights.linear(f"{name}.self_attn.o_proj")
    return Parts(into, out_of, weights.linear(f"{name}.input_layernorm"))


def _base(config: Configuration) -> float:
    """Of rotary positions: one number in older configurations, a section in newer ones."""
    rotary = config.section("rope_parameters")
    if (kind := rotary.text("rope_type", "default")) != "default":
        raise ModelError(
            f"its rotary positions are scaled (rope_type {describe(kind)}), which transduce does "
            f"not do"
        )
    if rotary.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelError("it rotates a part of each head alone; transduce rotates all of it")
    return rotary.number("rope_theta", config.number("rope_theta", 10000.0, 1.01), 1.01)


def _is_scaled(config: Configuration, width: int) -> bool:
    """Whether embeddings are multiplied by the square root of the width, as in our exports."""
    if config.number("embedding_multiplier", 1.0) == 1.0:
        return False
    _check_factor(config, "embedding_multiplier", math.sqrt(width), "1, or √(width)")
    return True


def _check_factor(config: Configuration, key: str, wanted: float, expected: str) -> None:
    value = config.number(key, wanted)
    if not math.isclose(value, wanted, rel_tol=1e-6):
        raise ModelError(f"{config.where}: {key} is {value:g}; in transduce it is {expected}")


# ----------------------------------------------------------------------------------------------
# The tokenizers of Hugging Face's language models, as ours.


def read_language_tokens(folder: Path, config: Configuration, rows: int) -> tuple[Tokens, Layout]:
    """The tokens of a folder, and which of the `rows` of embeddings each of them has.

    Raises ModelError, with the reason.
    """
    parts = read_tokenizer_file(folder / JSON)
    with using(folder / JSON):
        names = token_names(parts)
        unknown = parts["model"].get("unk_token")
        silent = {one["content"] for one in parts["added_tokens"] if one.get("special")}
        if len(names) > rows:
            raise ModelError(f"{folder} has {rows} embeddings for {len(names)} tokens")
        names = [name or f"unused_{row}" for row, name in enumerate([*names, *[""] * rows][:rows])]
        layout, special, tags = _arrange(names, silent, unknown, config, folder)
        text = with_ids(parts, special, layout.names[: len(layout.names) - len(tags)], tags)
        tokens = tokens_of(text)
    if len(tokens) != len(layout.rows):
        raise ModelError(f"{folder / JSON}: some of its tokens have the same name")
    return tokens, layout


def _arrange(
    names: list[str],
    silent: set[str],
    unknown: str | None,
    config: Configuration,
    folder: Path,
) -> tuple[Layout, dict[str, str | None], dict[str, str]]:
    """The layout, what our special tokens are called there, and the other special ones."""
    end = config.token("eos_token_id", len(names))
    if end is None:
        raise ModelError(f"{folder}: its configuration has no eos_token_id, which ends texts")
    begin = config.token("bos_token_id", len(names))
    padding = config.token("pad_token_id", len(names))
    found: list[int | None] = [None] * len(SPECIALS)
    found[UNKNOWN] = names.index(unknown) if unknown in names else None
    found[END] = end
    found[BEGIN] = end if begin is None else begin
    found[PAD] = padding
    owner: dict[int, int] = {}
    for one in (END, BEGIN, UNKNOWN, PAD):  # which of two keeps a row
        row = found[one]
        if row is not None:
            owner.setdefault(row, one)
    kept = set(owner.values())
    others = [row for row in range(len(names)) if row not in owner]
    rest = [row for row in others if names[row] not in silent]
    last = [row for row in others if names[row] in silent]
    tags = {names[row]: _fresh(tag_of(names[row]), names) for row in last}
    special = {
        ours: names[row] if one in kept and (row := found[one]) is not None else None
        for one, ours in enumerate(SPECIALS)
    }
    layout = Layout(
        (*found, *rest, *last),
        tuple(names[row] for row in (*rest, *last)),
        len(names),
        frozenset(range(len(SPECIALS))) - kept,
    )
    return layout, special, tags


def _fresh(tag: str, names: list[str]) -> str:
    """A name that no other token has."""
    while f"<{tag}>" in SPECIALS:
        tag += "_"
    return tag
