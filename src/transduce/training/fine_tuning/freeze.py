"""Frozen parameters and factors of the learning rate, by pattern."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from transduce.errors import TrainingError
from transduce.recipe import Train
from transduce.training.fine_tuning.patterns import matching, names_of


def freeze(network: nn.Module, settings: Train) -> list[str]:
    """Freeze what train.start.freeze names: no gradient, no optimizer state, no weight decay.

    Returns the names. Raises TrainingError for a pattern that fits nothing, and where nothing is
    left to train.
    """
    start = settings.start
    if start is None:
        return []
    frozen = matching(names_of(network), start.freeze, "train.start.freeze")
    own = dict(network.named_parameters())
    for name in frozen:
        own[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in own.values()):
        raise TrainingError(
            "train.start.freeze freezes every parameter: nothing is left to train; name fewer parts"
        )
    return frozen


def rate_factors(network: nn.Module, settings: Train) -> dict[str, float]:
    """The factor of the learning rate of each parameter that train.start.rates names."""
    start = settings.start
    if start is None:
        return {}
    names = _shown(names_of(network))
    found: dict[str, float] = {}
    for pattern, factor in start.rates.items():
        for name in matching(names, [pattern], "train.start.rates"):
            found[name] = factor
    return found


def _shown(names: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """With what an adapter's parameters are called in its file as further names."""
    return {name: [*several, *(_plain(one) for one in several)] for name, several in names.items()}


def _plain(name: str) -> str:
    return name.removeprefix("network.").removeprefix("low_rank.").replace("/", ".")
