"""Search: from a model's next-token probabilities to whole sequences."""

from transduce.decoding.search.beam import beam
from transduce.decoding.search.greedy import Hypothesis, Stepper, greedy, sample

__all__ = ["Hypothesis", "Stepper", "beam", "greedy", "sample"]
