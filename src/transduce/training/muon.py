"""Muon: momentum whose matrices are made orthogonal, and AdamW for all that is no hidden matrix.

Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; the update is scaled so that its
root mean square is that of AdamW's, and learning rate and weight decay keep their meaning: Liu et
al. 2025, https://arxiv.org/abs/2502.16982.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from transduce.nn.torch_private import Uncompiled, add_all, copy_all, multiply_all

# The polynomial a x + b x³ + c x⁵ of the Newton-Schulz iteration: steep at 0, about 1 from 0.7 to
# 1.2. Its authors chose it.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MOMENTUM = 0.95
RMS = 0.2  # of AdamW's updates, roughly
OUTPUTS = ("head.", "ctc.")  # output layers
FUSED = "in_projection.weight"  # queries, keys and values in one matrix: each is one of its own


class Muon(Uncompiled):
    """Muon for hidden matrices, AdamW for embeddings, the output layer, biases and norms."""

    found_inf: Tensor | None = None
    """1.0 where the gradients are NaN or infinite: nothing is changed, as with AdamW."""

    def __init__(
        self,
        matrices: Iterable[tuple[str, nn.Parameter]],
        others: torch.optim.AdamW,
        lr: float,
        weight_decay: float,
        factors: Mapping[str, float] | None = None,
    ) -> None:
        """factors: of the learning rate, by parameter; `others` has its own."""
        named, factors = list(matrices), factors or {}
        self.blocks = {parameter: _blocks(name, parameter) for name, parameter in named}
        groups = [
            {
                "params": [p for name, p in named if factors.get(name, 1.0) == factor],
                "lr": lr,
                "factor": factor,
            }
            for factor in dict.fromkeys([1.0, *factors.values()])
        ]
        super().__init__(groups, {"weight_decay": weight_decay})
        self.own, self.others = len(groups), others
        # One list of groups and one state, for the learning rate and for checkpoints.
        self.param_groups += others.param_groups
        others.state = self.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups[: self.own]:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._update_group(weights, group["lr"], group["weight_decay"])
        if self.found_inf is not None:
            self.others.found_inf = self.found_inf  # type: ignore[attr-defined]
        self.others.step()

    def _update_group(
        self, weights: list[nn.Parameter], lr: Tensor | float, weight_decay: float
    ) -> None:
        """Matrices of the same shape together: a few large kernels in place of many small ones."""
        kept = None if self.found_inf is None else self.found_inf == 0
        decay = lr * weight_decay
        multiply_all(weights, 1 - decay if kept is None else 1 - decay * kept)
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor, Tensor]]] = {}
        for weight in weights:
            state = self.state[weight]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(weight)
            assert weight.grad is not None
            parts, count = (weight, weight.grad, state["momentum"]), self.blocks[weight]
            for block in zip(*(part.chunk(count) for part in parts), strict=True):
                by_shape.setdefault(block[0].shape, []).append(block)
        for shape, alike in by_shape.items():
            own, gradients, momenta = zip(*alike, strict=True)
            gradient, before = torch.stack(gradients), torch.stack(momenta)
            momentum = torch.lerp(before, gradient, 1 - MOMENTUM)
            nesterov = torch.lerp(gradient, momentum, MOMENTUM)
            if kept is not None:
                momentum = torch.where(kept, momentum, before)
                nesterov = torch.where(kept, nesterov, 0.0)
            copy_all(momenta, momentum.unbind())
            update = orthogonalize(nesterov).to(momentum.dtype)
            add_all(own, (update * (-lr * RMS * max(shape) ** 0.5)).unbind())


def orthogonalize(matrices_NRC: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """Matrices with the same singular vectors, and singular values near 1 (0.7 to 1.2).

    Newton-Schulz iterations, on a GPU in bfloat16. A matrix of zeros stays one.
    """
    a, b, c = COEFFICIENTS
    x = matrices_NRC.bfloat16() if matrices_NRC.is_cuda else matrices_NRC
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    made: Tensor = x.mT if tall else x
    return made


def hidden_matrices(network: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The matrices inside a network that Muon is for: not embeddings, not the output layer."""
    tables = {
        id(weight)
        for module in network.modules()
        if isinstance(module, nn.Embedding)
        for weight in module.parameters(recurse=False)
    }
    for name, parameter in network.named_parameters():
        inside = id(parameter) not in tables and not name.startswith(OUTPUTS)
        if inside and parameter.requires_grad and parameter.ndim == 2 and min(parameter.shape) > 1:
            yield name, parameter


def _blocks(name: str, parameter: nn.Parameter) -> int:
    """How many matrices a parameter holds, one below the other."""
    rows, columns = parameter.shape
    return rows // columns if name.endswith(FUSED) and rows % columns == 0 else 1
