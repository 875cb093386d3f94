"""Teacher forcing: log-probabilities and attention weights of given targets, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.batches.batch import collate
from transduce.decoding.batch.decode import PLACES
from transduce.decoding.batch.token_budget import pack
from transduce.decoding.readings import Reading, read_parts
from transduce.decoding.score.logits import forward_and_head, token_log_probs
from transduce.models import EncoderDecoder
from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.lens import attentions, is_to_source, side_of

CPU_PLACES = 2048  # positions of a batch on a CPU: larger ones are no faster, and have more padding

Rows = Sequence[Sequence[int]]


def log_probabilities(
    network: EncoderDecoder, sources: Rows, targets: Rows, context: CallContext = NO_CONTEXT
) -> list[list[float]]:
    """The log-probability of each token of each target, END included."""
    found: list[list[float]] = [[] for _ in sources]
    forward, head = forward_and_head(network)
    device = network.head.bias.device
    sizes = [network.states_of(len(s)) + len(t) + 1 for s, t in zip(sources, targets, strict=True)]
    for indices in pack(range(len(sources)), sizes, _budget(device)):
        batch = collate([sources[i] for i in indices], [targets[i] for i in indices]).to(device)
        assert batch.target_BT is not None
        pairs = (batch.source_BS, batch.source_lengths_B, batch.target_BT[:, :-1])
        features_BTD = forward(*pairs, **context.keywords)
        lengths = [len(targets[i]) + 1 for i in indices]
        own_BT = torch.arange(features_BTD.shape[1]) < torch.tensor(lengths)[:, None]
        own_BT = own_BT.to(device)  # no logits of padding
        log_probs_X = token_log_probs(
            head, features_BTD[own_BT], batch.target_BT[:, 1:][own_BT].long()
        )
        rows = iter(log_probs_X.tolist())
        for index, length in zip(indices, lengths, strict=True):
            found[index] = list(islice(rows, length))
    return found


def _budget(device: torch.device) -> int:
    return CPU_PLACES if device.type == "cpu" else PLACES // 4


def attention_to_source(
    network: EncoderDecoder, sources: Rows, targets: Rows, context: CallContext = NO_CONTEXT
) -> list[NDArray[np.float32]] | None:
    """Attention to the source, [layers, heads, target, source], END included on both sides.

    None where the network has no attention to the source.
    """
    names = [name for name in attentions(network) if is_to_source(name)]
    if not names:
        return None
    # All layers of a decoder have the same number of heads, so they can be stacked.
    return [
        np.stack(list(reading.parts.values()))
        for reading in read_forced(network, names, sources, targets, context=context)
    ]


def read_forced(
    network: EncoderDecoder,
    names: Sequence[str],
    sources: Rows,
    targets: Rows,
    top: int = 0,
    context: CallContext = NO_CONTEXT,
) -> list[Reading]:
    """What named parts compute for each source and its target, END included on both sides."""
    device = network.head.bias.device
    lengths = [
        (network.states_of(len(s)), len(t) + 1) for s, t in zip(sources, targets, strict=True)
    ]

    def call(network: EncoderDecoder, indices: list[int]) -> Tensor:
        batch = collate([sources[i] for i in indices], [targets[i] for i in indices]).to(device)
        assert batch.target_BT is not None
        pairs = (batch.source_BS, batch.source_lengths_B, batch.target_BT[:, :-1])
        forward, _ = forward_and_head(network)
        return forward(*pairs, **context.keywords)

    def extent(name: str, index: int) -> tuple[int, int]:
        source, target = lengths[index]
        if side_of(name) == "source":
            return source, source
        return target, source if is_to_source(name) else target

    _, head = forward_and_head(network)
    return read_parts(network, names, len(sources), call, extent, top, head)
