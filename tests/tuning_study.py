"""A recipe of a few words written backwards, small enough to be trained many times."""

from __future__ import annotations

from collections.abc import Callable

from transduce.recipe import Recipe

WORDS = ["ab", "ba", "abc", "cab", "bca", "acb", "cb", "bc", "aab", "abb", "bba", "cca"]
RECIPE = """
name: backwards
data:
  train: {file: train.tsv}
  valid: {file: valid.tsv}
  tokens: {both: {level: character}}
model:
  width: 8
  dropout: 0.1
  encoder: {kind: recurrent, cell: gru}
  decoder: {kind: recurrent, cell: gru}
train: {steps: 9, warmup: 2, lr: 0.01, batch_tokens: 32, log_every: 3, device: cpu}
validation: {every: 1, metric: loss, limit: 2}
metrics: [exact]
"""

Make = Callable[..., Recipe]
