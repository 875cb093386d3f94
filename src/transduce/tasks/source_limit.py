"""How much of a long source is read: search over it costs the square of its length."""

from __future__ import annotations

from collections.abc import Sequence

from transduce.data.tokens.tokenizer import Tokens
from transduce.recipe import Recipe

TIMES = 4  # what training has seen: beyond it an output is no good any more
LEAST_WRITTEN = 256  # tokens of a source that are read in any case before an output is written,
LEAST_LABELLED = 4096  # or labelled, which costs one pass
NOT_READ = "the rest was not read"
LETTERS = 100  # of a token, at most: what is longer than that many of each is not even tokenised

Ids = list[list[int]]


def longest_source(recipe: Recipe, least: int = LEAST_WRITTEN) -> int:
    """Tokens of a source that are read, where a model's positions do not end before."""
    return max(least, TIMES * recipe.data.max_length)


def encode_cut(
    tokens: Tokens, texts: Sequence[str], recipe: Recipe, room: int, least: int = LEAST_WRITTEN
) -> tuple[Ids, dict[int, str]]:
    """The ids of texts, cut where they are too long, and of those cut how long they are.

    room: the tokens that the model has positions for.
    """
    longest = min(longest_source(recipe, least), room)
    most = longest * LETTERS
    rows = tokens.encode_batch([text[:most] for text in texts])
    lengths = {}
    for index, (text, ids) in enumerate(zip(texts, rows, strict=True)):
        if len(text) > most or len(ids) > longest:
            size = f"{len(text):,} letters" if len(text) > most else f"{len(ids)} tokens"
            lengths[index] = f"has {size}; {why(recipe, longest, room)}"
    return [ids[:longest] for ids in rows], lengths


def why(recipe: Recipe, longest: int, room: int) -> str:
    """Why no more than so many tokens are read."""
    if longest == room:
        return f"this model has positions for {room}"
    learnt = recipe.data.max_length
    return f"this model learnt from at most {learnt} tokens and reads {longest}"


def unread(lengths: dict[int, str]) -> dict[int, str]:
    """What to say of sources that were cut."""
    return {index: f"the source {said}: {NOT_READ}" for index, said in lengths.items()}
