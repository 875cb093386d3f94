"""Label probabilities and pooling weights of classifiers and taggers, in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from transduce.data.batches.batch import collate
from transduce.decoding.attention import Weights, weights_by_part
from transduce.decoding.batch.decode import PLACES, pack
from transduce.models import Labeller, Lens

LogProbabilities = NDArray[np.float32]
POOLING = "pool.attention"


def label_probabilities(
    network: Labeller, sources: Sequence[Sequence[int]]
) -> list[LogProbabilities]:
    """Log-probabilities of all labels, [tokens, labels] for each source; [1, labels] if pooled."""
    found: list[LogProbabilities] = [np.zeros((0, 0), np.float32)] * len(sources)
    device = network.head.bias.device
    sizes = [network.states_of(len(source)) for source in sources]
    for indices in pack(range(len(sources)), sizes, PLACES):
        batch = collate([sources[i] for i in indices], None, ends=False).to(device)
        log_probs_BTV = network.log_probabilities(batch.source_BS, batch.source_lengths_B).cpu()
        for row, index in enumerate(indices):
            found[index] = log_probs_BTV[row, : len(sources[index])].numpy()
    return found


def pooling_weights(
    network: Labeller, sources: Sequence[Sequence[int]]
) -> list[NDArray[np.float32]] | None:
    """The pooling weight of each token, [tokens] for each source; None without attention."""
    found: dict[int, NDArray[np.float32]] = {}
    device = network.head.bias.device
    sizes = [network.states_of(len(source)) for source in sources]
    for indices in pack(range(len(sources)), [size**2 for size in sizes], PLACES):
        batch = collate([sources[i] for i in indices], None, ends=False).to(device)
        with Lens(network, POOLING) as lens:
            network(batch.source_BS, batch.source_lengths_B)
        if not lens.weights:
            return None
        weights_BSS = lens.weights[POOLING][:, 0].float().cpu().numpy()
        for row, index in enumerate(indices):
            S = sizes[index]
            found[index] = weights_BSS[row, :S, :S].mean(axis=0)
    return [found[index] for index in range(len(sources))]


def attention_weights(
    network: Labeller, names: Sequence[str], sources: Sequence[Sequence[int]]
) -> list[Weights]:
    """The weights of named modules, [heads, tokens, tokens] for each source."""
    device = network.head.bias.device

    def call(indices: list[int]) -> None:
        batch = collate([sources[i] for i in indices], None, ends=False).to(device)
        network(batch.source_BS, batch.source_lengths_B)

    def extent(name: str, index: int) -> tuple[int, int]:
        return len(sources[index]), len(sources[index])

    return weights_by_part(network, names, [len(s) ** 2 for s in sources], call, extent)
