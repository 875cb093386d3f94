"""Source and target tokenizers of a recipe: loaded from files, or trained on its corpus."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from transduce import recipe
from transduce.corpora.unpack import DAMAGED, open_compressed
from transduce.data.index.corpus import CorpusIndex, index_stream
from transduce.data.index.sample import draw_sample
from transduce.data.text.columns import format_of
from transduce.data.text.files import locate, locate_here
from transduce.data.text.pairs import (
    Pair,
    audio_of,
    corpus_files,
    read_pairs,
    resolved,
    tags_of,
)
from transduce.data.text.split import PLACES, place_in_corpus
from transduce.data.text.tags import UNKNOWN_TAG, parts_of, without_tags
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import TokensError
from transduce.recipe import Corpus
from transduce.storage import default_cache_folder

T = TypeVar("T")
KINDS = ("subword", "word", "character", "symbol")
SAMPLE = "sample"
"""What is hashed before the texts of a pair, to draw a sample."""


def train_tokens(
    data: recipe.Data,
    print_line: Callable[[str], None] | None = None,
    index: CorpusIndex | None = None,
) -> tuple[Tokens, Tokens]:
    """Source and target tokens as a recipe asks: loaded from files, or learned from data.train.

    With `both`, the two are the same object. `print_line` gets a message if only a sample is used.
    index: of a streamed corpus, where it is open already.
    """
    drawn = SampledPairs(data, print_line, index)
    tags = training_tags(data)

    def make(settings: recipe.Tokens, *sides: str) -> Tokens:
        needed = tags if "source" in sides else []

        if settings.file is None:
            pairs = drawn.pairs(settings)
            texts = side_texts(data, pairs, *sides)
            return Tokens.train(settings, texts, needed, side_texts(data, pairs, sides[-1]))
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
    if data.split_tags:
        tags = sorted({part for tag in tags for part in parts_of(tag)})
    return sorted({*tags, UNKNOWN_TAG}) if data.unknown_tags else tags


def reason_of(tag: str, data: recipe.Data) -> str:
    """What makes a vocabulary need a tag, in words."""
    if data.unknown_tags and tag == UNKNOWN_TAG:
        return "data.unknown_tags"
    return "the tag in data.train"


class SampledPairs:
    """The training pairs from which tokens are learned: all, or a sample that is the same each
    time.

    Of a streamed corpus, all that is learned is learned from a sample that is read by position,
    but labels: a model cannot give one that it does not know. Of others, subwords are, from pairs
    that hashes choose, so that the order of the corpus does not matter.
    """

    def __init__(
        self,
        data: recipe.Data,
        print_line: Callable[[str], None] | None = None,
        index: CorpusIndex | None = None,
    ) -> None:
        self._data = data
        self._print_line = print_line or (lambda line: None)
        self._index = index
        self._shares: dict[int, float] = {}
        """The share of the pairs that is used, by `sample`."""
        self._said: set[str] = set()

    def pairs(self, settings: recipe.Tokens) -> Iterable[Pair]:
        """All, or the sample, for one vocabulary."""
        if self._data.streaming:
            return self.streamed(settings)
        share = self._share(settings)
        everything = read_all(self._data)
        if share >= 1.0:
            return everything
        return hashed(everything, share, audio_of(self._data.train) is not None)

    def streamed(self, settings: recipe.Tokens) -> Iterable[Pair]:
        """The sample of a streamed corpus; of others, all."""
        if not self._data.streaming or settings.level == "label":
            return read_all(self._data)
        # Drawn when it is read: where nothing is learned, nothing is indexed or said.
        return _Repeated(lambda: iter(self._by_position(settings)))

    def _by_position(self, settings: recipe.Tokens) -> Iterable[Pair]:
        if self._index is None:
            self._index = index_stream(
                self._data.train, self._data, default_cache_folder(), self._print_line
            )
        sample = draw_sample(self._index, self._data, settings.sample)
        if sample is None:
            return read_all(self._data)
        if settings.level != "byte":
            self._say(settings, f"at most {len(sample):,}", f"{self._index.rows.sum():,}", "rows")
        return sample

    def _share(self, settings: recipe.Tokens) -> float:
        train, folder = self._data.train, self._data.folder
        if settings.level != "subword" or most_pairs(train, folder) <= settings.sample:
            return 1.0
        if settings.sample not in self._shares:
            count = sum(1 for _ in read_pairs(train, folder))
            self._shares[settings.sample] = settings.sample / max(count, settings.sample)
            if count > settings.sample:
                self._say(settings, f"about {settings.sample:,}", f"{count:,}", "pairs")
        return self._shares[settings.sample]

    def _say(self, settings: recipe.Tokens, used: str, count: str, unit: str) -> None:
        what = f"{settings.level}s".capitalize() if settings.level in KINDS else "Tokens"
        sentence = (
            f"{what} are learned from a sample of {used} of the {count} training {unit}; the key "
            f"sample of data.tokens sets it."
        )
        if sentence not in self._said:
            self._said.add(sentence)
            self._print_line(sentence)


def read_all(data: recipe.Data) -> Iterable[Pair]:
    """The training pairs."""
    return _Repeated(lambda: read_pairs(data.train, data.folder))


def hashed(pairs: Iterable[Pair], share: float, is_audio: bool) -> Iterable[Pair]:
    """A share of the pairs, by hashes: the sample does not depend on the order of the corpus."""

    def is_drawn(pair: Pair) -> bool:
        # The source of a recording is the name of its file, which is another on each machine.
        # SAMPLE: the hash of the text alone decides which part of a corpus it is in (split).
        read = pair.transcript if is_audio else pair.source
        return place_in_corpus(f"{SAMPLE}\n{read}\n{pair.target}") < share * PLACES

    return _Repeated(lambda: filter(is_drawn, pairs))


def side_texts(data: recipe.Data, pairs: Iterable[Pair], *sides: str) -> Iterable[str]:
    """The texts of sides of training pairs, without tags.

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

    return _Repeated(lambda: (of_side(pair, side) + ending for pair in pairs for side in sides))


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


class _Repeated(Generic[T]):
    """What can be iterated more than once without being in memory."""

    def __init__(self, start: Callable[[], Iterator[T]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[T]:
        return self._start()
