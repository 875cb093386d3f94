"""Search: from a model's next-token probabilities to whole sequences."""

from transduce.decoding.beams import beam
from transduce.decoding.search import Hypothesis, Stepper, greedy, sample

__all__ = ["Hypothesis", "Stepper", "beam", "greedy", "sample"]
