"""A plain training loop, for the small networks of the lessons."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def fit(
    network: nn.Module, batch: Callable[[], tuple[Any, ...]], steps: int, lr: float = 3e-3
) -> list[float]:
    """Train a small network by AdamW with gradients clipped at norm 1.

    The learning rate rises for a tenth of the steps, then falls to zero along a cosine.

    Args:
        network: a network with the method `loss`.
        batch: a function that returns the arguments of `network.loss`, newly drawn.
        steps: number of updates.
        lr: the highest learning rate.

    Returns:
        The share of right tokens at each step.
    """
    import torch

    optimizer = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=0.1)
    network.train()
    accuracies = []
    for _ in range(steps):
        loss = network.loss(*batch())  # type: ignore[operator]
        optimizer.zero_grad()
        (loss.total / loss.tokens).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        accuracies.append(float(loss.correct / loss.tokens))
    network.eval()
    return accuracies
