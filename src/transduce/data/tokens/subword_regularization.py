"""Subword regularisation, as BPE-dropout: subwords are split at random, so that segmentations vary.

BPE builds a token by merging two others, repeatedly. Undoing some of these merges, differently each
time, exposes the model to many segmentations of a word (Provilkov et al. 2020,
https://aclanthology.org/2020.acl-main.170). It works on ids alone, and is deterministic for a seed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from transduce import recipe
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.tokenizer import Tokens

Vary = Callable[[Encoded, np.random.Generator], Encoded]


def splitting(data: recipe.Data, source_tokens: Tokens, target_tokens: Tokens) -> Vary | None:
    """The function that splits subwords of a corpus as a recipe asks; None if it does not."""
    sides = data.tokens
    shares = {
        "source": (sides.both or sides.source or recipe.Tokens()).bpe_dropout,
        "target": (sides.both or sides.target or recipe.Tokens()).bpe_dropout,
    }
    if not any(shares.values()):
        return None
    halves = {"source": source_tokens.halves(), "target": target_tokens.halves()}

    def vary(encoded: Encoded, random: np.random.Generator) -> Encoded:
        arrays = dict(vars(encoded))
        for side, share in shares.items():
            if share:
                # With audio, the text that the source's tokens are of is the transcript.
                named = "transcript" if side == "source" and "transcript_ids" in arrays else side
                ids, offsets = f"{named}_ids", f"{named}_offsets"
                arrays[ids], arrays[offsets] = split_subwords(
                    arrays[ids], arrays[offsets], halves[side], share, random, data.max_length
                )
        return type(encoded)(**arrays)

    return vary


def split_subwords(
    ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    halves_V2: NDArray[np.int32],
    share: float,
    random: np.random.Generator,
    longest: int,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Each token with probability `share` split into the two that it was merged from, recursively.

    halves_V2 has -1 for a token that was not merged from others. A row that would have more than
    `longest` tokens stays unchanged.
    """
    whole_ids, whole_rows = (
        np.asarray(ids),
        np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)),
    )
    ids, rows = whole_ids, whole_rows
    drawn = np.ones(len(ids), bool)
    while drawn.any():
        split = drawn & (halves_V2[ids, 0] >= 0)
        split[split] = random.random(int(split.sum())) < share
        counts = 1 + split
        first = (np.cumsum(counts) - counts)[split]
        parts = halves_V2[ids[split]]
        ids, rows = np.repeat(ids, counts), np.repeat(rows, counts)
        ids[first], ids[first + 1] = parts[:, 0], parts[:, 1]
        drawn = np.zeros(len(ids), bool)
        drawn[first] = drawn[first + 1] = True
    lengths = np.bincount(rows, minlength=len(offsets) - 1)
    kept = lengths > longest
    lengths = np.where(kept, np.diff(offsets), lengths)
    found = np.empty(int(lengths.sum()), np.int32)
    is_kept = np.repeat(kept, lengths)
    found[is_kept] = whole_ids[kept[whole_rows]]
    found[~is_kept] = ids[~kept[rows]]
    return found, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
