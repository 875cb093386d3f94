"""Models: front ends, encoders, decoders and heads, put together as a recipe says."""

from transduce.models.labeller import Labeller, build_labeller
from transduce.models.learner import Learner
from transduce.models.lens import Lens
from transduce.models.network import Network, Vocabulary, build

__all__ = [
    "Labeller",
    "Learner",
    "Lens",
    "Network",
    "Vocabulary",
    "build",
    "build_labeller",
]
