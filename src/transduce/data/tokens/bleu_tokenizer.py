"""BLEU's tokenizer: which one fits the targets of a recipe, and whether it is installed.

BLEU counts n-grams of words. Its default, 13a, splits at spaces and punctuation: in a script
without spaces a whole line is one word, and BLEU is 0. The names are sacrebleu's, and part of its
signature (Post 2018, https://aclanthology.org/W18-6319).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from transduce.data.tokens.languages import target_languages
from transduce.errors import RecipeError
from transduce.recipe import Recipe

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

DEFAULT = "13a"
EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko", "flores200": "flores"}
"""Tokenizers that need more packages, and the extra that installs them."""

# By ISO 639-1 and 639-3 code.
OF_LANGUAGES = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
}
LOOKED_AT = 1000  # references from which the script is detected

# Scripts that 13a does not split into words, and a tokenizer that does.
SCRIPTS = {
    "Japanese kana": ("\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9d", "ja-mecab"),
    "Chinese characters": ("\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff", "zh"),
    "Hangul": ("\u1100-\u11ff\u3130-\u318f\uac00-\ud7af", "ko-mecab"),
    "a script without spaces": ("\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff", "char"),
}


def bleu_tokenizer(recipe: Recipe) -> str:
    """The recipe's own, or chosen by the language of its targets, if the recipe shows it."""
    if recipe.bleu_tokenizer != "auto":
        return recipe.bleu_tokenizer
    found = {OF_LANGUAGES.get(code, DEFAULT) for code in target_languages(recipe)}
    return found.pop() if len(found) == 1 else DEFAULT


def make_bleu(tokenizer: str, effective_order: bool = False) -> BLEU:
    """sacrebleu's BLEU. Raises RecipeError if the tokenizer is not available on this machine."""
    from sacrebleu.metrics.bleu import BLEU

    try:
        # force: no warning about tokenised text amid the progress bar
        return BLEU(tokenize=tokenizer, effective_order=effective_order, force=True)
    except (Exception, SystemExit) as error:  # a package, a dictionary or a download is missing
        reason = " ".join(str(error).split()) or type(error).__name__
        extra = EXTRAS.get(tokenizer)
        packages = f"pip install '.[{extra}]'" if extra else "install sacrebleu again"
        fetched = ", and once its model from the internet" if tokenizer == "flores200" else ""
        raise RecipeError(
            f"BLEU's tokenizer {tokenizer} is not available here ({reason[:200]}): it needs "
            f"{packages}{fetched}; or set bleu_tokenizer to another, such as char"
        ) from None


def fitting_tokenizer(references: Iterable[str]) -> str:
    """The tokenizer for the script that references are mostly written in."""
    script = _script_without_words(references)
    return DEFAULT if script is None else SCRIPTS[script][1]


def unfit(tokenizer: str, references: Iterable[str]) -> str:
    """A warning about references that this tokenizer does not split into words; empty if it
    does.
    """
    if tokenizer not in (DEFAULT, "intl", "none"):
        return ""
    script = _script_without_words(references)
    if script is None:
        return ""
    return (
        f"the references are mostly in {script}, which BLEU's tokenizer {tokenizer} does not split "
        f"into words, so BLEU means little: set bleu_tokenizer: {SCRIPTS[script][1]}"
    )


def _script_without_words(references: Iterable[str]) -> str | None:
    text = "".join(reference for reference, _ in zip(references, range(LOOKED_AT), strict=False))
    letters = sum(character.isalpha() for character in text)
    counts = {name: len(re.findall(f"[{span}]", text)) for name, (span, _) in SCRIPTS.items()}
    if 2 * sum(counts.values()) <= letters or not letters:
        return None
    # Japanese is written in both, Chinese in one of them.
    japanese = 10 * counts["Japanese kana"] > counts["Chinese characters"] > 0
    return "Japanese kana" if japanese else max(counts, key=lambda name: counts[name])
