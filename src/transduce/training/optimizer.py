"""AdamW or Muon, learning-rate schedules with warm-up, averages of weights and of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from transduce.errors import PluginError
from transduce.nn.torch_private import AdamW, add_all, differences, multiply_all
from transduce.recipe import Train
from transduce.registry import register
from transduce.training.muon import Muon, hidden_matrices


def build_optimizer(
    network: nn.Module, settings: Train, factors: Mapping[str, float] | None = None
) -> torch.optim.Optimizer:
    """AdamW with weight decay for matrices only (Loshchilov and Hutter 2019); or Muon.

    Frozen parameters are left out. factors: of the learning rate, by parameter.
    """
    factors = factors or {}
    parameters = [(n, p) for n, p in network.named_parameters() if p.requires_grad]
    if settings.optimizer == "muon":
        matrices = list(hidden_matrices(network))
        inside = {id(parameter) for _, parameter in matrices}
        others = [(n, p) for n, p in parameters if id(p) not in inside]
        adamw = _adamw(others, settings, factors)
        return Muon(matrices, adamw, settings.lr, settings.weight_decay, factors)
    if settings.optimizer in register.optimizer:
        return _registered(_groups(parameters, settings, factors), settings)
    return _adamw(parameters, settings, factors)


def _registered(groups: list[dict[str, Any]], settings: Train) -> torch.optim.Optimizer:
    """An optimizer of a plugin, from groups of parameters and the section `train`."""
    name = settings.optimizer
    try:
        optimizer = register.optimizer[name].part(groups, settings)
    except Exception as error:
        raise PluginError(
            f"the optimizer {name} of {register.optimizer[name].origin} cannot be built: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PluginError(f"the optimizer {name} is no torch.optim.Optimizer")
    return optimizer


def _adamw(
    parameters: list[tuple[str, nn.Parameter]], settings: Train, factors: Mapping[str, float]
) -> AdamW:
    groups = _groups(parameters, settings, factors)
    return AdamW(groups, lr=settings.lr, betas=settings.betas, eps=1e-9, fused=True)


def _groups(
    parameters: list[tuple[str, nn.Parameter]], settings: Train, factors: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Matrices with weight decay and the rest without, for each factor of the learning rate."""
    groups: list[dict[str, Any]] = []
    for factor in dict.fromkeys([1.0, *factors.values()]):
        some = [p for n, p in parameters if factors.get(n, 1.0) == factor]
        groups += [
            {
                "params": [p for p in some if p.ndim >= 2],
                "weight_decay": settings.weight_decay,
                "factor": factor,
            },
            {"params": [p for p in some if p.ndim < 2], "weight_decay": 0.0, "factor": factor},
        ]
    return groups


def learning_rate(step: int, settings: Train, seconds: float = 0.0) -> float:
    """The learning rate of update `step` (from 1): warm-up over `warmup` updates, then decay.

    `seconds` of train.minutes are over: linear and cosine schedules end with whichever ends first,
    updates or time, so that the rate has decayed on a slow machine too.
    """
    if step <= settings.warmup:
        return settings.lr * step / settings.warmup
    if settings.schedule == "constant":
        return settings.lr
    if settings.schedule == "inverse-sqrt":
        return settings.lr * math.sqrt(max(settings.warmup, 1) / step)
    done = (step - settings.warmup) / max(settings.steps - settings.warmup, 1)
    if settings.minutes is not None:
        done = max(done, seconds / (60 * settings.minutes))
    left = max(1.0 - done, 0.0)
    if settings.schedule == "linear":
        return settings.lr * left
    return settings.lr * 0.5 * (1.0 - math.cos(math.pi * left))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("factor", 1.0)


class MovingAverage:
    """Exponential moving average of the weights (Polyak and Juditsky 1992).

    The decay grows with the updates, (1 + n) / (10 + n), so that the initial weights are soon
    forgotten.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self._followed = dict(network.named_parameters())
        self.weights = {n: p.detach().clone() for n, p in self._followed.items()}
        # On the device: a CUDA graph would keep a number.
        self._pace = next(iter(self.weights.values())).new_ones(())

    def set_step(self, step: int) -> None:
        """How far the next `move` goes: that of update `step`, from 1."""
        self._pace.fill_(1.0 - min(self.decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def move(self, share: Tensor | float = 1.0) -> None:
        """Move towards the weights; `share` is 0, on the device, if the update was skipped."""
        own = list(self.weights.values())
        away = differences([p.detach() for p in self._followed.values()], own)
        multiply_all(away, self._pace * share)
        add_all(own, away)


def mean_of(several: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Checkpoint averaging: the mean of several checkpoints' weights, summed in float64."""
    return {
        name: (sum((w[name].double() for w in several), torch.zeros(())) / len(several)).to(
            several[0][name].dtype
        )
        for name in several[0]
    }
