"""Weights, gradients and moments cut into parts, one for each process (FSDP2).

Every block's weights are brought together for its forward and backward pass and forgotten
afterwards: Zhao et al. 2023, https://arxiv.org/abs/2304.11277.
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
from transduce.training.log_window import Passed
from transduce.training.nan_guard import unusable
from transduce.training.update import Update


def sharded(network: TrainableNetwork, device: torch.device, ranks: Processes) -> TrainableNetwork:
    """A copy of a network of which every process holds its part, on its device."""
    # Here and below: a second's import that a process alone should not pay.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (ranks.count,))
    copied = deepcopy(network)
    for module in copied.modules():
        if isinstance(module, EncoderBlock | DecoderBlock):
            fully_shard(module, mesh=mesh)
        if isinstance(module, DecoderBlock):
            register_fsdp_forward_method(module, "project_memory")
    # It warns of changing these keys and values in place, which nobody does.
    warnings.filterwarnings("ignore", message=".*returned a view tensor")
    # The head works after the root's own forward pass: its weights must still be there.
    return cast(TrainableNetwork, fully_shard(copied, mesh=mesh, reshard_after_forward=False))


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; of one that is cut into parts, all processes must ask together."""
    gathered: Tensor = tensor.full_tensor() if _cut(tensor) else tensor  # type: ignore[attr-defined]
    return gathered


def part_like(own: Tensor, full: Tensor) -> Tensor:
    """Of a full tensor, this process's part, cut as `own` is; nothing is sent."""
    if not _cut(own):
        return full
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(own, DTensor)
    placed = full.to(own.device)
    return distribute_tensor(placed, own.device_mesh, own.placements, src_data_rank=None)


def _cut(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


@torch.no_grad()
def fill(network: TrainableNetwork, weights: Mapping[str, Tensor]) -> None:
    """Give a plain network the weights of one that is cut into parts, one after the other."""
    for name, parameter in network.named_parameters():
        parameter.copy_(whole(weights[name]))


@dataclass
class ShardedUpdate(Update):
    """The same update; each pass sums its gradients over the processes where they are cut.

    A batch that does not fit into memory is not halved: the others would wait for a pass less.
    """

    def __post_init__(self) -> None:
        self.skip = torch.zeros((), device=self.device)  # AdamW's own flag must not be cut in parts

    def __call__(self, batches: list[Batch], tokens: int | None = None) -> Passed:
        """Passes are made in step: a process with a batch less repeats one that counts nothing."""
        assert tokens is not None
        count = self.ranks.count
        passes = -(-max(self.settings.accumulate, count) // count)
        # FSDP takes the mean over the processes where the sum is wanted.
        losses = [self.gradients(batch, tokens / count) for batch in batches]
        for _ in range(passes - len(batches)):
            self.gradients(batches[-1], float("inf"))
        total = torch.stack(losses).sum(dim=0)
        self.ranks.add_up([total])
        norm = whole(self.clip())
        self.skip.copy_(unusable(total[0], norm))
        return Passed(total[0], norm, total[1])

    @property
    def applied(self) -> float:
        return 1.0 - float(self.skip)

    def apply(self) -> None:
        if self.applied:
            self.optimizer.step()
        self.forget()
