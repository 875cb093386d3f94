"""What parts of a network compute for given sources and targets, in one pass, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transduce.decoding.batch.token_budget import pack
from transduce.models.call_context import CallContext
from transduce.models.lens import LOGITS, NEXT_TOKEN, Recorder

NUMBERS_AT_ONCE = 1 << 20  # of one part; of attention, of one head
WIDE = 512  # numbers in a state, about
LOGITS_AT_ONCE = 1024  # positions whose whole distributions exist at a time

Weights = dict[str, NDArray[np.float32]]
"""By the name of a part: attention [heads, queries, keys], else [positions, width]."""


class Likeliest(NamedTuple):
    """The likeliest tokens at each step."""

    ids_TN: NDArray[np.int64]
    probabilities_TN: NDArray[np.float32]
    entropy_T: NDArray[np.float32]


class ReadRequest(NamedTuple):
    """What a lens asks for: what named parts compute for sources and their targets."""

    names: list[str]
    sources: list[list[int]]
    targets: list[list[int]]
    top: int
    """So many of the likeliest tokens at each step."""
    forced: bool
    """Whether the targets were scored, by the network in full precision, and not written."""
    context: CallContext


class Reading(NamedTuple):
    """What a network computed for one source and its target."""

    parts: Weights
    likeliest: Likeliest | None


def read_parts(
    network: nn.Module,
    names: Sequence[str],
    count: int,
    call: Callable[[Any, list[int]], Tensor],
    extent: Callable[[str, int], tuple[int, int]],
    top: int = 0,
    head: Callable[[Tensor], Tensor] | None = None,
) -> list[Reading]:
    """What named parts compute, row by row, padding left out.

    count: how many rows there are; `call` runs the network that it is given, a view of this one,
    on the rows at some indices and gives the features_BTD that its head reads; `extent` says how
    many queries and keys of a part are a row's own. top: so many of the likeliest tokens at each
    step, where names have next_token. head: what makes logits of the features; None: the network's.
    """
    found = [Reading({}, None) for _ in range(count)]
    sizes = [max(_size(*extent(name, index)) for name in names) for index in range(count)]
    for indices in pack(range(count), sizes, NUMBERS_AT_ONCE):
        with Recorder(network, names) as recorder:
            features_BTD = call(recorder.network, indices)
        for name, values in recorder.found.items():
            numbers = values.float().cpu().numpy()
            for row, index in enumerate(indices):
                queries, keys = extent(name, index)
                own = numbers[row, :queries]
                if numbers.ndim == 4:
                    own = numbers[row, :, :queries, :keys]
                found[index].parts[name] = own.copy()
        if LOGITS in names or NEXT_TOKEN in names:
            for row, index in enumerate(indices):
                features_TD = features_BTD[row, : extent(LOGITS, index)[0]]
                found[index] = _with_logits(
                    head or network.head, found[index], features_TD, names, top
                )
    return found


def _size(queries: int, keys: int) -> int:
    return max(1, queries * max(keys, WIDE))


def _with_logits(
    head: Any, reading: Reading, features_TD: Tensor, names: Sequence[str], top: int
) -> Reading:
    kept, likeliest = [], []
    for some_TD in torch.split(features_TD, LOGITS_AT_ONCE):
        logits_TV: Tensor = head(some_TD).float()
        kept += [logits_TV.cpu().numpy()] if LOGITS in names else []
        if NEXT_TOKEN in names:
            log_probs_TV = torch.log_softmax(logits_TV, dim=-1)
            best = log_probs_TV.topk(min(top, logits_TV.shape[-1]), dim=-1)
            probs_TV = log_probs_TV.exp()
            # A token that cannot be has a log-probability of −∞, and adds nothing.
            entropy_T = -(probs_TV * log_probs_TV).nan_to_num().sum(dim=-1)
            likeliest.append((best.indices, best.values.exp(), entropy_T))
    if kept:
        reading.parts[LOGITS] = np.concatenate(kept)
    if not likeliest:
        return reading
    ids, probabilities, entropy = (
        torch.cat(one).cpu().numpy() for one in zip(*likeliest, strict=True)
    )
    return Reading(reading.parts, Likeliest(ids, probabilities, entropy))
