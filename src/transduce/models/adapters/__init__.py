"""Adapters: small trained matrices beside the frozen weights of a network."""

from transduce.models.adapters.network import AdaptedNetwork
from transduce.models.adapters.places import Place, adaptable
from transduce.models.adapters.state import AdapterState, LowRankWeights

__all__ = ["AdaptedNetwork", "AdapterState", "LowRankWeights", "Place", "adaptable"]
