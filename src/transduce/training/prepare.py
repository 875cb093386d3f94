"""From a recipe to what a run needs: tokens, batches, and validation pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transduce.data.batches import Batches, Stream
from transduce.data.cache import Encoded, Report, default_cache_folder, encode_corpus
from transduce.data.corpus import check_files, read_pairs
from transduce.data.tokens import Tokens, train_tokens
from transduce.evaluation.evaluate import Item, items_of
from transduce.recipe import Data, Recipe

Say = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    source_tokens: Tokens
    target_tokens: Tokens
    train: Batches
    valid: Encoded
    items: list[Item]
    """The validation pairs that are decoded."""


def prepare(recipe: Recipe, folder: Path | None, say: Say) -> Prepared:
    """Read, cut and batch. With the folder of a run to resume, its tokens are used, none learnt."""
    data = recipe.data
    for corpus in (data.train, data.valid, data.test):
        if corpus is not None:
            check_files(corpus, data.folder)
    tokens = _tokens(data, folder)
    say(f"Tokens: {len(tokens[0]):,} of the source, {len(tokens[1]):,} of the target.")
    train: Encoded | Stream
    if data.streaming:
        train = Stream(data.train, data, *tokens)
        say("Training pairs are read as they are needed.")
    else:
        train, report = encode_corpus(data.train, data, *tokens, default_cache_folder())
        _tell(say, "Training", train, report)
    valid, report = encode_corpus(data.valid, data, *tokens, default_cache_folder())
    _tell(say, "Validation", valid, report)
    items = items_of(list(read_pairs(data.valid, data.folder)), data.alternatives)
    return Prepared(
        *tokens,
        Batches(train, recipe.train.tokens, recipe.seed),
        valid,
        items[: recipe.validation.limit],
    )


def _tokens(data: Data, folder: Path | None) -> tuple[Tokens, Tokens]:
    if folder is None:
        return train_tokens(data)
    source, target = (Tokens.load(folder / f"{side}.tokens.json") for side in ("source", "target"))
    return source, target


def _tell(say: Say, name: str, corpus: Encoded, report: Report) -> None:
    counts = f"{report.source_tokens:,} source and {report.target_tokens:,} target tokens"
    say(f"{name}: {len(corpus):,} pairs, {counts}.")
    for sentence in report.sentences():
        say(f"  warning: {sentence}")
