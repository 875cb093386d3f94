"""Adapters: small trained matrices beside the frozen weights of a network, and PEFT's files.

The mathematics is `nn/low_rank.py`. Folders of adapters are read by `tasks/adapter_folder.py`, as
model folders are.
"""

from transduce.adapters.choice import Adapter, AdapterChoice, Base, adapted_copy, check_base
from transduce.adapters.network import (
    AdaptedNetwork,
    AdapterState,
    LowRankWeights,
    Target,
    adaptable,
)

__all__ = [
    "AdaptedNetwork",
    "Adapter",
    "AdapterChoice",
    "AdapterState",
    "Base",
    "LowRankWeights",
    "Target",
    "adaptable",
    "adapted_copy",
    "check_base",
]
