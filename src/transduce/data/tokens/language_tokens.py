"""The languages of a run, for models with a token for each: M2M100, NLLB, mBART."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from transduce.data.text.tags import with_tags, without_tags
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError


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
