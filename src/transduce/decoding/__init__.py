"""Decoding: greedy search, beam search and sampling, constraints, ensembles, scores."""

from transduce.decoding.search.beam import beam
from transduce.decoding.search.greedy import Hypothesis, Stepper, greedy, sample

__all__ = ["Hypothesis", "Stepper", "beam", "greedy", "sample"]
