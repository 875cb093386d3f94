"""Source and target tokenizers of a recipe: loaded from files, or trained on its corpus."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from transduce import recipe
from transduce.corpora.unpack import DAMAGED, open_compressed
from transduce.data.text.columns import format_of
from transduce.data.text.files import locate, locate_here
from transduce.data.text.pairs import (
    PLACES,
    Pair,
    audio_of,
    corpus_files,
    place_in_corpus,
    read_pairs,
    resolved,
    tags_of,
)
from transduce.data.text.tags import UNKNOWN_TAG, without_tags
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import TokensError
from transduce.recipe import Corpus

SAMPLE = "sample"
"""What is hashed before the texts of a pair, to draw a sample."""


def train_tokens(
    data: recipe.Data, print_line: Callable[[str], None] | None = None
) -> tuple[Tokens, Tokens]:
    """Source and target tokens as a recipe asks: loaded from files, or learned from data.train.

    With `both`, the two are the same object. `print_line` gets a message if only a sample is used.
    """
    drawn: dict[int, float] = {}
    """The share of the pairs that is used, by `sample`."""

    def share_of(settings: recipe.Tokens) -> float:
        if settings.level != "subword":
            return 1.0
        if most_pairs(data.train, data.folder) <= settings.sample:
            return 1.0
        if settings.sample not in drawn:
            count = sum(1 for _ in read_pairs(data.train, data.folder))
            drawn[settings.sample] = settings.sample / max(count, settings.sample)
            if count > settings.sample and print_line is not None:
                print_line(
                    f"Subwords are learned from a sample of about {settings.sample:,} of the "
                    f"{count:,} training pairs; the key sample of data.tokens sets it."
                )
        return drawn[settings.sample]

    tags = training_tags(data)

    def make(settings: recipe.Tokens, *sides: str) -> Tokens:
        needed = tags if "source" in sides else []

        if settings.file is None:
            share = share_of(settings)
            texts = side_texts(data, *sides, share=share)
            return Tokens.train(settings, texts, needed, side_texts(data, sides[-1], share=share))
        loaded = Tokens.load(locate_here(settings.file, data.folder), foreign=True)
        for tag in needed:
            if tag not in loaded.tags:
                raise TokensError(
                    f"the tokens file {settings.file} has no tag <{tag}>; train the tokens again, "
                    f"or leave out {reason_of(tag, data)}"
                )
        return loaded

    sides = data.tokens
    if sides.both is not None:
        shared = make(sides.both, "source", "target")
        return shared, shared
    assert sides.source is not None  # checked by the recipe
    assert sides.target is not None
    return make(sides.source, "source"), make(sides.target, "target")


def training_tags(data: recipe.Data) -> list[str]:
    """The tags that a vocabulary needs: those of the training set, and one for unknown tags."""
    tags = tags_of(data.train, data.folder)
    return sorted({*tags, UNKNOWN_TAG}) if data.unknown_tags else tags


def reason_of(tag: str, data: recipe.Data) -> str:
    """What makes a vocabulary need a tag, in words."""
    if data.unknown_tags and tag == UNKNOWN_TAG:
        return "data.unknown_tags"
    return "the tag in data.train"


def side_texts(data: recipe.Data, *sides: str, share: float = 1.0) -> Iterable[str]:
    """The training texts of sides, or a share of them that hashes choose, without tags.

    Where texts are concatenated, a text in characters ends with what stands between two: a single
    word may have no such character.
    """
    ending = ""
    if data.concatenate is not None:
        tokens = data.tokens.both or getattr(data.tokens, sides[-1])
        ending = data.concatenate.separator if tokens.level == "character" else ""
    is_audio = audio_of(data.train) is not None
    if is_audio:  # with one vocabulary, transcripts are the targets
        sides = sides[-1:]

    def of_side(pair: Pair, side: str) -> str:
        if side == "target":
            return pair.target
        return pair.transcript if is_audio else without_tags(pair.source, pair.tags)[1]

    def is_drawn(pair: Pair) -> bool:
        # By a hash, so that the sample does not depend on the order of the corpus. The source of a
        # recording is the name of its file, which is another on each machine. SAMPLE: the hash of
        # the text alone decides which part of a corpus it is in (split).
        read = pair.transcript if is_audio else pair.source
        return place_in_corpus(f"{SAMPLE}\n{read}\n{pair.target}") < share * PLACES

    def start() -> Iterator[str]:
        for pair in read_pairs(data.train, data.folder):
            if share >= 1.0 or is_drawn(pair):
                for side in sides:
                    yield of_side(pair, side) + ending

    return _Texts(start)


def most_pairs(corpus: Corpus, folder: str | None) -> float:
    """As many pairs as a corpus can have: its lines, which is faster than reading them; infinity
    where these do not tell.
    """
    corpus, folder = resolved(corpus, folder)
    if isinstance(corpus, recipe.Mixture):
        return sum(most_pairs(one, folder) for one in corpus.of)
    if not isinstance(corpus, recipe.Columns | recipe.ParallelFiles):
        return math.inf
    names = corpus_files(corpus, folder)
    formats = (
        {format_of(name, corpus.format) for name in names}
        if isinstance(corpus, recipe.Columns)
        else ()
    )
    if ".parquet" in formats:
        return math.inf  # it has no lines
    count = 0
    try:
        for name in names:
            with open_compressed(locate(name, folder)) as file:
                count += 1  # the last line may have no end
                while block := file.read(1 << 20):
                    count += block.count(b"\n")
    except (*DAMAGED, OSError):
        return math.inf  # who reads it says what is wrong
    return count


class _Texts:
    """Texts that can be iterated more than once without being in memory."""

    def __init__(self, start: Callable[[], Iterator[str]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[str]:
        return self._start()
