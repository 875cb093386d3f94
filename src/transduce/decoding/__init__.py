"""Search: from a model's next-token probabilities to whole sequences."""

from transduce.decoding.search import Hypothesis, Stepper, beam, greedy, sample

__all__ = ["Hypothesis", "Stepper", "beam", "greedy", "sample"]
