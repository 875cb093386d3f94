"""Whisper's weights under our names, and back.

Keys have no bias there; here it is zero. It adds the same to the scores of all positions, which
softmax does not see, so an export can leave out also one that was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from transduce.whisper.shape import Shape

Weights = dict[str, Tensor]
Get = Callable[..., Tensor]
"""A tensor by its name; Raises ModelError where it is missing or of another shape."""

# The bias of tokens that Whisper does not have. Their probability is 0 in float32; a lower bias
# would weigh in label smoothing.
BANNED_BIAS = -100.0

# Ours, Hugging Face's and CTranslate2's names of what a layer has.
ATTENTIONS = {
    "self_attention": ("self_attn", "self_attention"),
    "cross_attention": ("encoder_attn", "attention"),
}
FEED_FORWARD = {"expand": ("fc1", "linear_0"), "contract": ("fc2", "linear_1")}


def layers_of(shape: Shape) -> Iterator[tuple[str, int, Sequence[str], int]]:
    """Each layer: side, number, its attentions, and the width of its feed-forward layer."""
    for number in range(shape.encoder_layers):
        yield "encoder", number, ("self_attention",), shape.encoder_feed_forward
    for number in range(shape.decoder_layers):
        yield "decoder", number, tuple(ATTENTIONS), shape.decoder_feed_forward


def from_huggingface(get: Get, shape: Shape, order: Sequence[int]) -> Weights:
    """Our weights of Hugging Face's. get(name, *shape)."""
    D = shape.width
    found = _ends(get, shape, order, "model.{}.embed_positions.weight", "model.{}.layer_norm.")
    for number, bands in ((1, shape.mel_bands), (2, D)):
        ours = f"front.subsampling.{('first', 'second')[number - 1]}"
        found[f"{ours}.weight"] = get(f"model.encoder.conv{number}.weight", D, bands, 3)
        found[f"{ours}.bias"] = get(f"model.encoder.conv{number}.bias", D)
    found |= _vocabulary(
        get("model.decoder.embed_tokens.weight", shape.vocabulary, D),
        None if shape.tied else get("proj_out.weight", shape.vocabulary, D),
        order,
    )
    for side, number, attentions, hidden in layers_of(shape):
        block, theirs = f"{side}.blocks.{number}", f"model.{side}.layers.{number}"
        for attention in attentions:
            name = ATTENTIONS[attention][0]
            parts = [get(f"{theirs}.{name}.{one}_proj.weight", D, D) for one in "qkv"]
            query, value = (get(f"{theirs}.{name}.{one}_proj.bias", D) for one in "qv")
            into, out_of = (
                f"{block}.{attention}.in_projection",
                f"{block}.{attention}.out_projection",
            )
            found[f"{into}.weight"] = torch.cat(parts)
            found[f"{into}.bias"] = torch.cat((query, torch.zeros_like(query), value))
            found[f"{out_of}.weight"] = get(f"{theirs}.{name}.out_proj.weight", D, D)
            found[f"{out_of}.bias"] = get(f"{theirs}.{name}.out_proj.bias", D)
            for end in ("weight", "bias"):
                norm = get(f"{theirs}.{name}_layer_norm.{end}", D)
                found[f"{block}.{attention}_residual.norm.{end}"] = norm
        for ours, rows, columns in (("expand", hidden, D), ("contract", D, hidden)):
            name = FEED_FORWARD[ours][0]
            weight = get(f"{theirs}.{name}.weight", rows, columns)
            found[f"{block}.feed_forward.{ours}.weight"] = weight
            found[f"{block}.feed_forward.{ours}.bias"] = get(f"{theirs}.{name}.bias", rows)
        for end in ("weight", "bias"):
            norm = get(f"{theirs}.final_layer_norm.{end}", D)
            found[f"{block}.feed_forward_residual.norm.{end}"] = norm
    return found


def to_huggingface(weights: Weights, shape: Shape, order: Sequence[int]) -> Weights:
    """Hugging Face's weights of ours: the inverse of `from_huggingface`."""
    found: Weights = {}
    for number, ours in ((1, "first"), (2, "second")):
        for end in ("weight", "bias"):
            found[f"model.encoder.conv{number}.{end}"] = weights[f"front.subsampling.{ours}.{end}"]
    found["model.encoder.embed_positions.weight"] = weights[ENCODER_POSITIONS]
    found["model.decoder.embed_positions.weight"] = weights[DECODER_POSITIONS]
    for side in ("encoder", "decoder"):
        for end in ("weight", "bias"):
            found[f"model.{side}.layer_norm.{end}"] = weights[f"{side}.norm.{end}"]
    found["model.decoder.embed_tokens.weight"] = in_their_order(weights[TABLE], order)
    if not shape.tied:
        found["proj_out.weight"] = in_their_order(weights["head.weight"], order)
    for side, number, attentions, _ in layers_of(shape):
        block, theirs = f"{side}.blocks.{number}", f"model.{side}.layers.{number}"
        for attention in attentions:
            name = ATTENTIONS[attention][0]
            into, out_of = (
                f"{block}.{attention}.in_projection",
                f"{block}.{attention}.out_projection",
            )
            for one, weight, bias in zip(
                "qkv",
                weights[f"{into}.weight"].chunk(3),
                weights[f"{into}.bias"].chunk(3),
                strict=True,
            ):
                found[f"{theirs}.{name}.{one}_proj.weight"] = weight
                if one != "k":
                    found[f"{theirs}.{name}.{one}_proj.bias"] = bias
            for end in ("weight", "bias"):
                found[f"{theirs}.{name}.out_proj.{end}"] = weights[f"{out_of}.{end}"]
                norm = weights[f"{block}.{attention}_residual.norm.{end}"]
                found[f"{theirs}.{name}_layer_norm.{end}"] = norm
        for end in ("weight", "bias"):
            for ours, (name, _) in FEED_FORWARD.items():
                found[f"{theirs}.{name}.{end}"] = weights[f"{block}.feed_forward.{ours}.{end}"]
            norm = weights[f"{block}.feed_forward_residual.norm.{end}"]
            found[f"{theirs}.final_layer_norm.{end}"] = norm
    return {name: tensor.contiguous().clone() for name, tensor in found.items()}


def from_ctranslate2(get: Get, shape: Shape, order: Sequence[int]) -> Weights:
    """Our weights of CTranslate2's."""
    D = shape.width
    found = _ends(get, shape, order, "{}/position_encodings/encodings", "{}/layer_norm/")
    for number, bands in ((1, shape.mel_bands), (2, D)):
        ours = f"front.subsampling.{('first', 'second')[number - 1]}"
        found[f"{ours}.weight"] = get(f"encoder/conv{number}/weight", D, bands, 3)
        found[f"{ours}.bias"] = get(f"encoder/conv{number}/bias", D)
    found |= _vocabulary(
        get("decoder/embeddings/weight", shape.vocabulary, D),
        None if shape.tied else get("decoder/projection/weight", shape.vocabulary, D),
        order,
    )
    for product, pieces, columns in _products(shape):
        for end, size in (("weight", (columns,)), ("bias", ())):
            parts = [get(f"{name}/{end}", count, *size) for name, count in pieces]
            found[f"{product}.{end}"] = torch.cat(parts)
    for norm, name in _norms(shape):
        found[f"{norm}.weight"] = get(f"{name}/gamma", D)
        found[f"{norm}.bias"] = get(f"{name}/beta", D)
    return found


def to_ctranslate2(weights: Weights, shape: Shape, order: Sequence[int]) -> Weights:
    """CTranslate2's variables of our weights: the inverse of `from_ctranslate2`."""
    found: Weights = {
        "encoder/position_encodings/encodings": weights[ENCODER_POSITIONS],
        "decoder/position_encodings/encodings": weights[DECODER_POSITIONS],
        "decoder/embeddings/weight": in_their_order(weights[TABLE], order),
    }
    if not shape.tied:
        found["decoder/projection/weight"] = in_their_order(weights["head.weight"], order)
    for number, ours in ((1, "first"), (2, "second")):
        for end in ("weight", "bias"):
            found[f"encoder/conv{number}/{end}"] = weights[f"front.subsampling.{ours}.{end}"]
    for side in ("encoder", "decoder"):
        found[f"{side}/layer_norm/gamma"] = weights[f"{side}.norm.weight"]
        found[f"{side}/layer_norm/beta"] = weights[f"{side}.norm.bias"]
    for product, parts, _ in _products(shape):
        for end in ("weight", "bias"):
            sizes = [count for _, count in parts]
            split = torch.split(weights[f"{product}.{end}"], sizes)
            for (name, _), part in zip(parts, split, strict=True):
                found[f"{name}/{end}"] = part
    for norm, name in _norms(shape):
        found[f"{name}/gamma"] = weights[f"{norm}.weight"]
        found[f"{name}/beta"] = weights[f"{norm}.bias"]
    return found


ENCODER_POSITIONS = "front.positions.positions.table_TD"
DECODER_POSITIONS = "decoder.embedding.positions.positions.table_TD"
TABLE = "decoder.embedding.table.weight"


def _ends(get: Get, shape: Shape, order: Sequence[int], positions: str, norm: str) -> Weights:
    D = shape.width
    found = {
        ENCODER_POSITIONS: get(positions.format("encoder"), shape.encoder_positions, D),
        DECODER_POSITIONS: get(positions.format("decoder"), shape.decoder_positions, D),
    }
    slashes = norm.endswith("/")
    for side in ("encoder", "decoder"):
        for end, theirs in (("weight", "gamma"), ("bias", "beta")):
            name = norm.format(side) + (theirs if slashes else end)
            found[f"{side}.norm.{end}"] = get(name, D)
    return found


def _vocabulary(table_VD: Tensor, head_VD: Tensor | None, order: Sequence[int]) -> Weights:
    """The rows in our order, after those of PAD and UNKNOWN, which are never chosen."""
    bias_V = table_VD.new_zeros(len(order) + 2)
    bias_V[:2] = BANNED_BIAS
    rows = torch.tensor(order)
    none_2D = table_VD.new_zeros(2, table_VD.shape[1])
    found = {TABLE: torch.cat((none_2D, table_VD[rows])), "head.bias": bias_V}
    if head_VD is not None:
        found["head.weight"] = torch.cat((none_2D, head_VD[rows]))
    return found


def in_their_order(ours_VD: Tensor, order: Sequence[int]) -> Tensor:
    """The rows of Whisper's tokens in Whisper's order."""
    theirs_VD = torch.empty_like(ours_VD[2:])
    theirs_VD[torch.tensor(order)] = ours_VD[2:]
    return theirs_VD


def _products(shape: Shape) -> Iterator[tuple[str, list[tuple[str, int]], int]]:
    """Each linear layer: our name, CTranslate2's names with their rows, columns."""
    D = shape.width
    for side, number, attentions, hidden in layers_of(shape):
        block, layer = f"{side}.blocks.{number}", f"{side}/layer_{number}"
        for attention in attentions:
            into, theirs = f"{block}.{attention}", f"{layer}/{ATTENTIONS[attention][1]}"
            parts = [(f"{theirs}/linear_0", 3 * D)]
            if attention == "cross_attention":  # queries come from elsewhere than keys and values
                parts = [(f"{theirs}/linear_0", D), (f"{theirs}/linear_1", 2 * D)]
            yield f"{into}.in_projection", parts, D
            yield f"{into}.out_projection", [(f"{theirs}/linear_{len(parts)}", D)], D
        for ours, rows, columns in (("expand", hidden, D), ("contract", D, hidden)):
            name = f"{layer}/ffn/{FEED_FORWARD[ours][1]}"
            yield f"{block}.feed_forward.{ours}", [(name, rows)], columns


def _norms(shape: Shape) -> Iterator[tuple[str, str]]:
    for side, number, attentions, _ in layers_of(shape):
        block, layer = f"{side}.blocks.{number}", f"{side}/layer_{number}"
        for attention in attentions:
            yield (
                f"{block}.{attention}_residual.norm",
                f"{layer}/{ATTENTIONS[attention][1]}/layer_norm",
            )
        yield f"{block}.feed_forward_residual.norm", f"{layer}/ffn/layer_norm"
