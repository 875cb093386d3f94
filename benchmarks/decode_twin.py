"""Our Transformer as one of Hugging Face's, weight by weight.

Marian norms after each sublayer, as the paper does; M2M100 before it, and once more at the end.
Both have sinusoids that are added and layers that are otherwise the same.
"""

from __future__ import annotations

from typing import Any

PAD, BEGIN, END = 0, 2, 3  # as in transduce.data.tokens
LONGEST = 1024  # positions that there are


def twin_of(ours: Any, transformers: Any) -> Any:
    """Raises ValueError with the reason where there is none."""
    import torch

    _check(ours.recipe.model)
    before = ours.recipe.model.encoder.norm_position == "pre"
    made = (_m2m100 if before else _marian)(ours, transformers)
    weights = made.state_dict()
    network, filled = ours.network, set()

    def put(name: str, value: torch.Tensor) -> None:
        weights[name].copy_(value.detach())
        filled.add(name)

    def put_pair(name: str, part: Any) -> None:
        put(f"{name}.weight", part.weight)
        put(f"{name}.bias", part.bias)

    def put_attention(name: str, part: Any) -> None:
        thirds = zip(
            ("q_proj", "k_proj", "v_proj"),
            part.in_projection.weight.chunk(3),
            part.in_projection.bias.chunk(3),
            strict=True,
        )
        for projection, weight, bias in thirds:
            put(f"{name}.{projection}.weight", weight)
            put(f"{name}.{projection}.bias", bias)
        put_pair(f"{name}.out_proj", part.out_projection)

    with torch.no_grad():
        for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens"):
            put(f"model.{name}.weight", network.front.table.weight)
        put("lm_head.weight", network.head.weight)
        put("lm_head.bias" if before else "final_logits_bias", network.head.bias)
        positions_TD = network.front.positions.positions(LONGEST)
        for side, stack in (("encoder", network.encoder), ("decoder", network.decoder)):
            if before:  # no parameter there; the first row is the padding's
                table = getattr(made.model, side).embed_positions
                table.weights = torch.cat([torch.zeros_like(positions_TD[:1]), positions_TD])
                put_pair(f"model.{side}.layer_norm", stack.norm)
            else:
                put(f"model.{side}.embed_positions.weight", positions_TD)
            for number, block in enumerate(stack.blocks):
                layer = f"model.{side}.layers.{number}"
                put_attention(f"{layer}.self_attn", block.self_attention)
                put_pair(f"{layer}.self_attn_layer_norm", block.self_attention_residual.norm)
                if side == "decoder":
                    put_attention(f"{layer}.encoder_attn", block.cross_attention)
                    residual = block.cross_attention_residual
                    put_pair(f"{layer}.encoder_attn_layer_norm", residual.norm)
                put_pair(f"{layer}.fc1", block.feed_forward.expand)
                put_pair(f"{layer}.fc2", block.feed_forward.contract)
                put_pair(f"{layer}.final_layer_norm", block.feed_forward_residual.norm)
    left = set(weights) - filled
    if left:
        raise ValueError(f"it has weights that ours has not: {', '.join(sorted(left))}")
    return made


def _check(recipe: Any) -> None:
    sides = {"encoder": recipe.encoder, "decoder": recipe.decoder}
    wanted = {
        "kind": "transformer",
        "norm_position": recipe.encoder.norm_position,
        "norm": "layer",
        "positions": "sinusoidal",
        "combine": "add",
    }
    for name, part in sides.items():
        for key, value in wanted.items():
            if getattr(part, key, None) != value:
                raise ValueError(f"its models need {name}.{key}: {value}")
        if part.activation == "swiglu":
            raise ValueError("its models have no gated feed-forward layers")
    if recipe.tie_embeddings != "all":
        raise ValueError("its tables are written here for tie_embeddings: all alone")


def _marian(ours: Any, transformers: Any) -> Any:
    config = transformers.MarianConfig(share_encoder_decoder_embeddings=True, **_shape(ours))
    return transformers.MarianMTModel(config)


def _m2m100(ours: Any, transformers: Any) -> Any:
    """Its output layer has no bias: ours is given one."""
    import torch

    made = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**_shape(ours)))
    made.lm_head.bias = torch.nn.Parameter(torch.zeros(made.lm_head.out_features))
    return made


def _shape(ours: Any) -> dict[str, Any]:
    recipe = ours.recipe.model
    shape: dict[str, Any] = {}
    for name, part in {"encoder": recipe.encoder, "decoder": recipe.decoder}.items():
        shape[f"{name}_layers"] = part.layers
        shape[f"{name}_attention_heads"] = part.heads
        shape[f"{name}_ffn_dim"] = part.feed_forward
    return shape | {
        "vocab_size": len(ours.target_tokens),
        "d_model": recipe.width,
        "max_position_embeddings": LONGEST,
        "activation_function": recipe.encoder.activation,
        "scale_embedding": True,
        "tie_word_embeddings": True,
        "use_cache": True,
        "pad_token_id": PAD,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "forced_eos_token_id": None,
        "decoder_start_token_id": BEGIN,
        "attn_implementation": "sdpa",
    }
