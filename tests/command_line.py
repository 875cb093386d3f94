"""The command line as tests type it, and what they have of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

TINY = """
name: tiny
data:
  train: {source: train.src, target: train.tgt}
  valid: {file: valid.tsv}
  tokens:
    source: {level: character}
    target: {level: symbol}
model:
  width: 16
  encoder: {layers: 1, heads: 2, feed_forward: 16}
  decoder: {layers: 1, heads: 2, feed_forward: 16}
decode: {beam: 2, max_ratio: 1, max_extra: 2}
metrics: [per, exact]
"""


class Ended(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.split("\n")[:-1]


Transduce = Callable[..., Ended]


def sentence(ended: Ended) -> str:
    """The one sentence on standard error of a command that a person got wrong."""
    assert ended.status == 2
    assert ended.out == ""
    assert ended.err.startswith("transduce: ")
    assert ended.err.count("\n") == 1
    return ended.err.removeprefix("transduce: ").rstrip("\n")
