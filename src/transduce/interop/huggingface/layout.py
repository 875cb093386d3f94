"""Our parameters and the tensors of transformers' encoder-decoders: names, order, permutation.

One table serves both ways. Where positions of a class put all sines before all cosines, and ours
alternate, the features of the residual stream change places: columns of what reads it, rows of what
writes to it, both of norms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from transduce.errors import ModelError
from transduce.interop.huggingface.classes import Family

SHARED = "model.shared.weight"
BIAS = "final_logits_bias"
HEAD = "lm_head.weight"
SIDES = ("encoder", "decoder")
SUBLAYERS = {
    "self_attention": ("self_attn", "self_attn_layer_norm"),
    "cross_attention": ("encoder_attn", "encoder_attn_layer_norm"),
}


class Entry(NamedTuple):
    """One parameter of ours, and the tensors there that it is made of, one below the other."""

    ours: str
    theirs: tuple[str, ...]
    stream: int | None = None
    """The dimension that goes along the residual stream."""


def entries(family: Family, layers: Mapping[str, int]) -> Iterator[Entry]:
    """All parameters but embeddings, learned positions and the output layer's bias."""
    for side in SIDES:
        kinds = SUBLAYERS if side == "decoder" else ["self_attention"]
        for number in range(layers[side]):
            ours, theirs = f"{side}.blocks.{number}", f"model.{side}.layers.{number}"
            for kind in kinds:
                attention, norm = SUBLAYERS[kind]
                yield from _attention(f"{ours}.{kind}", f"{theirs}.{attention}")
                yield from _norm(f"{ours}.{kind}_residual.norm", f"{theirs}.{norm}")
            yield Entry(f"{ours}.feed_forward.expand.weight", (f"{theirs}.fc1.weight",), 1)
            yield Entry(f"{ours}.feed_forward.expand.bias", (f"{theirs}.fc1.bias",))
            yield Entry(f"{ours}.feed_forward.contract.weight", (f"{theirs}.fc2.weight",), 0)
            yield Entry(f"{ours}.feed_forward.contract.bias", (f"{theirs}.fc2.bias",), 0)
            yield from _norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.final_layer_norm")
        if family.norm_position == "pre":
            yield from _norm(f"{side}.norm", f"model.{side}.layer_norm")
        if family.norm_embeddings:
            ours = "front.norm" if side == "encoder" else "decoder.embedding.norm"
            yield from _norm(ours, f"model.{side}.layernorm_embedding")


def _attention(ours: str, theirs: str) -> Iterator[Entry]:
    inner = tuple(f"{theirs}.{one}_proj" for one in "qkv")
    yield Entry(f"{ours}.in_projection.weight", tuple(f"{one}.weight" for one in inner), 1)
    yield Entry(f"{ours}.in_projection.bias", tuple(f"{one}.bias" for one in inner))
    yield Entry(f"{ours}.out_projection.weight", (f"{theirs}.out_proj.weight",), 0)
    yield Entry(f"{ours}.out_projection.bias", (f"{theirs}.out_proj.bias",), 0)


def _norm(ours: str, theirs: str) -> Iterator[Entry]:
    for part in ("weight", "bias"):
        yield Entry(f"{ours}.{part}", (f"{theirs}.{part}",), 0)


def positions_of(side: str) -> tuple[str, str]:
    """The table of learned positions of a side: its name of ours, and there."""
    embedding = "front" if side == "encoder" else "decoder.embedding"
    return f"{embedding}.positions.positions.table_TD", f"model.{side}.embed_positions.weight"


def to_halves(tensor: Tensor, dimension: int | None, family: Family) -> Tensor:
    """A tensor of ours with the features in the order of the class."""
    if dimension is None or not family.halves:
        return tensor
    return tensor.index_select(dimension, _halves(tensor.shape[dimension]))


def from_halves(tensor: Tensor, dimension: int | None, family: Family) -> Tensor:
    """The inverse of `to_halves`."""
    if dimension is None or not family.halves:
        return tensor
    return tensor.index_select(dimension, _halves(tensor.shape[dimension]).argsort())


def _halves(width: int) -> Tensor:
    return torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])


def to_theirs(
    weights: Mapping[str, Tensor], family: Family, layers: Mapping[str, int]
) -> dict[str, Tensor]:
    """The tensors there of our parameters, but for what `entries` leaves out."""
    found = {}
    for ours, theirs, stream in entries(family, layers):
        tensor = to_halves(weights[ours].detach().cpu(), stream, family)
        for name, part in zip(theirs, tensor.chunk(len(theirs)), strict=True):
            found[name] = part.contiguous()
    return found


def to_ours(
    weights: Mapping[str, Tensor], family: Family, layers: Mapping[str, int]
) -> dict[str, Tensor]:
    """Our parameters of the tensors there, in float32, but for what `entries` leaves out."""
    found = {}
    for ours, theirs, stream in entries(family, layers):
        for name in theirs:
            if name not in weights:
                raise ModelError(f"the weights have no {name}; download the folder again")
        whole = torch.cat([weights[name].float() for name in theirs])
        found[ours] = from_halves(whole, stream, family)
    return found
