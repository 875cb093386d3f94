"""Decoding: greedy search, beam search and sampling, constraints, ensembles, scores."""

from transduce.decoding.search.beam import beam
from transduce.decoding.search.greedy import greedy, sample
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.decoding.search.stepper import Stepper

__all__ = ["Hypothesis", "Stepper", "beam", "greedy", "sample"]
