"""Export of a language model as Llama, or as Granite where embeddings are tied.

Both have RMSNorm, SwiGLU and rotary positions. Granite is Llama with factors, of which one scales
the embeddings alone: that is what tied embeddings need, which are larger as inputs than as outputs.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce import recipe
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.errors import ModelError
from transduce.interop.huggingface.tokenizer import write_tokenizer
from transduce.interop.huggingface.weights_file import write_weights
from transduce.interop.imports.huggingface import CONFIG
from transduce.interop.positions import positions
from transduce.models.decoders import TransformerDecoder
from transduce.nn.transformer import DecoderBlock
from transduce.storage import write_json
from transduce.tasks.language_model import LanguageModel

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
        tensors |= {
            f"model.layers.{number}.{name}": tensor for name, tensor in _block(block).items()
        }
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


def _block(block: DecoderBlock) -> dict[str, Tensor]:
    attention, layer = block.self_attention, block.feed_forward
    found: dict[str, Tensor] = {}
    for part in ("weight", "bias"):
        query, key, value = getattr(attention.in_projection, part).detach().cpu().chunk(3)
        gate, up = getattr(layer.expand, part).detach().cpu().chunk(2)
        found |= {
            f"self_attn.q_proj.{part}": _turned(query, attention.heads),
            f"self_attn.k_proj.{part}": _turned(key, attention.heads),
            f"self_attn.v_proj.{part}": value,
            f"self_attn.o_proj.{part}": getattr(attention.out_projection, part).detach().cpu(),
            f"mlp.gate_proj.{part}": gate,
            f"mlp.up_proj.{part}": up,
            f"mlp.down_proj.{part}": getattr(layer.contract, part).detach().cpu(),
        }
    for name, residual in (
        ("input_layernorm", block.self_attention_residual),
        ("post_attention_layernorm", block.feed_forward_residual),
    ):
        assert isinstance(residual.norm, torch.nn.RMSNorm)
        found[f"{name}.weight"] = residual.norm.weight.detach().cpu()
    return found


def _turned(rows: Tensor, heads: int) -> Tensor:
    """Rows of a projection: pairs that are turned together are neighbours in ours, and the two
    halves of a head there."""
    rest = rows.shape[1:]
    return rows.reshape(heads, -1, 2, *rest).transpose(1, 2).reshape(-1, *rest)


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
