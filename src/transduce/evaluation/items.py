"""What a model is evaluated on: sources, and the targets that count as right."""

from __future__ import annotations

from dataclasses import dataclass

from transduce.data.text.pairs import Pair
from transduce.data.tokens.tokenizer import Tokens
from transduce.recipe.tasks import TASK_RULES


@dataclass(frozen=True)
class Item:
    """One source and its accepted references."""

    source: str
    references: list[str]
    group: str = ""
    """The first of the source's tags, such as its language; for audio, the value of `group`."""
    tags: tuple[str, ...] = ()
    column: str = ""
    """What the corpus's column `group` has of it."""
    place: tuple[str, int] = ("", 0)
    """The file, as the corpus names it, and the line from 1."""


def items_of(pairs: list[Pair], alternatives: bool) -> list[Item]:
    """One item for each pair; or, for a dictionary, one for each source with all its targets."""
    if not alternatives:
        return [_item(pair, [pair.target]) for pair in pairs]
    found: dict[str, Item] = {}
    for pair in pairs:
        item = found.setdefault(pair.source, _item(pair, []))
        item.references.append(pair.target)
    return list(found.values())


def _item(pair: Pair, references: list[str]) -> Item:
    group = pair.tags[0] if pair.tags else pair.group
    place = (pair.file, pair.line)
    return Item(pair.source, references, group, pair.tags, pair.group, place)


def measurable(pairs: list[Pair], task: str, source_tokens: Tokens) -> list[Pair]:
    """The pairs that can be evaluated: for token labels, those with as many labels as tokens."""
    if TASK_RULES[task].labels != "words":
        return pairs
    sources = source_tokens.encode_batch([pair.source for pair in pairs])
    return [
        pair
        for pair, ids in zip(pairs, sources, strict=True)
        if len(ids) == len(pair.target.split())
    ]
