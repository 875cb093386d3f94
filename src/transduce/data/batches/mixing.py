"""Mixing corpora: how often the pairs of each are drawn, by weights and a temperature.

Temperature sampling after Arivazhagan et al. 2019 (https://arxiv.org/abs/1907.05019): corpus i, of
n_i pairs and weight w_i, has the share p_i ∝ w_i · n_i^(1/T) of what is drawn. T = 1 leaves shares
as the sizes are; a large T makes them equal, so that small corpora are repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transduce.data.text.pairs import corpus_name, read_pairs, resolved
from transduce.errors import DataError
from transduce.recipe import Corpus, Data, Mixture


@dataclass(frozen=True)
class Mix:
    """Which rows of a corpus come from which of its parts, and how many of each are drawn."""

    names: tuple[str, ...]
    rows: tuple[NDArray[np.int64], ...]
    """The rows of each part."""
    shares: NDArray[np.float64]
    """The share of each part in what is drawn; their sum is 1."""

    def __len__(self) -> int:
        """Rows of an epoch: as many as there are in all."""
        return sum(map(len, self.rows))

    def draw(self, random: np.random.Generator) -> NDArray[np.int64]:
        """The rows of an epoch: of each part, each row equally often, and at most once more.

        Counts that are not whole are rounded up or down at random, so that the shares are exact on
        average.
        """
        found = []
        for rows, share in zip(self.rows, self.shares, strict=True):
            wanted = share * len(self)
            count = int(wanted) + int(random.random() < wanted % 1)
            whole, rest = divmod(count, len(rows))
            found += [rows] * whole + [random.permutation(rows)[:rest]]
        return np.concatenate(found)

    def sentences(self) -> list[str]:
        """The share of each part, for people."""
        return share_sentences(self.names, [len(rows) for rows in self.rows], self.shares)


def share_sentences(
    names: Sequence[str], sizes: Sequence[int], shares: NDArray[np.float64]
) -> list[str]:
    """How often the pairs of each corpus are drawn, for people."""
    lines, total = [], sum(sizes)
    for name, size, share in zip(names, sizes, shares.tolist(), strict=True):
        lines.append(
            f"{name}: {size:,} pairs, {size / total:.1%} of all, drawn {share:.1%} of the time "
            f"(each pair {share * total / size:.3g} times per epoch)"
        )
    return lines


def shares_of(
    sizes: Sequence[int], weights: Sequence[float], temperature: float
) -> NDArray[np.float64]:
    """p_i ∝ w_i · n_i^(1/T), with a sum of 1."""
    # In logarithms, as a low temperature makes large powers.
    logs = np.log(np.asarray(weights, np.float64)) + np.log(np.asarray(sizes, np.float64)) / (
        temperature
    )
    powers = np.exp(logs - logs.max())
    return np.asarray(powers / powers.sum(), np.float64)


def check_drawn(names: Sequence[str], sizes: Sequence[int]) -> None:
    """Raise DataError for a corpus without pairs, which cannot have a share."""
    for name, size in zip(names, sizes, strict=True):
        if not size:
            raise DataError(
                f"no pair of {name} is left to draw; correct its files, raise data.max_length, "
                f"relax data.filters, or leave it out"
            )


def mix_of(data: Data, numbers: NDArray[np.int64]) -> Mix | None:
    """How the training corpora of a recipe are mixed; None where each pair is read once per epoch.

    `numbers` are those of the encoded corpus: the index of each row among the pairs that are read.
    Raises DataError where there is nothing to mix.
    """
    if not data.mixes:
        return None
    corpus, folder = resolved(data.train, data.folder)
    if not isinstance(corpus, Mixture):
        raise DataError(
            f"data.temperature is {data.temperature}, but {corpus_name(data.train)} is one corpus; "
            f"give a list of corpora, or leave it out"
        )
    counts = [sum(1 for _ in read_pairs(part, folder)) for part in corpus.of]
    origin = _origins(counts)[numbers]
    parts = [np.flatnonzero(origin == place) for place in range(len(corpus.of))]
    names = distinct_names(corpus.of)
    check_drawn(names, [len(rows) for rows in parts])
    weights = [one.weight for one in corpus.of]
    shares = shares_of([len(rows) for rows in parts], weights, data.temperature)
    return Mix(tuple(names), tuple(parts), shares)


def _origins(counts: Sequence[int]) -> NDArray[np.int64]:
    """The corpus of each pair where several are interleaved: one pair of each in turn, until the
    last of them ends.
    """
    turns = np.concatenate([np.arange(count) for count in counts])
    parts = np.repeat(np.arange(len(counts)), counts)
    return np.asarray(parts[np.lexsort((parts, turns))], np.int64)


def distinct_names(corpora: Sequence[Corpus]) -> list[str]:
    """What each corpus is called; its tag too, where it has one."""
    found = []
    for one in corpora:
        tag = getattr(one, "tag", None)
        found.append(corpus_name(one) + (f" ({tag})" if tag else ""))
    return found
