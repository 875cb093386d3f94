"""Embeddings for a page: the nearest neighbours of the tokens at hand, a map, and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from transduce.data.tokens.tokenizer import SPECIALS, Tokens
from transduce.decoding.run_lens import LensEntry
from transduce.inspection.look.positions import positions_of
from transduce.inspection.page import visible
from transduce.tasks import LanguageModel
from transduce.tasks.model import Model

NEAREST = 6
ON_THE_MAP = 300  # tokens
FEWEST_POSITIONS = 32

Floats = NDArray[np.float64]


def embeddings_of(model: Model, entry: LensEntry) -> list[dict[str, Any]]:
    """Of the source's and the target's embedding, as far as the model has them."""
    found = []
    for title, name, side, ids, tokens in _sides(model, entry):
        module = dict(model.network.named_modules()).get(name)
        table = getattr(module, "table", None)
        used = list(dict.fromkeys(ids))
        one: dict[str, Any] = {"title": title, "neighbours": [], "map": None, "positions": None}
        if isinstance(table, nn.Embedding) and used:
            vectors_VD = table.weight.detach().double().cpu().numpy()
            used = [number for number in used if len(SPECIALS) <= number < len(vectors_VD)]
            near = {number: nearest(vectors_VD, number) for number in used}
            one["neighbours"] = [
                [
                    _name(tokens, number),
                    [[_name(tokens, other), round(cosine, 3)] for other, cosine in those],
                ]
                for number, those in near.items()
            ]
            shown = _shown(used, near, len(vectors_VD))
            one["map"] = {
                "names": [_name(tokens, number) for number in shown],
                "places": plane_of(vectors_VD, shown).round(3).tolist(),
                "used": [number in near for number in shown],
            }
        count = max(len(ids) + 1, FEWEST_POSITIONS)
        one["positions"] = positions_of(model, name, side, count)
        if one["map"] or one["positions"]:
            found.append(one)
    return found


def _sides(model: Model, entry: LensEntry) -> list[tuple[str, str, str, list[int], Tokens]]:
    """The title of each side, its embedding, its stack of layers, its ids and tokens."""
    source, target = list(entry.named.source_ids), list(entry.output.ids)
    if isinstance(model, LanguageModel):
        ids = [*source, *target]
        return [("Tokens", "decoder.embedding", "decoder", ids, model.target_tokens)]
    return [
        ("Source", "front", "encoder", source, model.source_tokens),
        ("Target", "decoder.embedding", "decoder", target, model.target_tokens),
    ]


def nearest(vectors_VD: Floats, number: int) -> list[tuple[int, float]]:
    """The tokens whose vectors have the smallest angle to that of one, with their cosines."""
    sizes_V = np.linalg.norm(vectors_VD, axis=1).clip(1e-12)
    cosines_V = vectors_VD @ vectors_VD[number] / (sizes_V * sizes_V[number])
    cosines_V[[number, *range(min(len(SPECIALS), len(cosines_V)))]] = -np.inf
    order = np.argsort(-cosines_V, kind="stable")[:NEAREST]
    return [(int(one), float(cosines_V[one])) for one in order if np.isfinite(cosines_V[one])]


def plane_of(vectors_VD: Floats, shown: Sequence[int]) -> Floats:
    """Where tokens lie on the two axes along which the vocabulary varies most (PCA): [shown, 2].

    Each axis is stretched to −1 … 1.
    """
    centred_VD = vectors_VD - vectors_VD.mean(axis=0)
    _, axes_DD = np.linalg.eigh(centred_VD.T @ centred_VD)
    places_N2 = centred_VD[list(shown)] @ axes_DD[:, [-1, -2]]
    middle_2 = (places_N2.max(axis=0) + places_N2.min(axis=0)) / 2
    half_2 = (places_N2.max(axis=0) - places_N2.min(axis=0)) / 2
    return np.asarray((places_N2 - middle_2) / half_2.clip(1e-12))


def _shown(used: list[int], near: dict[int, list[tuple[int, float]]], size: int) -> list[int]:
    """What is on the map: the tokens at hand, their neighbours, then the vocabulary's first."""
    others = [other for those in near.values() for other, _ in those]
    order = dict.fromkeys([*used, *others, *range(len(SPECIALS), size)])
    return list(order)[: max(ON_THE_MAP, len(used))]


def _name(tokens: Tokens, number: int) -> str:
    (piece,) = tokens.pieces([number])
    return visible(piece)
