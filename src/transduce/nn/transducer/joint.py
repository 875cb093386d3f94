"""The joint network of a transducer: what is heard and what was said so far, in one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transduce.nn.linear import linear


class Joint(nn.Module):
    """tanh(W_s h + W_p g + b) of an encoder state h and the prediction network's features g.

    Graves et al. 2013, https://arxiv.org/abs/1303.5778, section 3.2.

    Args:
        width: of states and features.
        joint_width: of the result, which the output layer reads.
    """

    def __init__(self, width: int, joint_width: int) -> None:
        super().__init__()
        self.of_states = nn.Linear(width, joint_width)
        self.of_features = nn.Linear(width, joint_width, bias=False)

    def forward(self, states: Tensor, features: Tensor) -> Tensor:
        """Of shapes that can be added, such as [B, S, 1, D] and [B, 1, P, D]."""
        heard = linear(states, self.of_states.weight, self.of_states.bias)
        return torch.tanh(heard + linear(features, self.of_features.weight, None))
