"""The languages of a recipe's sources and targets, where it shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from transduce.data.text.tags import with_tags, without_tags
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError
from transduce.recipe import Columns, Corpus, Hub, Mixture, Named, ParallelFiles, Recipe


def language_pair(recipe: Recipe) -> tuple[str, str] | None:
    """The language codes of source and target: data.languages, or as the training data is called.

    None: the recipe does not show them, or has several.
    """
    if (given := recipe.data.languages) is not None:
        return given.source, given.target
    found = set(_pairs(recipe.data.train))
    if len(found) != 1:
        return None
    source, target = found.pop()
    # Of three letters, a suffix or a column is rather txt or src than a language.
    return (source, target) if len(source) == len(target) == 2 else None


def target_languages(recipe: Recipe) -> list[str]:
    """The language code of the targets of each training corpus; other text where it has none."""
    if (given := recipe.data.languages) is not None:
        return [_first(given.target)]
    return [target for _, target in _pairs(recipe.data.train)]


def _pairs(corpus: Corpus) -> Iterator[tuple[str, str]]:
    if isinstance(corpus, Mixture):
        for one in corpus.of:
            yield from _pairs(one)
    elif isinstance(corpus, Named):
        source, _, target = (corpus.pair or "").rpartition("-")
        yield _first(source), _first(target)
    elif isinstance(corpus, ParallelFiles):
        yield _suffix(corpus.source), _suffix(corpus.target)
    elif isinstance(corpus, Columns | Hub):
        yield _column(corpus.source), _column(corpus.target)


def _suffix(files: str | list[str]) -> str:
    first = files if isinstance(files, str) else files[0]
    return _first(Path(first.removesuffix(".gz").removesuffix(".xz")).suffix[1:])


def _column(name: object) -> str:
    return _first(str(name).rpartition(".")[2])


def _first(name: str) -> str:
    """The language of a code with a region: pt of pt-BR."""
    return re.split("[-_]", name.lower())[0]


# ----------------------------------------------------------------------------------------------
# The languages of a run, for models with a token for each: M2M100, NLLB, mBART.


def in_language(texts: Sequence[str], tokens: Tokens, language: str, side: str) -> list[str]:
    """Texts that begin with the tag of a language; those that begin with tags keep them.

    Raises ModelError where the tokens have no such language.
    """
    if not tokens.prefix:
        raise ModelError(
            f"{side}_language is {language}, but this model has no tokens of languages; leave it "
            f"out"
        )
    if language not in tokens.tags:
        near = get_close_matches(language, tokens.tags, n=3, cutoff=0.2)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ModelError(f"this model has no language {language}{hint}")
    return [
        text if without_tags(text, tokens.tags)[0] or not text else with_tags(text, [language])
        for text in texts
    ]
