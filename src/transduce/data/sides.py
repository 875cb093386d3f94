"""The tokens of a recipe's two sides: loaded from files, or learnt from its corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from transduce import recipe
from transduce.data.corpus import Pair, read_pairs, sound_of, tags_of
from transduce.data.files import locate
from transduce.data.tags import without_tags
from transduce.data.tokens import Tokens
from transduce.errors import TokensError


def train_tokens(data: recipe.Data) -> tuple[Tokens, Tokens]:
    """Source and target tokens as a recipe asks: loaded from files, or learnt from data.train.

    With `both`, the two are one and the same object.
    """
    tags = tags_of(data.train, data.folder)
    heard = sound_of(data.train) is not None

    def of_side(pair: Pair, side: str) -> str:
        if side == "target":
            return pair.target
        return pair.said if heard else without_tags(pair.source, pair.tags)[1]

    def texts(*sides: str) -> Iterable[str]:
        if heard:  # where there is one vocabulary, what is said is what is written
            sides = sides[-1:]
        return _Texts(
            lambda: (of_side(p, s) for p in read_pairs(data.train, data.folder) for s in sides)
        )

    def make(settings: recipe.Tokens, *sides: str) -> Tokens:
        needed = tags if "source" in sides else []
        if settings.file is None:
            return Tokens.train(settings, texts(*sides), needed, texts(sides[-1]))
        loaded = Tokens.load(locate(settings.file, data.folder))
        for tag in needed:
            if tag not in loaded.tags:
                raise TokensError(
                    f"the tokens file {settings.file} has no tag <{tag}>; train the tokens anew, "
                    f"or leave the tag out of data.train"
                )
        return loaded

    sides = data.tokens
    if sides.both is not None:
        shared = make(sides.both, "source", "target")
        return shared, shared
    assert sides.source is not None  # the recipe holds this
    assert sides.target is not None
    return make(sides.source, "source"), make(sides.target, "target")


class _Texts:
    """Texts that can be read more than once without being held."""

    def __init__(self, start: Callable[[], Iterator[str]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[str]:
        return self._start()
