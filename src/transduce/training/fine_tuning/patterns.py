"""Patterns that name parameters of a network: encoder, decoder.embedding, *.norm.*"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from torch import nn

from transduce.errors import TrainingError
from transduce.recipe import Train, nearest


def names_of(network: nn.Module) -> dict[str, list[str]]:
    """Every parameter by its first name, with all names that it has: tied ones have several."""
    first: dict[int, str] = {}
    found: dict[str, list[str]] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        found.setdefault(first.setdefault(id(parameter), name), []).append(name)
    return found


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern names a parameter, or a part that it is in; * stands for any text."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def matching(names: Mapping[str, Iterable[str]], patterns: Iterable[str], key: str) -> list[str]:
    """The parameters that any of the patterns names, in order.

    Raises TrainingError for a pattern that names none.
    """
    found: set[str] = set()
    for pattern in patterns:
        some = [one for one, several in names.items() if any(fits(n, pattern) for n in several)]
        if not some:
            raise TrainingError(unknown(pattern, (n for s in names.values() for n in s), key))
        found.update(some)
    return [name for name in names if name in found]


def unknown(pattern: str, names: Iterable[str], key: str) -> str:
    """The error message for a pattern that names nothing, with the nearest name."""
    known: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        known.update(dict.fromkeys(".".join(parts[:n]) for n in range(1, len(parts) + 1)))
    plain = pattern.strip("*").strip(".")
    top = ", ".join(dict.fromkeys(name.split(".")[0] for name in known))
    near = nearest(plain, known, f"; its parts are {top}")
    return f"{key} has {pattern!r}, but no parameter of this model is called so{near}"


# ----------------------------------------------------------------------------------------------
# Frozen parameters and factors of the learning rate, by pattern.


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
