"""Label probabilities and pooling weights of classifiers and taggers, in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.batches.batch import Row, collate
from transduce.decoding.batch.decode import PLACES
from transduce.decoding.batch.token_budget import pack
from transduce.decoding.readings import Reading, read_parts
from transduce.models import LabelNetwork, Lens
from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.lens import side_of

LogProbabilities = NDArray[np.float32]
POOLING = "pool.attention"


def label_probabilities(
    network: LabelNetwork, sources: Sequence[Row], context: CallContext = NO_CONTEXT
) -> list[LogProbabilities]:
    """Log-probabilities of all labels, [tokens, labels] for each source; [1, labels] if pooled."""
    found: list[LogProbabilities] = [np.zeros((0, 0), np.float32)] * len(sources)
    device = network.head.bias.device
    sizes = [network.states_of(len(source)) for source in sources]
    for indices in pack(range(len(sources)), sizes, PLACES):
        batch = collate([sources[i] for i in indices], None, ends=False).to(device)
        rows = (batch.source_BS, batch.source_lengths_B)
        log_probs_BTV = network.log_probabilities(*rows, **context.keywords).cpu()
        for row, index in enumerate(indices):
            found[index] = log_probs_BTV[row, : len(sources[index])].numpy()
    return found


def pooling_weights(
    network: LabelNetwork, sources: Sequence[Row], context: CallContext = NO_CONTEXT
) -> list[NDArray[np.float32]] | None:
    """The pooling weight of each token, [tokens] for each source; None without attention."""
    found: dict[int, NDArray[np.float32]] = {}
    device = network.head.bias.device
    sizes = [network.states_of(len(source)) for source in sources]
    for indices in pack(range(len(sources)), [size**2 for size in sizes], PLACES):
        batch = collate([sources[i] for i in indices], None, ends=False).to(device)
        with Lens(network, POOLING) as lens:
            network(batch.source_BS, batch.source_lengths_B, **context.keywords)
        if not lens.weights:
            return None
        weights_BSS = lens.weights[POOLING][:, 0].float().cpu().numpy()
        for row, index in enumerate(indices):
            S = sizes[index]
            found[index] = weights_BSS[row, :S, :S].mean(axis=0)
    return [found[index] for index in range(len(sources))]


def read_labelled(
    network: LabelNetwork,
    names: Sequence[str],
    sources: Sequence[Sequence[int]],
    top: int = 0,
    context: CallContext = NO_CONTEXT,
) -> list[Reading]:
    """What named parts compute for each source."""
    device = network.head.bias.device

    def call(network: LabelNetwork, indices: list[int]) -> Tensor:
        batch = collate([sources[i] for i in indices], None, ends=False).to(device)
        rows = (batch.source_BS, batch.source_lengths_B)
        features_BTD: Tensor = network(*rows, **context.keywords)
        return features_BTD

    def extent(name: str, index: int) -> tuple[int, int]:
        states = network.states_of(len(sources[index]))
        if side_of(name) == "source":
            return states, states
        return (states if network.pool is None else 1), 0

    return read_parts(network, names, len(sources), call, extent, top)
