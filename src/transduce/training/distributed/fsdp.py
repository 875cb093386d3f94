"""FSDP2: weights, gradients and optimizer moments sharded over the ranks.

The weights of each block are all-gathered for its forward and backward pass and freed afterwards:
Zhao et al. 2023, https://arxiv.org/abs/2304.11277.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from transduce.data.batches.batch import Batch
from transduce.models import TrainableNetwork
from transduce.nn.transformer import DecoderBlock, EncoderBlock
from transduce.training.distributed.processes import Processes
from transduce.training.log_window import UpdateResult
from transduce.training.update import Update


def sharded(network: TrainableNetwork, device: torch.device, ranks: Processes) -> TrainableNetwork:
    """A sharded copy of a network: every rank holds its shard, on its device."""
    # Imported here and below: it takes a second that a single process should not pay.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (ranks.count,))
    copied = deepcopy(network)
    for module in copied.modules():
        if isinstance(module, EncoderBlock | DecoderBlock):
            fully_shard(module, mesh=mesh)
        if isinstance(module, DecoderBlock):
            register_fsdp_forward_method(module, "project_memory")
    # It warns about changing these keys and values in place, which does not happen.
    warnings.filterwarnings("ignore", message=".*returned a view tensor")
    # The output head runs after the root's own forward pass: its weights must not be freed.
    return cast(TrainableNetwork, fully_shard(copied, mesh=mesh, reshard_after_forward=False))


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor; if it is sharded, a collective that all ranks must call."""
    gathered: Tensor = tensor.full_tensor() if _is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return gathered


def shard_like(own: Tensor, full: Tensor) -> Tensor:
    """This rank's shard of a full tensor, sharded as `own` is; no communication."""
    if not _is_sharded(own):
        return full
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(own, DTensor)
    placed = full.to(own.device)
    return distribute_tensor(placed, own.device_mesh, own.placements, src_data_rank=None)


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


@torch.no_grad()
def fill(network: TrainableNetwork, weights: Mapping[str, Tensor]) -> None:
    """Load the weights of a sharded network into a plain one, one tensor after the other."""
    for name, parameter in network.named_parameters():
        parameter.copy_(full_tensor(weights[name]))


@dataclass
class ShardedUpdate(Update):
    """The same update; each backward pass reduce-scatters its gradients.

    A batch that runs out of memory is not split: the other ranks would wait for the additional
    passes.
    """

    def __post_init__(self) -> None:
        self._weights = [p for p in self.network.parameters() if p.requires_grad]
        self.device = self._weights[0].device
        self.skip = torch.zeros((), device=self.device)  # AdamW's flag must not be sharded

    def __call__(self, batches: list[Batch]) -> UpdateResult:
        """Ranks run the same number of passes: one with fewer batches repeats one with weight
        zero.
        """
        count = self.ranks.count
        passes = -(-max(self.settings.accumulate, count) // count)
        losses = [self.gradients(batch) for batch in batches]
        for _ in range(passes - len(batches)):
            self.gradients(batches[-1], 0.0)
        total = torch.stack(losses).sum(dim=0)
        self.ranks.all_reduce(total)
        # FSDP averages over the ranks, but the sum is needed.
        return self._mean(total, 1 / count)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        return full_tensor(super().norm(gradients))

    @property
    def applied(self) -> float:
        return 1.0 - float(self.skip)

    def _step(self) -> None:
        if self.applied:
            self.optimizer.step()
            if self.average is not None:
                self.average.move()
