"""What a model cannot read of a source: what is too long, as attention costs the square of its
length, and tokens that it does not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from transduce.data.tokens.tokenizer import UNKNOWN
from transduce.data.tokens.words import Ids
from transduce.recipe import Recipe

TIMES = 4  # the maximum length in training: outputs for longer sources are useless
MIN_GENERATE = 256  # tokens that are always read where an output is generated,
MIN_LABEL = 4096  # or where sources are labelled, which takes a single pass
TRUNCATED = "it was truncated"
LETTERS = 100  # maximum characters per token: text beyond that is not even tokenized

Row = TypeVar("Row", list[int], Ids)


def max_source_tokens(recipe: Recipe, minimum: int = MIN_GENERATE) -> int:
    """The maximum tokens of a source, apart from the model's positions. Outputs are of as much of
    it as training has read where it cut longer ones."""
    if minimum == MIN_GENERATE and recipe.data.overlong == "truncate":
        return recipe.data.max_length
    return max(minimum, TIMES * recipe.data.max_length)


def encode_truncated(
    encode: Callable[[list[str]], list[Row]],
    texts: Sequence[str],
    recipe: Recipe,
    capacity: int,
    minimum: int = MIN_GENERATE,
) -> tuple[list[Row], dict[int, str]]:
    """The ids of texts, truncated where too long, and a description of those truncated.

    encode: gives the ids of texts. capacity: the number of tokens that the model has positions for.
    """
    longest = min(max_source_tokens(recipe, minimum), capacity)
    maximum = longest * LETTERS
    rows = encode([text[:maximum] for text in texts])
    lengths = {}
    for index, (text, ids) in enumerate(zip(texts, rows, strict=True)):
        if len(text) > maximum or len(ids) > longest:
            size = f"{len(text):,} letters" if len(text) > maximum else f"{len(ids)} tokens"
            lengths[index] = f"has {size}; {limit_reason(recipe, longest, capacity)}"
    return shortened(rows, longest), lengths


def shortened(rows: list[Row], longest: int) -> list[Row]:
    """The rows, those that are too long without their ends."""
    return [ids if len(ids) <= longest else ids[:longest] for ids in rows]


def limit_reason(recipe: Recipe, longest: int, capacity: int) -> str:
    """Why a source is truncated at `longest` tokens."""
    if longest == capacity:
        return f"this model has positions for {capacity}"
    trained = recipe.data.max_length
    return f"this model was trained on at most {trained} tokens and reads {longest}"


def truncation_warnings(lengths: dict[int, str]) -> dict[int, str]:
    """The warnings for sources that were truncated."""
    return {index: f"the source {text}; {TRUNCATED}" for index, text in lengths.items()}


def unknown_warning(ids: list[int] | Ids) -> str:
    """A warning for a source of mostly unknown tokens, such as capitals or another script."""
    unknown = ids.count(UNKNOWN) if isinstance(ids, list) else np.count_nonzero(ids == UNKNOWN)
    if 2 * unknown <= len(ids):
        return ""
    return (
        f"{unknown} of its {len(ids)} tokens are not in the vocabulary; check that case and script "
        f"match the training data"
    )
