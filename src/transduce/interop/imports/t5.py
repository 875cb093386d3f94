"""T5, mT5 and ByT5 of Hugging Face: relative positions, RMSNorm, no biases.

Raffel et al. 2020, https://arxiv.org/abs/1910.10683; Xue et al. 2021 and 2022. Its scores are not
divided by the square root of a head's width: our queries are larger by it. Its output layer, where
it is tied, is smaller by the square root of the width: the last norm has that factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce import recipe as sections
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError
from transduce.interop.huggingface.ids import Renumbered
from transduce.interop.huggingface.layout import Family
from transduce.interop.imports.configuration import (
    MAX_TOKENS,
    Configuration,
    read_configuration,
)
from transduce.interop.imports.encoder_decoders import read_tokens
from transduce.interop.imports.huggingface import model_type, read_config, read_weights
from transduce.interop.imports.weights import (
    BANNED_BIAS,
    Linear,
    Parts,
    Weights,
    create_model,
    fill,
    fill_block,
    fill_norm,
    imported_recipe,
)
from transduce.models.decoders import TransformerDecoder
from transduce.models.encoders import TransformerEncoder
from transduce.tasks.transduce import Transducer

NAME = "T5, of Hugging Face"
TYPES = ("t5", "mt5")
GENERATION, TOKENIZER = "generation_config.json", "tokenizer_config.json"
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gated-gelu": "geglu_tanh",
    "gated-silu": "swiglu",
}
SIDES = ("encoder", "decoder")
TABLE = "shared.weight"
TABLES = (TABLE, *(f"{side}.embed_tokens.weight" for side in SIDES))
BYTES, EXTRA = 256, 125  # tokens of ByT5, after the three special ones


def recognises(source: Path) -> bool:
    return model_type(source) in TYPES


def read(source: Path) -> Transducer:
    """The model. Raises ModelError, with the reason, for what we have no equal of."""
    config = read_config(source)
    generation = read_configuration(source / GENERATION, optional=True)
    numbers = _Numbers(config)
    weights = Weights(read_weights(source), source)
    tokens, ids = _tokens(source, config, generation)
    table_VD = _table(weights, ids, source)
    head_VD = weights.get("lm_head.weight")
    head_VD = table_VD if head_VD is None else head_VD
    tied = torch.equal(head_VD, table_VD)
    width = table_VD.shape[1]
    settings = imported_recipe(
        source.resolve().name,
        {
            "width": width,
            "dropout": numbers.dropout,
            "tie_embeddings": "all" if tied else "none",
            "encoder": numbers.section("num_layers"),
            "decoder": numbers.section("num_decoder_layers"),
        },
        (tokens, tokens),
        decode={"beam": generation.whole("num_beams", config.whole("num_beams", 1))},
    )
    model = create_model(settings, (tokens, tokens), weights.size, source)
    assert isinstance(model, Transducer)
    network = model.network
    assert isinstance(network.encoder, TransformerEncoder)
    assert isinstance(network.decoder, TransformerDecoder)
    ours_VD = ids.to_ours(table_VD)
    fill(network.front.table.weight, ours_VD, f"{source}: {TABLE}")
    fill(network.decoder.embedding.table.weight, ours_VD, f"{source}: {TABLE}")
    fill(network.head.weight, ids.to_ours(head_VD), f"{source}: lm_head")
    bias_V = torch.zeros(len(tokens))
    bias_V[ids.copies] = BANNED_BIAS
    fill(network.head.bias, bias_V, f"{source}: the bias of the output layer")
    stacks: dict[str, TransformerEncoder | TransformerDecoder] = {
        "encoder": network.encoder,
        "decoder": network.decoder,
    }
    for side, stack in stacks.items():
        for number, block in enumerate(stack.stack):
            name = f"{side}.block.{number}.layer"
            places = [one.kind for one in block.sublayers]
            fill_block(block, partial(_parts, weights, name, places, numbers.scale), name)
        norm = weights[f"{side}.final_layer_norm.weight"]
        if side == "decoder" and numbers.divides_logits:
            norm = norm / math.sqrt(width)
        fill_norm(stack.norm, Linear(norm), f"{source}: {side}.final_layer_norm")
        _fill_bias(stack, weights[_bias_of(side)], f"{source}: {_bias_of(side)}")
    # Old files have one for the attention to the source too, which is not used there.
    weights.ignore("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight")
    weights.check_all_used()
    model.imported = {"format": config.text("model_type")}
    network.eval()
    return model


class _Numbers:
    """The settings of a configuration."""

    def __init__(self, config: Configuration) -> None:
        self._config = config
        self._activation = config.choice("feed_forward_proj", ACTIVATIONS, "relu")
        self.scale = math.sqrt(config.whole("d_kv"))
        """Of queries, so that scores are theirs."""
        tied = config.switch("tie_word_embeddings", True)
        self.divides_logits = config.text("model_type") == "t5" and config.switch(
            "scale_decoder_outputs", tied
        )
        self.dropout = config.fraction("dropout_rate")

    def section(self, layers: str) -> dict[str, Any]:
        config = self._config
        width, heads, own = (config.whole(key) for key in ("d_model", "num_heads", "d_kv"))
        return {
            "layers": config.whole(layers, config.whole("num_layers")),
            "heads": heads,
            "head_width": None if heads * own == width else own,
            "feed_forward": config.whole("d_ff"),
            "activation": self._activation,
            "norm": "rms",
            "norm_epsilon": config.number("layer_norm_epsilon", 1e-6, 0, 1),
            "positions": "relative",
            "relative_buckets": config.whole("relative_attention_num_buckets", 32),
            "relative_distance": config.whole("relative_attention_max_distance", 128),
            "scale_embeddings": False,
        }


# ----------------------------------------------------------------------------------------- tokens


def _tokens(
    source: Path, config: Configuration, generation: Configuration
) -> tuple[Tokens, Renumbered]:
    usual = {"pad_token_id": 0, "eos_token_id": 1}
    stated = {name: value for name, value in config.values.items() if value is not None}
    values = {**usual, **stated}
    config = Configuration(
        {"decoder_start_token_id": values["pad_token_id"], **values}, config.where
    )
    if _is_bytes(source):
        return _bytes(config)
    family = Family(config.text("model_type"), "", "pre", False, "learned")
    found = read_tokens(source, family, config, generation)
    if found.source.to_json() != found.target.to_json():
        raise ModelError(f"{source}: its sources and targets are tokenized in different ways")
    return found.target, found.target_ids


def _is_bytes(source: Path) -> bool:
    path = source / TOKENIZER
    return read_configuration(path, optional=True).text("tokenizer_class", "") == "ByT5Tokenizer"


def _bytes(config: Configuration) -> tuple[Tokens, Renumbered]:
    """ByT5's: padding, end, unknown, the bytes, then <extra_id_0> and so on."""
    size = config.whole("vocab_size", maximum=MAX_TOKENS)
    if size != 3 + BYTES + EXTRA:
        raise ModelError(f"its vocabulary of bytes has {size} tokens, not {3 + BYTES + EXTRA}")
    names = sorted(f"extra_id_{number}" for number in range(EXTRA))  # our order of tags
    rows = [3 + BYTES + int(name.rpartition("_")[2]) for name in names]
    ids = Renumbered(
        pad=config.whole("pad_token_id", minimum=0, maximum=size - 1),
        unknown=2,
        begin=config.whole("decoder_start_token_id", minimum=0, maximum=size - 1),
        end=config.whole("eos_token_id", minimum=0, maximum=size - 1),
        vocabulary=size,
        tags=tuple(rows),
    )
    return Tokens.train(sections.Tokens(level="byte"), [], names), ids


# ---------------------------------------------------------------------------------------- weights


def _table(weights: Weights, ids: Renumbered, source: Path) -> Tensor:
    found = [weights[name] for name in TABLES if name in weights]
    if not found:
        raise ModelError(f"{source} has no {TABLE}, which a model of its kind needs")
    if any(not torch.equal(one, found[0]) for one in found):
        raise ModelError(f"{source} has different embeddings of source and target")
    if len(found[0]) != ids.vocabulary:
        raise ModelError(f"{source} has {len(found[0])} embeddings for {ids.vocabulary} tokens")
    return found[0]


def _bias_of(side: str) -> str:
    return f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def _fill_bias(stack: TransformerEncoder | TransformerDecoder, table_RH: Tensor, what: str) -> None:
    relative = stack.stack[0].sublayers[0].attention.relative
    assert relative is not None
    fill(relative.table_RH, table_RH, what)


SUBLAYERS = {
    "self_attention": "SelfAttention",
    "cross_attention": "EncDecAttention",
    "feed_forward": "DenseReluDense",
}


def _parts(weights: Weights, name: str, places: Sequence[str], scale: float, kind: str) -> Parts:
    """places: the sublayers of the block, which are numbered there."""
    where = f"{name}.{places.index(kind)}"
    inner = f"{where}.{SUBLAYERS[kind]}"

    def product(part: str) -> Linear:
        return Linear(weights[f"{inner}.{part}.weight"] * (scale if part == "q" else 1.0))

    norm = Linear(weights[f"{where}.layer_norm.weight"])
    if kind == "feed_forward":
        gated = f"{inner}.wi_0.weight" in weights
        into = [product(part) for part in (("wi_0", "wi_1") if gated else ("wi",))]
        return Parts(into, product("wo"), norm)
    return Parts([product(part) for part in "qkv"], product("o"), norm)
