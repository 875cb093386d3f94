"""Models for the tags of a corpus, where each row has one, such as its language or its source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any, Literal

from transduce.data.text.pairs import Pair, read_pairs
from transduce.recipe import Columns, Recipe
from transduce.recipe.corpus import Where, conditions
from transduce.tasks.folder import TOKENS
from transduce.training.loop import Trained
from transduce.training.own_file.plan import FINE_TUNING, MIN_SHARE

Strategy = Literal["fine-tuned", "by-tag"]
"""Of models for the tags: the first one trained further, or each from the beginning. The name of
the folder that they are in."""
MAX_TAGS = 20
MIN_ROWS = 200  # of a tag, for a model of its own
MIN_VALID = 20  # validation pairs of a tag: fewer do not choose a checkpoint
READ = 100_000  # pairs that are looked at
FINE_TUNING_RATE = 0.3  # of the learning rate: the weights are good already
MIN_UPDATES = 20


def shares_of_tags(recipe: Recipe) -> dict[str, float]:
    """The tags that could have a model of their own, with their shares of the training rows.

    Empty unless each row has one tag, of a few that each have many rows: a language or a source,
    not the features of a word.
    """
    data = recipe.data
    text = recipe.task == "transduce" and recipe.audio is None and not data.streaming
    if not text or not all(_has_tag_column(one) for one in (data.train, data.valid)):
        return {}
    train = _counts(islice(read_pairs(data.train, data.folder), READ))
    if not 2 <= len(train) <= MAX_TAGS or min(train.values()) < MIN_ROWS:
        return {}
    valid = _counts(islice(read_pairs(data.valid, data.folder), READ))
    if any(valid[tag] < MIN_VALID for tag in train):
        return {}
    total = sum(train.values())
    return {tag: count / total for tag, count in sorted(train.items())}


def _has_tag_column(corpus: object) -> bool:
    """Whether the rows of a tag can be read alone, by `where`."""
    return isinstance(corpus, Columns) and corpus.tags is not None


def _counts(pairs: Any) -> Counter[str]:
    """Rows of each tag; empty where a row has none or several."""
    found: Counter[str] = Counter()
    pair: Pair
    for pair in pairs:
        if len(pair.tags) != 1:
            return Counter()
        found[pair.tags[0]] += 1
    return found


def folders_of(tags: Collection[str]) -> dict[str, str]:
    """A name of a folder for each tag: the tag, as far as it can be one."""
    safe = {tag: re.sub(r"[^\w-]+", "_", tag) for tag in tags}
    unique = len({name.lower() for name in safe.values()}) == len(safe)
    return safe if unique else {tag: f"{n}-{safe[tag]}" for n, tag in enumerate(tags, start=1)}


def recipe_of_tag(
    recipe: Recipe, first: Trained, tag: str, share: float, strategy: Strategy
) -> dict[str, Any]:
    """The recipe of the model for a tag, without its minutes; with the vocabularies of the first
    model, so that it can take its place everywhere."""
    made: dict[str, Any] = recipe.model_dump(mode="json")
    part = FINE_TUNING if strategy == "fine-tuned" else 1.0
    factor = part * max(share, MIN_SHARE)
    train, validation, data = made["train"], made["validation"], made["data"]
    train["steps"] = max(round(factor * recipe.train.steps), MIN_UPDATES)
    train["warmup"] = round(factor * recipe.train.warmup)
    train["log_every"] = max(round(factor * recipe.train.log_every), 1)
    validation["every"] = max(round(factor * recipe.validation.every), MIN_UPDATES // 2)
    for name in ("train", "valid", "test"):
        if _has_tag_column(corpus := getattr(recipe.data, name)):
            of_tag = Where(column=corpus.tags, value=tag)
            where = [*conditions(corpus.where), of_tag]
            data[name]["where"] = [one.model_dump(mode="json") for one in where]
    if strategy == "fine-tuned":
        train["start"] = {"from": str(first.folder.absolute())}
        train["lr"] = FINE_TUNING_RATE * recipe.train.lr
    else:
        data["tokens"] = _tokens_of(data["tokens"], first)
    return made


def _tokens_of(tokens: Mapping[str, Any], first: Trained) -> dict[str, Any]:
    """data.tokens, with the files of the first model."""
    files = dict(zip(("source", "target"), TOKENS, strict=True)) | {"both": TOKENS[1]}
    return {
        side: value
        if value is None or side not in files
        else {**value, "file": str(first.folder.absolute() / files[side])}
        for side, value in tokens.items()
    }
