"""Positional encodings for a page: tables that are added, rotary angles, relative scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transduce.inspection.look.arrays import packed_signed
from transduce.models.lens import attentions, short_name
from transduce.nn.attention.bucketed import BucketedBias
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.attention.relative import RelativeAttention
from transduce.nn.positions import Positioned, Rotary
from transduce.nn.recurrent.stack import Recurrent
from transduce.tasks.model import Model, inference

Shown = dict[str, Any]


def positions_of(model: Model, embedding: str, side: str, count: int) -> Shown | None:
    """What one side of a model knows of positions: {"kind", "title", "note", "rows", "columns",
    "values"}; None where the model has no such side.

    embedding: the name of the part whose vectors may have positions. side: encoder or decoder.
    Without positions, the note says why, and "values" is None.
    """
    modules = dict(model.network.named_modules())
    if side not in modules:
        return None
    with inference(model):
        positioned = getattr(modules.get(embedding), "positions", None)
        if isinstance(positioned, Positioned):
            return _table(positioned, count)
        own = {
            name: part
            for name, part in attentions(model.network).items()
            if name.startswith(f"{side}.") and isinstance(part, MultiHeadAttention)
        }
        rotary = next((part.rotary for part in own.values() if part.rotary is not None), None)
        if rotary is not None:
            return _rotary(rotary, count)
        relative = {n: part for n, part in own.items() if isinstance(part, RelativeAttention)}
        if relative:
            return _relative(relative, count)
        bias = next((part.relative for part in own.values() if part.relative is not None), None)
        if bias is not None:
            return _biased(bias, count)
    recurrent = any(isinstance(part, Recurrent) for part in modules[side].modules())
    note = (
        "A recurrent network reads one position after the other: it has no positional encoding."
        if recurrent
        else "There is no positional encoding."
    )
    return {"kind": "none", "title": "Positions", "note": note, "values": None}


def _table(positioned: Positioned, count: int) -> Shown:
    """The vectors [positions, width] that are added to embeddings, or put beside them."""
    maximum = getattr(positioned.positions, "max_length", count)
    vectors_TD = positioned.positions(min(count, maximum))
    kind = type(positioned.positions).__name__
    joined = "added to" if positioned.combine == "add" else "concatenated with"
    title = f"{kind} positions (rows), {joined} the embedding (columns)"
    return _shown(kind.lower(), title, "", _numbers(vectors_TD))


def _rotary(rotary: Rotary, count: int) -> Shown:
    """Of each distance, the cosine of the angle between a query's and a key's pair of features."""
    cosines_TK = rotary(count)[:, 0::2]
    return _shown(
        "rotary",
        "Rotary positions: the cosine of the turn of each pair of features (columns) by distance "
        "(rows)",
        "Queries and keys are turned by an angle for each position, so that their product depends "
        "on their distance. At 1 a pair is as at distance 0; at −1 it counts the other way.",
        _numbers(cosines_TK),
    )


def _biased(bias: BucketedBias, count: int) -> Shown:
    """What is added to the scores of each head, by the distance of a key from its query."""
    whole_HTS = bias(count, count)
    values_HR, last = whole_HTS[:, -1], 0  # of the last query: all keys are before it
    if bias.both_directions:  # and of the first one: all are after it
        values_HR, last = torch.cat([values_HR, whole_HTS[:, 0, 1:]], dim=1), count - 1
    return _shown(
        "relative",
        "Relative positions: what the distance of a key (columns; − is before) adds to the score "
        "of each head (rows)",
        "It is learned for buckets of distances, and all layers share it.",
        _numbers(values_HR),
        [f"head {head}" for head in range(bias.heads)],
        [f"{distance:+d}" for distance in range(1 - count, last + 1)],
    )


def _relative(parts: dict[str, RelativeAttention], count: int) -> Shown:
    """The score vᵀ W^R r_d / √K of each distance d, by itself, for each head of each layer."""
    rows: list[str] = []
    scores = []
    for name, part in parts.items():
        distances_RD = part.distances(count).to(part.distance_projection.weight.dtype)
        distances_RHK = part.distance_projection(distances_RD).unflatten(1, (part.heads, -1))
        scores_HR = torch.einsum("hk,rhk->hr", part.distance_bias_HK, distances_RHK)
        scores.append(_numbers(scores_HR / math.sqrt(part.head_width)))
        rows += [f"{short_name(name)}, head {head}" for head in range(part.heads)]
    # Distances fall from count − 1 (the key is far before) to −(count − 1) (far after).
    columns = [f"{-distance:+d}" for distance in range(count - 1, -count, -1)]
    return _shown(
        "relative",
        "Relative positions: what the distance of a key (columns; − is before) adds to the score "
        "of each head (rows)",
        "This is the part of the score that depends on neither query nor key.",
        np.concatenate(scores),
        rows,
        columns,
    )


def _numbers(values: torch.Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = values.double().cpu().numpy()
    return found


def _shown(
    kind: str,
    title: str,
    note: str,
    values: NDArray[np.float64],
    rows: list[str] | None = None,
    columns: list[str] | None = None,
) -> Shown:
    return {
        "kind": kind,
        "title": title,
        "note": note,
        "rows": rows or [str(place) for place in range(values.shape[0])],
        "columns": columns or [str(place) for place in range(values.shape[1])],
        "values": packed_signed(values),
    }
