"""Encoder-decoders of transformers and ours: which classes compute the same, and their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from transduce import recipe
from transduce.errors import ModelError
from transduce.interop.positions import ELSEWHERE

# ----------------------------------------------------------------------------------------------
# The encoder-decoder classes of transformers that compute what our Transformers compute.
#
# They differ in where norms are, in positions, and in names of the configuration; their blocks
# are the same. https://huggingface.co/docs/transformers


@dataclass(frozen=True)
class Family:
    """One class: its name there, and the options of our recipe that it is equal to."""

    type: str
    """`model_type` in config.json."""
    architecture: str
    norm_position: Literal["pre", "post"]
    norm_embeddings: bool
    positions: Literal["sinusoidal", "learned", "fairseq"]
    """fairseq: waves of its own frequencies, which we have as a table of learned positions."""
    offset: int = 0
    """Rows of the table of positions before the first position."""

    @property
    def halves(self) -> bool:
        """Whether sines fill the first half of the features and cosines the second; ours
        alternate, so all features change places."""
        return self.positions == "sinusoidal"


FAMILIES = {
    family.type: family
    for family in (
        Family("marian", "MarianMTModel", "post", False, "sinusoidal"),
        Family("pegasus", "PegasusForConditionalGeneration", "pre", False, "sinusoidal"),
        Family("blenderbot", "BlenderbotForConditionalGeneration", "pre", False, "learned"),
        Family("bart", "BartForConditionalGeneration", "post", True, "learned", 2),
        Family("mbart", "MBartForConditionalGeneration", "pre", True, "learned", 2),
        Family("m2m_100", "M2M100ForConditionalGeneration", "pre", False, "fairseq", 2),
    )
}
# What transformers calls our activations.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
SAME_ON_BOTH_SIDES = (
    "norm_position",
    "positions",
    "norm_embeddings",
    "scale_embeddings",
    "activation",
)


def choose_family(settings: recipe.Model) -> Family:
    """The class that is exactly equal to an encoder-decoder. Raises ModelError, with the reason,
    where there is none."""
    parts = {}
    if settings.copies:
        raise _none("it copies from the source (model.decoder.copying)")
    for name, part in settings.parts.items():
        if not isinstance(part, recipe.TransformerEncoder | recipe.TransformerDecoder):
            raise _none(f"its {name} is {part.kind}, and only Transformers have an equal there")
        reasons = {
            "heads of its {} were pruned, and all layers there have as many heads": part.is_pruned,
            "its {} has tag_positions: zero, and all classes there count them": getattr(
                part, "tag_positions", "counted"
            )
            == "zero",
            "its {} has norm: rms, and encoder-decoders there have LayerNorm": part.norm == "rms",
            "its {} concatenates positions, and all classes there add them": part.combine != "add",
            "its {} has positions: " + part.positions: part.positions
            not in ("sinusoidal", "learned"),
            "its {} has activation: " + part.activation: part.activation not in ACTIVATIONS,
            "its {} has heads of an own width (head_width)": part.head_width
            not in (None, settings.width // part.heads),
            "its {} has another norm_epsilon than there": part.norm_epsilon not in (None, 1e-5),
        }
        for reason, holds in reasons.items():
            if holds:
                raise _none(reason.format(name))
        parts[name] = part
    encoder, decoder = parts["encoder"], parts["decoder"]
    for key in SAME_ON_BOTH_SIDES:
        if (one := getattr(encoder, key)) != (other := getattr(decoder, key)):
            raise _none(f"{key} is {one} in its encoder, but {other} in its decoder")
    if not settings.source_end:
        raise _none("its sources have no end token (source_end: false)")
    if settings.tie_embeddings == "none":
        raise _none(
            "it has tie_embeddings: none, and classes there share embeddings with the output layer"
        )
    for family in FAMILIES.values():
        if (
            family.norm_position == decoder.norm_position
            and family.norm_embeddings == decoder.norm_embeddings
            and family.positions == decoder.positions
        ):
            return family
    normed = "with" if decoder.norm_embeddings else "without"
    raise _none(
        f"{decoder.norm_position}-norm with {decoder.positions} positions and {normed} a norm of "
        f"the embeddings is no class there"
    )


def _none(reason: str) -> ModelError:
    return ModelError(
        f"no class of Hugging Face's transformers is equal to this model: {reason}; {ELSEWHERE}"
    )


# ----------------------------------------------------------------------------------------------
# Our parameters and the tensors of transformers' encoder-decoders: names, order, permutation.
#
# One table serves both ways. Where positions of a class put all sines before all cosines, and
# ours alternate, the features of the residual stream change places: columns of what reads it,
# rows of what writes to it, both of norms.

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
