"""Attribution by gradients: how much each input has to do with a value.

These functions know no model. A function takes inputs [N, ...], N rows that have nothing to do with
each other, and gives a value for each row [N]; attributions have the shape of the inputs.
`model_attribution.py` uses them for models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Function = Callable[[Sequence[Tensor]], Tensor]
STEPS = 64


class Integrated(NamedTuple):
    """Integrated gradients, and how nearly they add up."""

    attributions: list[Tensor]
    """Of each input, in its shape."""
    values_N: Tensor
    """The function's values for the inputs."""
    base_values_N: Tensor
    """Its values for the baselines."""

    @property
    def gap_N(self) -> Tensor:
        """What all attributions of a row sum to, less the difference of the function's values.

        Completeness: without rounding and with enough steps it is 0.
        """
        summed_N = sum(one.flatten(1).sum(dim=1) for one in self.attributions)
        assert isinstance(summed_N, Tensor)
        return summed_N - (self.values_N - self.base_values_N)


def gradients(function: Function, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Of each row's value by the inputs of that row, and the values_N."""
    with torch.enable_grad():
        leaves = [one.detach().requires_grad_() for one in inputs]
        values_N = function(leaves)
        found = torch.autograd.grad(values_N.sum(), leaves, allow_unused=True)
    filled = [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, found, strict=True)
    ]
    return filled, values_N.detach()


def gradient_x_input(
    function: Function, inputs: Sequence[Tensor], baselines: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """∂f/∂x · (x − baseline); without baselines these are zero.

    Shrikumar et al. 2016, https://arxiv.org/abs/1605.01713: exact where f is linear.
    """
    found, _ = gradients(function, inputs)
    from_base = _differences(inputs, baselines)
    return [gradient * x for gradient, x in zip(found, from_base, strict=True)]


def gradient_norm(function: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    """‖∂f/∂x‖ over the last axis: how strongly a value depends on a vector, without a sign.

    Simonyan et al. 2013, https://arxiv.org/abs/1312.6034.
    """
    return [gradient.norm(dim=-1) for gradient in gradients(function, inputs)[0]]


def integrated_gradients(
    function: Function,
    inputs: Sequence[Tensor],
    baselines: Sequence[Tensor] | None = None,
    steps: int = STEPS,
) -> Integrated:
    """(x − x') ∫ ∂f/∂x (x' + α (x − x')) dα from 0 to 1; baselines x' are zero if not given.

    Sundararajan et al. 2017, https://arxiv.org/abs/1703.01365. The integral is a sum over `steps`
    points of Gauss and Legendre, exact for polynomials of up to twice as high a degree.
    """
    if steps < 1:
        raise ValueError(f"An integral needs at least one step, not {steps}.")
    from_base = _differences(inputs, baselines)
    bases = [x.detach() - difference for x, difference in zip(inputs, from_base, strict=True)]
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    sums = [torch.zeros_like(one) for one in from_base]
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        share = (1 + node) / 2
        found, _ = gradients(
            function, [base + share * one for base, one in zip(bases, from_base, strict=True)]
        )
        for summed, gradient in zip(sums, found, strict=True):
            summed += weight / 2 * gradient
    with torch.no_grad():
        values_N, base_values_N = function(inputs), function(bases)
    attributions = [summed * one for summed, one in zip(sums, from_base, strict=True)]
    return Integrated(attributions, values_N, base_values_N)


def erasure(
    function: Function, inputs: Sequence[Tensor], baselines: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """f(x) less f with one position of an input at its baseline: [N, positions] of each input.

    Li et al. 2016, https://arxiv.org/abs/1612.08220. Inputs are [N, positions, width].
    """
    bases = [
        x - difference
        for x, difference in zip(inputs, _differences(inputs, baselines), strict=True)
    ]
    with torch.no_grad():
        values_N = function(inputs)
        found = []
        for number, (x_NPD, base_NPD) in enumerate(zip(inputs, bases, strict=True)):
            lost = []
            for place in range(x_NPD.shape[1]):
                erased_NPD = x_NPD.clone()
                erased_NPD[:, place] = base_NPD[:, place]
                without = [*inputs[:number], erased_NPD, *inputs[number + 1 :]]
                lost.append(values_N - function(without))
            found.append(torch.stack(lost, dim=1))
    return found


def _differences(inputs: Sequence[Tensor], baselines: Sequence[Tensor] | None) -> list[Tensor]:
    if baselines is None:
        return [one.detach() for one in inputs]
    return [(x - base).detach() for x, base in zip(inputs, baselines, strict=True)]
