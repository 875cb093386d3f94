"""Augmentation of the training set as a recipe asks for it: each epoch reads another version."""

from __future__ import annotations

import numpy as np

from transduce import recipe
from transduce.data.cache.tokenised import Encoded
from transduce.data.text.tags import UNKNOWN_TAG
from transduce.data.tokens.bidirectional import reversing
from transduce.data.tokens.hallucination import hallucinating
from transduce.data.tokens.subword_regularization import Vary, splitting
from transduce.data.tokens.tokenizer import Tokens


def augmenting(
    data: recipe.Data, source_tokens: Tokens, target_tokens: Tokens, *last: Vary | None
) -> Vary | None:
    """The function that varies a corpus in each epoch; None if nothing is asked for.

    last: what follows all of it, in this order.
    """
    made = [make(data, source_tokens, target_tokens) for make in (splitting, hallucinating)]
    made += [hiding_tags(data, source_tokens), shuffling(data, source_tokens), reversing(data)]
    made += last
    steps = [step for step in made if step is not None]
    if not steps:
        return None

    def vary(encoded: Encoded, random: np.random.Generator) -> Encoded:
        for step in steps:
            encoded = step(encoded, random)
        return encoded

    return vary


def shuffling(data: recipe.Data, source_tokens: Tokens) -> Vary | None:
    """The function that puts the tags of each source into a random order."""
    if not data.shuffle_tags:
        return None
    tags = list(source_tokens.tags.values())

    def vary(encoded: Encoded, random: np.random.Generator) -> Encoded:
        ids = np.asarray(encoded.source_ids)
        rows = np.repeat(np.arange(len(encoded)), encoded.lengths[0])
        # All other tokens come after the tags, in their order.
        places = np.where(np.isin(ids, tags), random.random(len(ids)), 1.0 + np.arange(len(ids)))
        return type(encoded)(**{**vars(encoded), "source_ids": ids[np.lexsort((places, rows))]})

    return vary


def hiding_tags(data: recipe.Data, source_tokens: Tokens) -> Vary | None:
    """The function that makes a share of the tags unknown, as tags that training does not have."""
    if not data.unknown_tags:
        return None
    tags, unknown = list(source_tokens.tags.values()), source_tokens.tags[UNKNOWN_TAG]

    def vary(encoded: Encoded, random: np.random.Generator) -> Encoded:
        ids = np.array(encoded.source_ids)
        hidden = np.isin(ids, tags) & (random.random(len(ids)) < data.unknown_tags)
        ids[hidden] = unknown
        return type(encoded)(**{**vars(encoded), "source_ids": ids})

    return vary
