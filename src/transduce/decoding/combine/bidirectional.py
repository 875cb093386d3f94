"""Bidirectional decoding: hypotheses of searches in both directions, each scored by both.

The log-probability of a hypothesis y is the mean of those that it has in either direction,

    ½ (log p(y₁ … y_T END) + log p(y_T … y₁ END)),

so that an output must be likely from its beginning and from its end (Liu et al. 2016,
https://aclanthology.org/N16-1046). Both directions are one network's: see
data/tokens/bidirectional.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from transduce.data.tokens.bidirectional import right_to_left
from transduce.decoding.search.hypothesis import Hypothesis, penalty

Rows = Sequence[Sequence[int]]
Values = list[list[float]]
ScoreRows = Callable[[Rows, Rows], Values]
"""The log-probability of each token of each target given its source, END included."""


class Directions(NamedTuple):
    """The log-probability of each token of some targets, the tokens in the order of the text."""

    left_to_right: Values
    right_to_left: Values

    def mean(self) -> Values:
        return [
            [(one + other) / 2 for one, other in zip(*rows, strict=True)]
            for rows in zip(self.left_to_right, self.right_to_left, strict=True)
        ]


def score_directions(score: ScoreRows, sources: Rows, targets: Rows) -> Directions:
    """Targets scored in both directions by one network."""
    turned = score([right_to_left(ids) for ids in sources], [ids[::-1] for ids in targets])
    in_order = [[*values[:-1][::-1], values[-1]] for values in turned]  # END comes last in both
    return Directions(score(sources, targets), in_order)


def ensemble_directions(models: Sequence[Directions], *, geometric: bool) -> Directions:
    """The directions of an ensemble: the mean of the models' probabilities of each token, or of
    their log-probabilities (`Ensemble`)."""
    average = _mean if geometric else _log_mean_exp
    return Directions(
        *(
            [[average(tokens) for tokens in zip(*rows, strict=True)] for rows in every]
            for every in (zip(*of_models, strict=True) for of_models in zip(*models, strict=True))
        )
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _log_mean_exp(values: Sequence[float]) -> float:
    highest = max(values)
    if highest == -math.inf:
        return highest
    return highest + math.log(_mean([math.exp(value - highest) for value in values]))


def candidates(
    left_to_right: Sequence[Hypothesis], right_to_left: Sequence[Hypothesis]
) -> list[list[int]]:
    """The tokens of all hypotheses of a source in the order of the text, each once."""
    found = [h.tokens for h in left_to_right] + [h.tokens[::-1] for h in right_to_left]
    return [list(tokens) for tokens in dict.fromkeys(map(tuple, found))]


def ranked(tokens: Rows, totals: Iterator[float], power: float) -> list[Hypothesis]:
    """Hypotheses with these log-probabilities, the best first; power: the length penalty."""
    found = [
        Hypothesis(list(ids), total / float(penalty(len(ids) + 1, power)), total)
        for ids, total in zip(tokens, totals, strict=False)
    ]
    return sorted(found, key=lambda h: -h.score)
