"""Vocabularies of fine-tuning: those of the start model, extended or not; embeddings of tokens that
it has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from transduce import recipe as sections
from transduce.data.text.pairs import read_pairs
from transduce.data.tokens.extend import add_tags, add_tokens, extended, extended_pair, old_pieces
from transduce.data.tokens.sides import (
    SampledPairs,
    reason_of,
    side_texts,
    train_tokens,
    training_tags,
)
from transduce.data.tokens.tokenizer import SPECIALS, Tokens
from transduce.errors import TokensError, TrainingError
from transduce.recipe import Recipe
from transduce.recipe.tasks import TASK_RULES
from transduce.training.fine_tuning.start import StartModel, kept_tokens, same_task


def start_tokens(
    recipe: Recipe, start: StartModel, print_line: Callable[[str], None]
) -> tuple[Tokens, Tokens]:
    """The vocabularies of a run that starts from a model. Raises TokensError."""
    asked, given = recipe.train.start, recipe.data
    assert asked is not None
    how = kept_tokens(recipe, start.recipe)
    if how is None:
        return train_tokens(given, print_line)
    source, target = start.definition.source_tokens, start.definition.target_tokens
    has_labels = TASK_RULES[recipe.task].labels != "none"
    if not same_task(recipe, start.recipe):
        _check_levels(recipe, source, target, has_labels)
    tags = sorted(set(training_tags(given)) - set(source.tags))
    if tags and how == "keep":
        raise TokensError(
            f"the model {start.folder} has no tag <{tags[0]}>; leave out "
            f"{reason_of(tags[0], given)}, or set train.start.tokens to extend, which adds the tag"
        )
    if how == "extend":
        new = _New(tuple(asked.add_tokens), tuple(tags))
        drawn = SampledPairs(given, print_line)

        def texts_of(settings: sections.Tokens, *sides: str) -> Iterable[str]:
            return side_texts(given, drawn.streamed(settings), *sides)

        if given.tokens.both is not None:
            texts = texts_of(given.tokens.both, "source", "target")
            if source.to_json() == target.to_json():
                source = target = new.on(source, given.tokens.both, texts)
            else:
                source, target = new.on_both(source, target, given.tokens.both, texts)
        else:
            assert given.tokens.source is not None
            assert given.tokens.target is not None
            texts = texts_of(given.tokens.source, "source")
            source = new.on(source, given.tokens.source, texts)
            if not has_labels:
                without = _New(new.names)  # tags are of sources
                texts = texts_of(given.tokens.target, "target")
                target = without.on(target, given.tokens.target, texts)
    elif given.tokens.both is not None:
        source, target = one_vocabulary(source, target, start.recipe.data.tokens.both is not None)
    if has_labels:
        target = _labels(recipe, target, start, how)
    return source, target


def one_vocabulary(source: Tokens, target: Tokens, shared: bool) -> tuple[Tokens, Tokens]:
    """The tokens of both sides for a recipe with one vocabulary.

    shared: the two are of a model with one vocabulary already. Of an imported model they may still
    differ: in how texts are cut (opus-mt), or in the language that texts begin with (NLLB).
    """
    return (source, target) if shared and source.to_json() != target.to_json() else (target, target)


@dataclass(frozen=True)
class _New:
    """Tokens and tags to add to a vocabulary, besides what is learned from texts."""

    names: tuple[str, ...]
    tags: tuple[str, ...] = ()

    def on(self, tokens: Tokens, settings: sections.Tokens, texts: Iterable[str]) -> Tokens:
        if self._learns(tokens, settings):
            tokens = extended(tokens, settings, texts)
        return add_tags(add_tokens(tokens, self.names), self.tags)

    def on_both(
        self, source: Tokens, target: Tokens, settings: sections.Tokens, texts: Iterable[str]
    ) -> tuple[Tokens, Tokens]:
        if self._learns(source, settings):
            source, target = extended_pair(source, target, settings, texts)
        one, other = (
            add_tags(add_tokens(tokens, self.names), self.tags) for tokens in (source, target)
        )
        return one, other

    def _learns(self, tokens: Tokens, settings: sections.Tokens) -> bool:
        """Whether there is room for tokens of the training set."""
        if settings.size > len(tokens) or tokens.level == "byte":
            return True
        if self.names or self.tags:
            return False
        raise TokensError(
            f"train.start.tokens is extend, but the vocabulary of the start model has "
            f"{len(tokens):,} tokens already and data.tokens' size is {settings.size:,}: raise it, "
            f"or name tokens in train.start.add_tokens"
        )


def _labels(recipe: Recipe, kept: Tokens, start: StartModel, how: str) -> Tokens:
    """The labels: of the start model where it has all of the corpus, otherwise the corpus' own."""
    data = recipe.data
    assert data.tokens.target is not None
    texts = [pair.target for pair in read_pairs(data.train, data.folder)]
    own = Tokens.train(data.tokens.target, texts)
    if not same_task(recipe, start.recipe):
        return own
    missing = [name for name in own.names() if name not in set(kept.names())]
    if not missing:
        return kept
    if how == "extend":
        return extended(kept, data.tokens.target, texts)
    assert recipe.train.start is not None
    if recipe.train.start.tokens == "keep":
        raise TokensError(
            f"train.start.tokens is keep, but the model {start.folder} does not know the label "
            f"{missing[0]!r}; set it to extend, or leave it out for labels of this corpus alone"
        )
    return own


def _check_levels(recipe: Recipe, source: Tokens, target: Tokens, has_labels: bool) -> None:
    """Raise TrainingError where vocabularies of another task cannot be kept."""
    tokens = recipe.data.tokens
    wanted = {"source": tokens.both or tokens.source, "target": tokens.both or tokens.target}
    for side, found in {"source": source, "target": target}.items():
        section = wanted[side]
        assert section is not None
        if side == "target" and has_labels:
            continue
        if section.level != found.level:
            raise TrainingError(
                f"train.start.tokens keeps the vocabularies of the start model, but its {side} "
                f"tokens are {found.level}s and the recipe asks for {section.level}s; leave out "
                f"train.start.tokens, or change data.tokens"
            )


class MappedRows(NamedTuple):
    """Rows of embeddings or of an output layer for another vocabulary."""

    rows: Tensor
    same: int
    """Tokens that the other vocabulary has too."""
    mean: int
    """New tokens whose rows are the mean of the rows of their pieces."""
    new: int
    """New tokens without a known piece, whose rows stay as they were initialised."""

    @property
    def outcome(self) -> str:
        parts = [(self.same, "known"), (self.mean, "from their pieces"), (self.new, "random")]
        return ", ".join(f"{count:,} {how}" for count, how in parts if count)


def map_rows(own: Tensor, there: Tensor, new: Tokens, old: Tokens, first: int = 0) -> MappedRows:
    """A row for each token of `new`: that of the same token in `old`, else the mean of its pieces.

    own: what the rows were initialised with. first: the token of the first row (4 where specials
    have none).
    """
    known = {name: number for number, name in enumerate(old.names())}
    rows, counts = own.detach().clone(), [0, 0, 0]
    last, pieces_of = len(there) + first, old_pieces(old, new)
    for row, name in enumerate(new.names()[first : first + len(own)]):
        number = row + first
        if known.get(name, last) < last and known[name] >= first:
            rows[row] = there[known[name] - first]
            counts[0] += 1
            continue
        pieces = [] if number < len(SPECIALS) else pieces_of(number)
        pieces = [piece for piece in pieces if first <= piece < last]
        if pieces:
            rows[row] = there[torch.tensor(pieces) - first].float().mean(dim=0).to(rows.dtype)
        counts[1 if pieces else 2] += 1
    return MappedRows(rows, *counts)
