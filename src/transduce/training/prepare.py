"""From a recipe to what a run needs: tokens, batches, and validation pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from transduce.data.audio.corpus import Recorded, encode_recordings
from transduce.data.batches.batch import Batches
from transduce.data.batches.blocks import cut
from transduce.data.batches.stream import Share, Stream
from transduce.data.cache.tokenised import Encoded, Report, encode_corpus
from transduce.data.text.pairs import called, check_files, check_kind, is_running, read_pairs, told
from transduce.data.tokens.sides import train_tokens
from transduce.data.tokens.subword_regularization import splitting
from transduce.data.tokens.tokenizer import SPECIALS, Tokens
from transduce.errors import DataError
from transduce.evaluation.evaluate import Item, check_bleu, items_of, measurable
from transduce.evaluation.perplexity import Given, given_text
from transduce.recipe import Corpus, Data, Recipe
from transduce.recipe.tasks import TASK_RULES
from transduce.storage import default_cache_folder
from transduce.tasks.audio_input import AudioSegment
from transduce.training.distributed.processes import Processes

MOST_NAMED = 10

Say = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    source_tokens: Tokens
    target_tokens: Tokens
    train: Batches
    valid: Encoded
    valid_sources: list[str]
    """The text of each row of it."""
    items: list[Item]
    """The validation pairs that are decoded."""
    given: Given | None = None
    """The validation text of a language model, which decodes nothing."""


def prepare(recipe: Recipe, folder: Path | None, say: Say, ranks: Processes) -> Prepared:
    """Read, cut and batch. With the folder of a run to resume, its tokens are used, none learnt.

    Of several processes the first learns the tokens, and one on each machine fills the cache.
    """
    data, rules = recipe.data, TASK_RULES[recipe.task]
    aligned = rules.labels == "words"
    for corpus in (data.train, data.valid, data.test):
        if corpus is not None:
            check_files(corpus, data.folder)
            check_kind(corpus, recipe)
    check_bleu(recipe, recipe.metrics, [])
    tokens = _shared_tokens(data, folder, say, ranks)
    if rules.labels != "none" and len(tokens[1]) < len(SPECIALS) + 2:
        raise DataError(
            f"{called(data.train)} has one label alone: there is nothing to tell apart; give pairs "
            f"with at least two"
        )
    if recipe.task == "continue" or (recipe.audio is not None and tokens[0] is tokens[1]):
        say(f"Tokens: {len(tokens[1]):,}.")
    elif recipe.audio is not None and rules.labels != "none":
        say(f"Labels: {len(tokens[1]) - len(SPECIALS):,}.")
    elif recipe.audio is not None:
        say(f"Tokens: {len(tokens[0]):,} of what is said, {len(tokens[1]):,} of the target.")
    else:
        say(f"Tokens: {len(tokens[0]):,} of the source, {len(tokens[1]):,} of the target.")

    def encode(corpus: Corpus) -> tuple[Encoded, Report]:
        if recipe.audio is not None:
            cache_folder = default_cache_folder()
            return encode_recordings(corpus, data, recipe.audio, *tokens, cache_folder)
        return encode_corpus(corpus, data, *tokens, default_cache_folder(), aligned)

    train: Encoded | Stream
    if data.streaming:
        share = Share(ranks.rank, ranks.count, ranks.exchange)
        train = Stream(data.train, data, *tokens, share, aligned, recipe.seed)
        say("Training pairs are read as they are needed.")
    else:
        train, report = ranks.in_turn(partial(encode, data.train))
        if recipe.model.ctc_weight and isinstance(train, Recorded):
            what = "with more said than CTC has states for: attention alone learns them"
            report.warnings += told(train.too_fast(), what, [])
        _tell(say, "Training", train, report)
    valid, report = ranks.in_turn(partial(encode, data.valid))
    _tell(say, "Validation", valid, report)
    batches = _batches(train, recipe)
    batches.vary = splitting(data, *tokens)
    pairs = list(read_pairs(data.valid, data.folder))
    if recipe.task == "continue":
        given = given_text(pairs, tokens[1], is_running(data.valid))
        valid = cut(valid, data.max_length) if is_running(data.valid) else valid
        return Prepared(*tokens, batches, valid, [], [], given)
    if isinstance(valid, Recorded):  # what cannot be heard is told of once, and not decoded
        pairs = [
            # Validations hear what is in the cache already: no file is read again.
            replace(pairs[number], source=AudioSegment.of(pairs[number].source, valid.wave(row)))
            for row, number in enumerate(valid.numbers.tolist())
        ]
        valid_numbers = range(len(pairs))
    else:
        valid_numbers = valid.numbers.tolist()
    sources = [pairs[number].source for number in valid_numbers]
    if rules.labels != "none" and report.target_unknown:
        new = list(tokens[1].unknowns(pair.target for pair in pairs))
        named = ", ".join(new[:MOST_NAMED]) + (", …" if len(new) > MOST_NAMED else "")
        say(f"  warning: labels that training has not count as wrong: {named}")
    judged = measurable(pairs, recipe.task, tokens[0])
    items = items_of(judged, data.multiple_references)[: recipe.validation.limit]
    if warning := check_bleu(recipe, recipe.metrics, items):
        say(f"  warning: {warning}")
    return Prepared(*tokens, batches, valid, sources, items)


def _batches(corpus: Encoded | Stream, recipe: Recipe) -> Batches:
    ends = TASK_RULES[recipe.task].ends
    block = recipe.data.max_length if is_running(recipe.data.train) else None
    if recipe.train.batch_tokens == "auto":  # the run sets the budget once it has a network
        return Batches(corpus, seed=recipe.seed, ends=ends, block=block)
    return Batches(corpus, recipe.train.batch_tokens, recipe.seed, ends, block)


def _shared_tokens(
    data: Data, folder: Path | None, say: Say, ranks: Processes
) -> tuple[Tokens, Tokens]:
    if ranks.count == 1:
        return _tokens(data, folder, say)
    made = [tokens.to_json() for tokens in _tokens(data, folder, say)] if ranks.first else []
    source, target = json.loads(ranks.exchange(json.dumps(made).encode())[0])
    return Tokens.from_json(source), Tokens.from_json(target)


def _tokens(data: Data, folder: Path | None, say: Say) -> tuple[Tokens, Tokens]:
    if folder is None:
        return train_tokens(data, say)
    source, target = (Tokens.load(folder / f"{side}.tokens.json") for side in ("source", "target"))
    return (source, source) if data.tokens.both is not None else (source, target)


def _tell(say: Say, name: str, corpus: Encoded, report: Report) -> None:
    counts = f"{report.source_tokens:,} source and {report.target_tokens:,} target tokens"
    if isinstance(corpus, Recorded):
        minutes = int(corpus.source_offsets[-1]) / corpus.rate / 60
        counts = f"{minutes:,.1f} minutes and {report.target_tokens:,} target tokens"
        say(f"{name}: {len(corpus):,} recordings, {counts}.")
    elif report.source_tokens:
        say(f"{name}: {len(corpus):,} pairs, {counts}.")
    else:
        say(f"{name}: {len(corpus):,} lines, {report.target_tokens:,} tokens.")
    for sentence in report.sentences():
        say(f"  warning: {sentence}")
