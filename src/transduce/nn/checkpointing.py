"""Activation checkpointing: of a block only its input is kept; the rest is computed again.

Chen et al. 2016, https://arxiv.org/abs/1604.06174. The backward pass computes each block's forward
pass a second time, with the same random numbers for dropout: gradients are the same, memory for
activations is that of one block and the inputs of all, and an update has one more forward pass.
"""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from transduce.nn.watchable import GATES, WATCHES


class Checkpointed(nn.Module):
    """A stack of blocks that may be run with activation checkpointing in training."""

    checkpoint_activations: bool = False

    def run(self, block: nn.Module, *inputs: Any) -> Any:
        """One of its blocks; with checkpointing if it is on and a gradient will be asked for."""
        if not self.checkpoint_activations or not torch.is_grad_enabled():
            return block(*inputs)
        if not GATES.get() and not WATCHES.get():
            return checkpoint(block, *inputs, use_reentrant=False)
        # On a GPU another thread computes the block again, where nobody has set these.
        return checkpoint(partial(copy_context().run, block), *inputs, use_reentrant=False)


def set_checkpointing(network: nn.Module, active: bool) -> int:
    """Switch checkpointing on or off in all stacks of a network; returns how many there are."""
    stacks = [module for module in network.modules() if isinstance(module, Checkpointed)]
    for stack in stacks:
        stack.checkpoint_activations = active
    return len(stacks)
