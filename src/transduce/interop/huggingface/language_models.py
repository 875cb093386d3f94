"""Export of language models: as Llama or Granite, or as what they were imported from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.errors import ModelError
from transduce.interop.huggingface.files import put_back, write_tokenizer, write_weights
from transduce.interop.imports.huggingface import CONFIG, read_origin_tensors
from transduce.interop.positions import positions
from transduce.models.decoders import TransformerDecoder
from transduce.nn.positions import Learned
from transduce.nn.transformer import DecoderBlock
from transduce.storage import write_json
from transduce.tasks.language_model import LanguageModel

# ----------------------------------------------------------------------------------------------
# Export of a language model as Llama, or as Granite where embeddings are tied.
#
# Both have RMSNorm, SwiGLU and rotary positions. Granite is Llama with factors, of which one
# scales the embeddings alone: that is what tied embeddings need, which are larger as inputs than
# as outputs.

EPSILON = 1e-6  # of our RMSNorm


def export_language_model(model: LanguageModel, folder: Path) -> str:
    """Write configuration, weights and tokenizer; the name of the class there."""
    settings, part = model.recipe.model, model.recipe.model.decoder
    _check(model)
    assert isinstance(part, recipe.TransformerDecoder)
    assert isinstance(model.network.decoder, TransformerDecoder)
    tied = settings.tie_embeddings != "none"
    tensors: dict[str, Tensor] = {}
    for number, block in enumerate(model.network.decoder.stack):
        tensors |= _llama_block(block, f"model.layers.{number}", part.heads)
    scale = math.sqrt(settings.width) if part.scale_embeddings else 1.0
    table_VD = model.network.decoder.embedding.table.weight.detach().cpu()
    tensors["model.embed_tokens.weight"] = table_VD if tied else table_VD * scale
    if not tied:
        tensors["lm_head.weight"] = model.network.head.weight.detach().cpu()
    norm = model.network.decoder.norm
    assert isinstance(norm, torch.nn.RMSNorm)
    tensors["model.norm.weight"] = norm.weight.detach().cpu()
    write_weights(folder, tensors)
    write_json(folder / CONFIG, _config(model, part, tied, scale))
    ids = {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD}
    write_json(
        folder / "generation_config.json",
        {**ids, "max_new_tokens": model.recipe.decode.max_extra, "suppress_tokens": [PAD, BEGIN]},
    )
    write_tokenizer(folder, model.target_tokens, None, positions(part), ends=False)
    return "GraniteForCausalLM" if tied else "LlamaForCausalLM"


def _check(model: LanguageModel) -> None:
    part = model.recipe.model.decoder
    if not isinstance(part, recipe.TransformerDecoder):
        kind = "" if part is None else part.kind
        raise ModelError(f"only Transformers have an equal in Hugging Face, and this is {kind}")
    wanted = {
        "norm": "rms",
        "norm_position": "pre",
        "activation": "swiglu",
        "positions": "rotary",
        "norm_embeddings": False,
    }
    for key, value in wanted.items():
        if (found := getattr(part, key)) != value:
            raise ModelError(
                f"no language model of Hugging Face's transformers is equal to this one: it has "
                f"{key}: {str(found).lower()}, and Llama and Granite have {str(value).lower()}"
            )
    if part.is_pruned:
        raise ModelError("heads of this model were pruned, and all layers of Llama have as many")
    if bool(model.network.head.bias.detach().any()):
        raise ModelError(
            "the output layer of this model has a bias that is not zero, and Llama and Granite "
            "have no place for one: train it with model.output_bias: false"
        )


def _config(
    model: LanguageModel, part: recipe.TransformerDecoder, tied: bool, scale: float
) -> dict[str, Any]:
    settings = model.recipe.model
    width = part.head_width or settings.width // part.heads
    granite = {
        "embedding_multiplier": scale,
        "attention_multiplier": 1 / math.sqrt(width),
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    }
    return {
        "architectures": ["GraniteForCausalLM" if tied else "LlamaForCausalLM"],
        "model_type": "granite" if tied else "llama",
        "torch_dtype": "float32",
        "vocab_size": len(model.target_tokens),
        "hidden_size": settings.width,
        "intermediate_size": part.feed_forward,
        "num_hidden_layers": part.layers,
        "num_attention_heads": part.heads,
        "num_key_value_heads": part.heads,
        "hidden_act": "silu",
        "max_position_embeddings": positions(part),
        "rms_norm_eps": EPSILON if part.norm_epsilon is None else part.norm_epsilon,
        "rope_theta": part.rotary_base,
        "head_dim": width,
        "attention_bias": True,
        "mlp_bias": True,
        "attention_dropout": part.attention_dropout,
        "tie_word_embeddings": tied,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": PAD,
        **(granite if tied else {}),
    }


# ----------------------------------------------------------------------------------------------
# Export of a language model that was imported from Hugging Face: its own names and ids again.
#
# Weights that were not trained since are those of the folder that it came from, bit for bit.


def export_imported_language_model(
    model: LanguageModel, origin: Mapping[str, Any], folder: Path
) -> str:
    """Write the folder again; the name of the class. Raises ModelError for what changed since."""
    assert model.origin is not None
    config = origin["config"]
    tensors = read_origin_tensors(model.origin.folder)
    tensors |= _tensors(model, config, origin["ids"])
    found: dict[str, Tensor] = {}
    for name, (short, kind) in origin["names"].items():
        if short not in tensors:
            raise ModelError(f"{model.origin.folder} has no {name} any more; import it again")
        found[name] = tensors[short].to(getattr(torch, kind))
    known = {short for short, _ in origin["names"].values()}
    for short, values in tensors.items():
        if short.endswith(".bias") and short not in known and bool(values.any()):
            raise ModelError(
                f"{short} was learned since this model was imported, and there is no place for it "
                f"there: freeze biases (train.start: {{freeze: ['*.bias']}}) to export it again"
            )
    put_back(folder, found, origin, model.origin.folder)
    named = config.get("architectures") or [config["model_type"]]
    return str(named[0])


def _tensors(
    model: LanguageModel, config: Mapping[str, Any], ids: Mapping[str, Any]
) -> dict[str, Tensor]:
    """By their names there, without what stands before all of them."""
    decoder, head = model.network.decoder, model.network.head
    assert isinstance(decoder, TransformerDecoder)
    written = set(range(len(ids["rows"]))) - set(ids["unwritten"])
    bias_V = head.bias.detach().cpu()
    if any(float(bias_V[number]) for number in written):
        raise ModelError(
            "the output layer has learned a bias since this model was imported, and there is no "
            "place for one: freeze it (train.start: {freeze: ['head.bias']}) to export it again"
        )
    places = {ids["rows"][number]: number for number in written}
    order = torch.tensor([places[row] for row in range(len(places))])
    tables = [one.detach().cpu()[order] for one in (decoder.embedding.table.weight, head.weight)]
    found = {"lm_head.weight": tables[1]}
    gpt2 = config["model_type"] == "gpt2"
    found["wte.weight" if gpt2 else "embed_tokens.weight"] = tables[0]
    for number, block in enumerate(decoder.stack):
        found |= (
            _gpt2_block(block, f"h.{number}")
            if gpt2
            else _llama_block(block, f"layers.{number}", config.get("num_key_value_heads"))
        )
    _put(found, "ln_f" if gpt2 else "norm", decoder.norm)
    if gpt2:
        assert decoder.embedding.positions is not None
        learned = decoder.embedding.positions.positions
        assert isinstance(learned, Learned)
        found["wpe.weight"] = learned.table_TD.detach().cpu()
    return found


def _put(found: dict[str, Tensor], name: str, layer: nn.Module, turned: bool = False) -> None:
    for key, parameter in layer.named_parameters():
        values = parameter.detach().cpu()
        found[f"{name}.{key}"] = values.t().contiguous() if turned and key == "weight" else values


def _gpt2_block(block: DecoderBlock, name: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    _put(found, f"{name}.attn.c_attn", block.self_attention.in_projection, turned=True)
    _put(found, f"{name}.attn.c_proj", block.self_attention.out_projection, turned=True)
    _put(found, f"{name}.mlp.c_fc", block.feed_forward.expand, turned=True)
    _put(found, f"{name}.mlp.c_proj", block.feed_forward.contract, turned=True)
    _put(found, f"{name}.ln_1", block.self_attention_residual.norm)
    _put(found, f"{name}.ln_2", block.feed_forward_residual.norm)
    return found


def _llama_block(block: DecoderBlock, name: str, shared: int | None) -> dict[str, Tensor]:
    """shared: heads of keys and values, of which groups of heads have copies here."""
    attention, layer = block.self_attention, block.feed_forward
    heads = attention.heads
    shared = shared or heads
    found: dict[str, Tensor] = {}
    for part in ("weight", "bias"):
        query, key, value = getattr(attention.in_projection, part).detach().cpu().chunk(3)
        gate, up = getattr(layer.expand, part).detach().cpu().chunk(2)
        found |= {
            f"{name}.self_attn.q_proj.{part}": pairs_to_halves(query, heads),
            f"{name}.self_attn.k_proj.{part}": pairs_to_halves(_once(key, heads, shared), shared),
            f"{name}.self_attn.v_proj.{part}": _once(value, heads, shared),
            f"{name}.mlp.gate_proj.{part}": gate,
            f"{name}.mlp.up_proj.{part}": up,
        }
    _put(found, f"{name}.self_attn.o_proj", attention.out_projection)
    _put(found, f"{name}.mlp.down_proj", layer.contract)
    _put(found, f"{name}.input_layernorm", block.self_attention_residual.norm)
    _put(found, f"{name}.post_attention_layernorm", block.feed_forward_residual.norm)
    return found


def pairs_to_halves(rows: Tensor, heads: int) -> Tensor:
    """The inverse of `halves_to_pairs`."""
    rest = rows.shape[1:]
    return rows.reshape(heads, -1, 2, *rest).transpose(1, 2).reshape(-1, *rest)


def _once(rows: Tensor, heads: int, shared: int) -> Tensor:
    """Of keys or values that groups of heads share, those of each group once."""
    grouped = rows.reshape(shared, heads // shared, -1, *rows.shape[1:])
    if not torch.equal(grouped, grouped[:, :1].expand_as(grouped)):
        raise ModelError(
            "heads that shared keys and values were trained apart since this model was imported, "
            "and there they share them"
        )
    return grouped[:, 0].reshape(-1, *rows.shape[1:])
