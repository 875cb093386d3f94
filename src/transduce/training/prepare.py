"""From a recipe to what a run needs: tokens, batches, and validation pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from transduce.data.batches import Batches
from transduce.data.cache import Encoded, Report, encode_corpus
from transduce.data.corpus import check_files, read_pairs
from transduce.data.stream import Share, Stream
from transduce.data.tokens import Tokens, train_tokens
from transduce.evaluation.evaluate import Item, items_of
from transduce.recipe import Corpus, Data, Recipe
from transduce.storage import default_cache_folder
from transduce.training.ranks import Ranks

Say = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    source_tokens: Tokens
    target_tokens: Tokens
    train: Batches
    valid: Encoded
    items: list[Item]
    """The validation pairs that are decoded."""


def prepare(recipe: Recipe, folder: Path | None, say: Say, ranks: Ranks) -> Prepared:
    """Read, cut and batch. With the folder of a run to resume, its tokens are used, none learnt.

    Of several processes the first learns the tokens, and one on each machine fills the cache.
    """
    data = recipe.data
    for corpus in (data.train, data.valid, data.test):
        if corpus is not None:
            check_files(corpus, data.folder)
    tokens = _shared_tokens(data, folder, ranks)
    say(f"Tokens: {len(tokens[0]):,} of the source, {len(tokens[1]):,} of the target.")

    def encode(corpus: Corpus) -> tuple[Encoded, Report]:
        return encode_corpus(corpus, data, *tokens, default_cache_folder())

    train: Encoded | Stream
    if data.streaming:
        train = Stream(data.train, data, *tokens, Share(ranks.rank, ranks.count, ranks.exchange))
        say("Training pairs are read as they are needed.")
    else:
        train, report = ranks.in_turn(partial(encode, data.train))
        _tell(say, "Training", train, report)
    valid, report = ranks.in_turn(partial(encode, data.valid))
    _tell(say, "Validation", valid, report)
    items = items_of(list(read_pairs(data.valid, data.folder)), data.alternatives)
    return Prepared(
        *tokens,
        _batches(train, recipe),
        valid,
        items[: recipe.validation.limit],
    )


def _batches(corpus: Encoded | Stream, recipe: Recipe) -> Batches:
    if recipe.train.tokens == "auto":
        return Batches(corpus, seed=recipe.seed)  # the run sets the budget once it has a network
    return Batches(corpus, recipe.train.tokens, recipe.seed)


def _shared_tokens(data: Data, folder: Path | None, ranks: Ranks) -> tuple[Tokens, Tokens]:
    if ranks.count == 1:
        return _tokens(data, folder)
    made = [tokens.to_json() for tokens in _tokens(data, folder)] if ranks.first else []
    source, target = json.loads(ranks.exchange(json.dumps(made).encode())[0])
    return Tokens.from_json(source), Tokens.from_json(target)


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
