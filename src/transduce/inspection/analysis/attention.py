"""What attention weights say by themselves: rollout, entropy, coverage, diagonality, confidence.

Weights are arrays [..., queries, keys] whose rows sum to 1, as a lens gives them. That a weight is
large does not prove that a result depends on it (Jain and Wallace 2019,
https://arxiv.org/abs/1902.10186): for that, see attribution.py, or gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from transduce.decoding.run_lens import LensEntry
from transduce.decoding.speech import warnings as attention_warnings
from transduce.errors import ModelError

Floats = NDArray[np.float64]

KEPT = 0.5  # of each position's own share, by the residual connection around attention


def attention_rollout(layers: Sequence[ArrayLike], residual: float = KEPT) -> Floats:
    """How much of each input position is in each position above a stack of self-attention.

    layers: weights [heads, positions, positions], the lowest first. Abnar and Zuidema 2020,
    https://arxiv.org/abs/2005.00928: heads are averaged, the residual connection is the identity
    with weight `residual`, and layers are multiplied. Rows of the result sum to 1.
    """
    if not layers:
        raise ValueError("A rollout needs the attention of at least one layer.")
    rolled_TT = np.eye(np.asarray(layers[0]).shape[-1])
    for weights_HTT in layers:
        rolled_TT = _mixed(weights_HTT, residual) @ rolled_TT
    return rolled_TT


class Rollout(NamedTuple):
    """What each step of a decoder is made of; the rows of both together sum to 1."""

    source: Floats
    """[target, source]"""
    prefix: Floats
    """[target, target]: what the decoder has read."""


def encoder_decoder_rollout(
    encoder: Sequence[ArrayLike],
    decoder: Sequence[ArrayLike],
    cross: Sequence[ArrayLike],
    residual: float = KEPT,
) -> Rollout:
    """The same through an encoder-decoder: self-attention of its encoder (none if empty), then of
    each layer of the decoder self-attention and attention to the source."""
    if not cross or len(cross) != len(decoder):
        raise ValueError(
            f"A decoder has as many layers of self-attention as of attention to the source, not "
            f"{len(decoder)} and {len(cross)}."
        )
    first_HTS = np.asarray(cross[0], np.float64)
    T, S = first_HTS.shape[-2:]
    encoded_SS = attention_rollout(encoder, residual) if encoder else np.eye(S)
    source_TS, prefix_TT = np.zeros((T, S)), np.eye(T)
    for own_HTT, cross_HTS in zip(decoder, cross, strict=True):
        mixed_TT = _mixed(own_HTT, residual)
        looked_TS = np.asarray(cross_HTS, np.float64).mean(axis=0) @ encoded_SS
        source_TS = residual * (mixed_TT @ source_TS) + (1 - residual) * looked_TS
        prefix_TT = residual * (mixed_TT @ prefix_TT)
    return Rollout(source_TS, prefix_TT)


def rollout(entry: LensEntry, residual: float = KEPT) -> Rollout:
    """The rollout of what a lens around a Transformer has seen; `model.lens()` sees all it needs.

    Of a model without a decoder, `prefix` is empty; of a language model, `source`. Raises
    ModelError where attention of some layer is missing.
    """
    encoder = _of(entry.weights, "encoder.", "self_attention")
    own = _of(entry.weights, "decoder.", "self_attention")
    cross = _of(entry.weights, "decoder.", "cross_attention")
    if cross and len(own) == len(cross):
        return encoder_decoder_rollout(encoder, own, cross, residual)
    if not cross and len(encoder) > 0 and not own:
        source_SS = attention_rollout(encoder, residual)
        return Rollout(source_SS, np.zeros((len(source_SS), 0)))
    if not cross and len(own) > 0 and not encoder:
        prefix_TT = attention_rollout(own, residual)
        return Rollout(np.zeros((len(prefix_TT), 0)), prefix_TT)
    raise ModelError(
        "a rollout goes through the self-attention of every layer: look at a Transformer, with "
        "model.lens() and no patterns"
    )


def attention_entropy(weights: ArrayLike) -> Floats:
    """How spread attention is, in nats: [..., queries]; 0 where one key has all of it."""
    p = np.asarray(weights, np.float64)
    return np.asarray(-(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1))


def attention_confidence(weights: ArrayLike) -> Floats:
    """How sure a head is: the mean over queries of its largest weight, [...].

    Voita et al. 2019, https://arxiv.org/abs/1905.09418.
    """
    return np.asarray(np.asarray(weights, np.float64).max(axis=-1).mean(axis=-1))


def coverage(weights: ArrayLike) -> Floats:
    """How much attention each key has had from all queries: [..., keys].

    Tu et al. 2016, https://arxiv.org/abs/1601.04811: what has much less than 1 may have been left
    out of a translation, what has much more may have been said twice.
    """
    return np.asarray(np.asarray(weights, np.float64).sum(axis=-2))


def diagonality(weights: ArrayLike) -> Floats:
    """How far attention moves along the keys as the queries go on: [...], from −1 to 1.

    The correlation of the two places, with the weights as their joint distribution.
    """
    given = np.asarray(weights, np.float64)
    weights_XHTS = torch.from_numpy(given.reshape(1, -1, *given.shape[-2:]))
    lengths = (torch.tensor([size]) for size in given.shape[-2:])
    found_XH = attention_warnings.diagonality(weights_XHTS, *lengths)
    return np.asarray(found_XH.numpy().reshape(given.shape[:-2]))


def _mixed(weights_HTT: ArrayLike, residual: float) -> Floats:
    """The average over heads, with the residual connection; rows sum to 1."""
    mean_TT = np.asarray(weights_HTT, np.float64).mean(axis=0)
    return np.asarray(residual * np.eye(len(mean_TT)) + (1 - residual) * mean_TT)


def _of(weights: Mapping[str, NDArray[np.float32]], start: str, end: str) -> list[ArrayLike]:
    return [one for name, one in weights.items() if name.startswith(start) and name.endswith(end)]
