"""Bidirectional decoding: a network learns its targets from left to right and from right to left.

A source that ends with RIGHT_TO_LEFT is to be written from its last token to its first. One network
for both directions, told apart by a token, is the simplest of the bidirectional decoders that Canby
& Hockenmaier 2023 compare (https://aclanthology.org/2023.findings-emnlp.297).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transduce import recipe
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.subword_regularization import Vary
from transduce.data.tokens.tokenizer import BEGIN

# No text has this token, and every vocabulary does. At the end of a source it moves no other token,
# whose position may be its number in the extended vocabulary of a model that copies.
RIGHT_TO_LEFT = BEGIN


def right_to_left(source: Sequence[int]) -> list[int]:
    """The ids of a source whose target is to be written from right to left."""
    return [*source, RIGHT_TO_LEFT]


def reversing(data: recipe.Data) -> Vary | None:
    """The function that turns the targets of a random half of a corpus around; None if the recipe
    does not ask for it."""
    if not data.bidirectional:
        return None

    def vary(encoded: Encoded, random: np.random.Generator) -> Encoded:
        drawn = random.random(len(encoded)) < 0.5
        ends = encoded.source_offsets[1:][drawn]
        before = np.concatenate([[0], np.cumsum(drawn)])
        first, last = encoded.target_offsets[:-1], encoded.target_offsets[1:] - 1
        rows = np.repeat(np.arange(len(encoded)), encoded.lengths[1])
        places = np.arange(len(rows))
        mirrored = np.where(drawn[rows], first[rows] + last[rows] - places, places)
        arrays = {
            "source_ids": np.insert(encoded.source_ids, ends, RIGHT_TO_LEFT),
            "source_offsets": encoded.source_offsets + before,
            "target_ids": np.asarray(encoded.target_ids)[mirrored],
        }
        return type(encoded)(**{**vars(encoded), **arrays})

    return vary
