"""Models of Hugging Face's transformers with the weights of tiny models of ours."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.transduce import Transducer

HALVES = {"marian", "pegasus"}


def twin_of(model: Transducer, kind: str) -> Any:
    """The encoder-decoder there: marian, pegasus or blenderbot."""
    import transformers

    shape = model.recipe.model
    encoder, decoder = shape.parts["encoder"], shape.parts["decoder"]
    common: dict[str, Any] = {
        "vocab_size": len(model.target_tokens),
        "d_model": shape.width,
        "encoder_layers": encoder.layers,
        "decoder_layers": decoder.layers,
        "encoder_attention_heads": encoder.heads,
        "decoder_attention_heads": decoder.heads,
        "encoder_ffn_dim": encoder.feed_forward,
        "decoder_ffn_dim": decoder.feed_forward,
        "activation_function": encoder.activation,
        "scale_embedding": True,
        "pad_token_id": PAD,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "decoder_start_token_id": BEGIN,
        "max_position_embeddings": 64,
        "dropout": 0.0,
    }
    classes = {
        "marian": ("MarianConfig", "MarianMTModel"),
        "pegasus": ("PegasusConfig", "PegasusForConditionalGeneration"),
        "blenderbot": ("BlenderbotConfig", "BlenderbotForConditionalGeneration"),
    }
    config, architecture = (getattr(transformers, name) for name in classes[kind])
    made = architecture(config(**common)).eval()
    width = shape.width
    order = torch.arange(width)
    if kind in HALVES:
        order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    weights = {name: p.detach() for name, p in model.network.named_parameters()}
    found: dict[str, Tensor] = {
        "model.shared.weight": weights["front.table.weight"][:, order],
        "final_logits_bias": weights["head.bias"][None],
    }
    for side, part in (("encoder", encoder), ("decoder", decoder)):
        for number in range(part.layers):
            ours, theirs = f"{side}.blocks.{number}", f"model.{side}.layers.{number}"
            pairs = [("self_attention", "self_attn")]
            pairs += [("cross_attention", "encoder_attn")] if side == "decoder" else []
            for one, other in pairs:
                inner = weights[f"{ours}.{one}.in_projection.weight"].chunk(3)
                bias = weights[f"{ours}.{one}.in_projection.bias"].chunk(3)
                for name, matrix, offset in zip("qkv", inner, bias, strict=True):
                    found[f"{theirs}.{other}.{name}_proj.weight"] = matrix[:, order]
                    found[f"{theirs}.{other}.{name}_proj.bias"] = offset
                for kind_ in ("weight", "bias"):
                    out = weights[f"{ours}.{one}.out_projection.{kind_}"]
                    found[f"{theirs}.{other}.out_proj.{kind_}"] = out[order]
                    norm = weights[f"{ours}.{one}_residual.norm.{kind_}"]
                    found[f"{theirs}.{other}_layer_norm.{kind_}"] = norm[order]
            found[f"{theirs}.fc1.weight"] = weights[f"{ours}.feed_forward.expand.weight"][:, order]
            found[f"{theirs}.fc1.bias"] = weights[f"{ours}.feed_forward.expand.bias"]
            for kind_ in ("weight", "bias"):
                found[f"{theirs}.fc2.{kind_}"] = weights[f"{ours}.feed_forward.contract.{kind_}"][
                    order
                ]
                norm = weights[f"{ours}.feed_forward_residual.norm.{kind_}"]
                found[f"{theirs}.final_layer_norm.{kind_}"] = norm[order]
        if kind != "marian":
            for kind_ in ("weight", "bias"):
                found[f"model.{side}.layer_norm.{kind_}"] = weights[f"{side}.norm.{kind_}"][order]
        if kind == "blenderbot":
            where = "front" if side == "encoder" else "decoder.embedding"
            name = next(n for n in weights if n.startswith(f"{where}.positions"))
            found[f"model.{side}.embed_positions.weight"] = weights[name][:64]
    _fill(made, found)
    return made


def language_twin_of(model: LanguageModel) -> Any:
    """The Llama of a language model without tied embeddings."""
    import transformers

    shape = model.recipe.model
    part = shape.parts["decoder"]
    made = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(model.target_tokens),
            hidden_size=shape.width,
            intermediate_size=part.feed_forward,
            num_hidden_layers=part.layers,
            num_attention_heads=part.heads,
            num_key_value_heads=part.heads,
            rms_norm_eps=1e-6,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=False,
            max_position_embeddings=64,
            pad_token_id=PAD,
            bos_token_id=BEGIN,
            eos_token_id=END,
        )
    ).eval()
    weights = {name: p.detach() for name, p in model.network.named_parameters()}
    turned = torch.arange(shape.width).unflatten(0, (part.heads, -1, 2)).transpose(1, 2).flatten()
    found = {
        "model.embed_tokens.weight": weights["decoder.embedding.table.weight"]
        * math.sqrt(shape.width),
        "lm_head.weight": weights["head.weight"],
        "model.norm.weight": weights["decoder.norm.weight"],
    }
    for number in range(part.layers):
        ours, theirs = f"decoder.blocks.{number}", f"model.layers.{number}"
        for kind in ("weight", "bias"):
            query, key, value = weights[f"{ours}.self_attention.in_projection.{kind}"].chunk(3)
            gate, up = weights[f"{ours}.feed_forward.expand.{kind}"].chunk(2)
            found |= {
                f"{theirs}.self_attn.q_proj.{kind}": query[turned],
                f"{theirs}.self_attn.k_proj.{kind}": key[turned],
                f"{theirs}.self_attn.v_proj.{kind}": value,
                f"{theirs}.self_attn.o_proj.{kind}": weights[
                    f"{ours}.self_attention.out_projection.{kind}"
                ],
                f"{theirs}.mlp.gate_proj.{kind}": gate,
                f"{theirs}.mlp.up_proj.{kind}": up,
                f"{theirs}.mlp.down_proj.{kind}": weights[f"{ours}.feed_forward.contract.{kind}"],
            }
        found[f"{theirs}.input_layernorm.weight"] = weights[
            f"{ours}.self_attention_residual.norm.weight"
        ]
        found[f"{theirs}.post_attention_layernorm.weight"] = weights[
            f"{ours}.feed_forward_residual.norm.weight"
        ]
    _fill(made, found)
    return made


def _fill(made: Any, found: dict[str, Tensor]) -> None:
    own = made.state_dict()
    tied = ("embed_tokens.weight", "lm_head.weight")
    missing = [
        name
        for name in own
        if name not in found and not name.endswith(tied) and "embed_positions" not in name
    ]
    assert not missing, missing
    assert not set(found) - set(own), set(found) - set(own)
    made.load_state_dict({k: v.contiguous() for k, v in found.items()}, strict=False)
    if "model.shared.weight" in found:
        made.tie_weights()


def log_probabilities(twin: Any, source: list[int], target: list[int]) -> Tensor:
    """Of each token of the target and of END, by a model there."""
    with torch.no_grad():
        logits = twin(
            input_ids=torch.tensor([[*source, END]]),
            decoder_input_ids=torch.tensor([[BEGIN, *target]]),
        ).logits[0]
    ids = torch.tensor([*target, END])
    return torch.log_softmax(logits.float(), -1).gather(1, ids[:, None])[:, 0]
