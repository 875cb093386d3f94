"""From a recipe to what a run needs: tokenizers, batches, and validation data."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np

from transduce.data.audio.concatenate import concatenating
from transduce.data.audio.corpus import AudioCorpus, encode_recordings
from transduce.data.audio.ctc_states import states_needed, too_short_for_ctc
from transduce.data.audio.room import in_rooms
from transduce.data.batches.blocks import cut
from transduce.data.batches.bucketing import Batches
from transduce.data.batches.mixing import Mix, mix_of
from transduce.data.batches.streaming_dataset import STREAMED, RankShard, StreamingDataset
from transduce.data.cache.learned_tokens import learned_tokens
from transduce.data.cache.tokenised import Encoded, Read, Report, encode_corpus
from transduce.data.filters.rules import rules_of
from transduce.data.text.columns import LOOKED_AT
from transduce.data.text.pairs import (
    ReadingCounts,
    check_files,
    check_kind,
    corpus_name,
    is_running,
    read_pairs,
)
from transduce.data.tokens.augmentation import augmenting
from transduce.data.tokens.hallucination import stems_in_words
from transduce.data.tokens.subword_regularization import Vary
from transduce.data.tokens.tokenizer import SPECIALS, Tokens
from transduce.errors import DataError
from transduce.evaluation.items import Item, items_of, measurable
from transduce.evaluation.perplexity import ScoredText, text_to_score
from transduce.evaluation.score import check_bleu
from transduce.garbage import no_garbage_collection
from transduce.recipe import Corpus, Recipe
from transduce.recipe.model import max_length_of
from transduce.recipe.tasks import TASK_RULES
from transduce.storage import default_cache_folder
from transduce.tasks.audio_input import AudioSegment
from transduce.training.distributed.processes import Processes
from transduce.training.fine_tuning.start import StartModel, kept_tokens
from transduce.training.fine_tuning.vocabulary import one_vocabulary, start_tokens

MAX_NAMED = 10

Print = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    source_tokens: Tokens
    target_tokens: Tokens
    train: Batches
    valid: Encoded
    valid_sources: list[str]
    """The text of each of its rows."""
    items: list[Item]
    """The validation pairs that are decoded."""
    given: ScoredText | None = None
    """The validation text of a language model, which decodes nothing."""

    @property
    def extent(self) -> str:
        """The size of the training corpus, in words."""
        corpus = self.train.corpus
        if not isinstance(corpus, Encoded):
            return f"{corpus.rows:,} {STREAMED}"
        return f"{len(corpus):,} pairs with {corpus.target_ids.size:,} target tokens"


@no_garbage_collection()
def prepare(
    recipe: Recipe,
    folder: Path | None,
    print_line: Print,
    ranks: Processes,
    start: StartModel | None = None,
) -> Prepared:
    """Read, tokenise and batch the data. To resume, the tokenizers of the run's folder are used;
    those of a start model as train.start asks.

    Of several processes the first trains the tokenizers, and one on each machine fills the cache.
    """
    data, rules = recipe.data, TASK_RULES[recipe.task]
    aligned, copied = rules.labels == "words", recipe.model.copies
    for corpus in (data.train, data.valid, data.test):
        if corpus is not None:
            check_files(corpus, data.folder)
            check_kind(corpus, recipe)
    check_bleu(recipe, recipe.metrics, [])
    tokens = _shared_tokens(recipe, folder, print_line, ranks, start)
    if rules.labels != "none" and len(tokens[1]) < len(SPECIALS) + 2:
        raise DataError(
            f"{corpus_name(data.train)} has only one label, so there is nothing to learn; give "
            f"pairs with at least two"
        )
    if recipe.task == "language_modeling" or (recipe.audio is not None and tokens[0] is tokens[1]):
        print_line(f"Vocabulary: {len(tokens[1]):,} tokens.")
    elif recipe.audio is not None and rules.labels != "none":
        print_line(f"Labels: {len(tokens[1]) - len(SPECIALS):,}.")
    elif recipe.audio is not None:
        print_line(
            f"Vocabulary: {len(tokens[0]):,} transcript tokens, {len(tokens[1]):,} target tokens."
        )
    elif rules.labels != "none":
        labels = len(tokens[1]) - len(SPECIALS)
        print_line(f"Vocabulary: {len(tokens[0]):,} source tokens, {labels:,} labels.")
    else:
        print_line(
            f"Vocabulary: {len(tokens[0]):,} source tokens, {len(tokens[1]):,} target tokens."
        )

    def encode(corpus: Corpus, read: Read | None = None) -> tuple[Encoded, Report]:
        rules = rules_of(data) if corpus is data.train else None
        if recipe.audio is not None:
            cache_folder = default_cache_folder()
            capacity = max_length_of(recipe.model.decoder)
            return encode_recordings(corpus, data, recipe.audio, *tokens, cache_folder, capacity)
        cache_folder = default_cache_folder()
        return encode_corpus(corpus, data, *tokens, cache_folder, aligned, copied, rules, read)

    train: Encoded | StreamingDataset
    mix: Mix | None = None
    if data.streaming:
        shard = RankShard(ranks.rank, ranks.count, ranks.exchange)
        train = StreamingDataset(data.train, data, *tokens, shard, aligned, recipe.seed, copied)
        ranks.in_turn(partial(train.open, print_line))
        print_line(f"Training: {train.rows:,} rows, streamed.")
        counts = ReadingCounts()
        deque(islice(read_pairs(data.train, data.folder, counts), LOOKED_AT), maxlen=0)
        for sentence in counts.notes:
            print_line(f"  warning: {sentence}")
    else:
        train, report = ranks.in_turn(partial(encode, data.train))
        if recipe.model.ctc_weight and recipe.audio and isinstance(train, AudioCorpus):
            needed = states_needed(train.transcript_ids, train.transcript_offsets)
            short = too_short_for_ctc(np.diff(train.source_offsets), needed, recipe.audio)
            report.warnings += short.sentences()
        _print_corpus(print_line, "Training", train, report)
        if sentence := stems_in_words(data, train, tokens):
            print_line(f"  {sentence}")
        mix = mix_of(data, train.numbers)
        for sentence in [] if mix is None else mix.sentences():
            print_line(f"  {sentence}")
        unknown = report.source_unknown + report.target_unknown
        kept = start is not None and kept_tokens(recipe, start.recipe) == "keep"
        if kept and unknown and recipe.train.adapter is None:
            print_line("  train.start.tokens: extend adds new tokens to the vocabulary.")
    counts = ReadingCounts()
    pairs = list(read_pairs(data.valid, data.folder, counts))
    valid, report = ranks.in_turn(partial(encode, data.valid, (pairs, counts)))
    _print_corpus(print_line, "Validation", valid, report)
    batches = _batches(train, recipe)
    of_audio: tuple[Vary | None, ...] = ()
    if recipe.audio is not None:
        capacity = max_length_of(recipe.model.decoder)
        of_audio = (
            concatenating(data, recipe.audio, *tokens, capacity),
            in_rooms(recipe.audio, data.folder, print_line),
        )
    batches.vary = augmenting(data, *tokens, *of_audio)
    batches.mix = mix
    if recipe.task == "language_modeling":
        given = text_to_score(pairs, tokens[1], is_running(data.valid))
        valid = cut(valid, data.max_length) if is_running(data.valid) else valid
        return Prepared(*tokens, batches, valid, [], [], given)
    if isinstance(valid, AudioCorpus):  # unreadable audio is reported once, and not decoded
        pairs = [
            # Validation reads audio from the cache: no file is read again.
            pairs[number]._replace(source=AudioSegment.of(pairs[number].source, valid.wave(row)))
            for row, number in enumerate(valid.numbers.tolist())
        ]
        valid_numbers = range(len(pairs))
    else:
        valid_numbers = valid.numbers.tolist()
    sources = [pairs[number].source for number in valid_numbers]
    if rules.labels != "none" and report.target_unknown:
        new = list(tokens[1].unknowns(pair.target for pair in pairs))
        named = ", ".join(new[:MAX_NAMED]) + (", …" if len(new) > MAX_NAMED else "")
        print_line(f"  warning: labels that do not occur in training count as wrong: {named}")
    measured = measurable(pairs, recipe.task, tokens[0])
    items = sampled(items_of(measured, data.multiple_references), recipe.validation.limit)
    if warning := check_bleu(recipe, recipe.metrics, items):
        print_line(f"  warning: {warning}")
    return Prepared(*tokens, batches, valid, sources, items)


def sampled(items: list[Item], limit: int | None) -> list[Item]:
    """At most `limit` of the items, in their order: a random sample, as the first of a sorted file
    are all alike. It is the same in every run, whatever its seed, so that runs can be compared."""
    if limit is None or limit >= len(items):
        return items
    return [items[place] for place in sorted(Random(1).sample(range(len(items)), limit))]


def _batches(corpus: Encoded | StreamingDataset, recipe: Recipe) -> Batches:
    ends = TASK_RULES[recipe.task].ends
    block = recipe.data.max_length if is_running(recipe.data.train) else None
    if recipe.train.batch_tokens == "auto":  # the run sets the batch size once it has a network
        return Batches(corpus, seed=recipe.seed, ends=ends, block=block)
    return Batches(corpus, recipe.train.batch_tokens, recipe.seed, ends, block)


def _shared_tokens(
    recipe: Recipe,
    folder: Path | None,
    print_line: Print,
    ranks: Processes,
    start: StartModel | None,
) -> tuple[Tokens, Tokens]:
    if not ranks.grouped:
        return _tokens(recipe, folder, print_line, start)
    made = []
    if ranks.first:
        made = [tokens.to_json() for tokens in _tokens(recipe, folder, print_line, start)]
    source, target = json.loads(ranks.exchange_late(json.dumps(made).encode())[0])
    return Tokens.from_json(source), Tokens.from_json(target)


def _tokens(
    recipe: Recipe, folder: Path | None, print_line: Print, start: StartModel | None
) -> tuple[Tokens, Tokens]:
    if start is not None:
        return start_tokens(recipe, start, print_line)
    if folder is None:
        return learned_tokens(recipe.data, print_line, default_cache_folder())
    source, target = (Tokens.load(folder / f"{side}.tokens.json") for side in ("source", "target"))
    if recipe.data.tokens.both is None:
        return source, target
    return one_vocabulary(source, target, shared=True)


def _print_corpus(print_line: Print, name: str, corpus: Encoded, report: Report) -> None:
    counts = f"{report.source_tokens:,} source and {report.target_tokens:,} target tokens"
    if isinstance(corpus, AudioCorpus):
        minutes = int(corpus.source_offsets[-1]) / corpus.rate / 60
        counts = f"{minutes:,.1f} minutes and {report.target_tokens:,} target tokens"
        print_line(f"{name}: {len(corpus):,} recordings, {counts}.")
    elif report.source_tokens:
        print_line(f"{name}: {len(corpus):,} pairs, {counts}.")
    else:
        print_line(f"{name}: {len(corpus):,} lines, {report.target_tokens:,} tokens.")
    for sentence in report.sentences():
        print_line(f"  warning: {sentence}")
