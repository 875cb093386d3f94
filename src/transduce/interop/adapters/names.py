"""Matrices of our Transformers and of their equals in Hugging Face's transformers, for adapters.

Marian, Pegasus and Blenderbot are encoder-decoders; Llama and Granite language models. Where sines
fill the first half of the features there, and alternate with cosines in ours, all features of the
residual stream change places; of rotary positions, the features of each head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from transduce import recipe
from transduce.errors import ModelError
from transduce.tasks.model import Model

ATTENTION = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}


class Link(NamedTuple):
    """One matrix of ours, and the one there, or two whose rows follow each other."""

    place: str
    theirs: tuple[str, ...]
    columns: Tensor | None = None
    """Which of our columns is each column there; None: the same."""
    rows: Tensor | None = None


def links(model: Model) -> list[Link]:
    """All matrices that have an equal there. Raises ModelError where a class has none."""
    settings = model.recipe.model
    parts = {name: part for name, part in settings.parts.items() if part is not None}
    for name, part in parts.items():
        if not isinstance(part, recipe.TransformerEncoder | recipe.TransformerDecoder):
            raise _none(f"its {name} is {part.kind}")
        if part.is_pruned:
            raise _none(f"heads of its {name} were pruned")
    decoder = parts.get("decoder")
    if not isinstance(decoder, recipe.TransformerDecoder):
        raise _none("it has no decoder")
    if model.recipe.audio is not None:
        raise _none("its sources are audio")
    if model.recipe.task == "continue":
        return list(_language_model(settings.width, decoder))
    return list(_encoder_decoder(settings.width, parts))


def _encoder_decoder(
    width: int, parts: dict[str, recipe.Encoder | recipe.Decoder]
) -> Iterator[Link]:
    for side, part in parts.items():
        assert isinstance(part, recipe.TransformerEncoder | recipe.TransformerDecoder)
        reasons = {
            f"{side} has norm: {part.norm}": part.norm != "layer",
            f"{side} has positions: {part.positions}": part.positions
            not in ("sinusoidal", "learned"),
            f"{side} has combine: {part.combine}": part.combine != "add",
            f"{side} has activation: {part.activation}": part.activation == "swiglu",
        }
        for reason, holds in reasons.items():
            if holds:
                raise _none(reason)
        halves = _halves(width) if part.positions == "sinusoidal" else None
        kinds = list(ATTENTION)[: 1 if side == "encoder" else 2]
        for number in range(part.layers):
            ours, theirs = f"{side}.blocks.{number}", f"model.{side}.layers.{number}"
            for kind in kinds:
                above = f"{theirs}.{ATTENTION[kind]}"
                for one in "qkv":
                    yield Link(
                        f"{ours}.{kind}.in_projection.{one}", (f"{above}.{one}_proj",), halves
                    )
                yield Link(f"{ours}.{kind}.out_projection", (f"{above}.out_proj",), rows=halves)
            yield Link(f"{ours}.feed_forward.expand", (f"{theirs}.fc1",), halves)
            yield Link(f"{ours}.feed_forward.contract", (f"{theirs}.fc2",), rows=halves)


def _language_model(width: int, part: recipe.TransformerDecoder) -> Iterator[Link]:
    wanted = {"norm": "rms", "norm_position": "pre", "activation": "swiglu", "positions": "rotary"}
    for key, value in wanted.items():
        if (found := getattr(part, key)) != value:
            raise _none(f"it has {key}: {found}, and Llama and Granite have {value}")
    turned = _turned(width, part.heads)
    for number in range(part.layers):
        ours, theirs = f"decoder.blocks.{number}", f"model.layers.{number}"
        for one in "qkv":
            place = f"{ours}.self_attention.in_projection.{one}"
            yield Link(
                place, (f"{theirs}.self_attn.{one}_proj",), rows=turned if one != "v" else None
            )
        yield Link(f"{ours}.self_attention.out_projection", (f"{theirs}.self_attn.o_proj",))
        gates = (f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj")
        yield Link(f"{ours}.feed_forward.expand", gates)
        yield Link(f"{ours}.feed_forward.contract", (f"{theirs}.mlp.down_proj",))


def _halves(width: int) -> Tensor:
    return torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])


def _turned(width: int, heads: int) -> Tensor:
    """Pairs that are turned together are neighbours in ours, and the halves of a head there."""
    return torch.arange(width).view(heads, -1, 2).transpose(1, 2).flatten()


def _none(reason: str) -> ModelError:
    return ModelError(
        f"PEFT's files name the matrices of a class of Hugging Face's transformers, and none is "
        f"equal to this model: {reason}"
    )
