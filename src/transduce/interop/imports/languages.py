"""Models with a token for each language: M2M100, NLLB, mBART.

A source begins with the token of its language, and a target with that of its own, which search is
made to begin with. Which two they are by default is in the vocabulary files; `run` may be given
others, and so may single texts: `<deu_Latn> Guten Morgen`.
"""

from __future__ import annotations

from difflib import get_close_matches

from transduce.data.tokens.foreign import with_prefix
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError
from transduce.recipe import Recipe
from transduce.tasks.model import Model


def set_languages(model: Model, source: str | None, target: str | None) -> None:
    """Give an imported model its two languages. Raises ModelError where it needs them, has not
    these, or has no tokens of languages."""
    known = list((model.imported or {}).get("languages") or [])
    if not known:
        if source or target:
            raise ModelError(
                "this model has no tokens of languages; leave out --source-language and "
                "--target-language"
            )
        return
    if not source or not target:
        raise ModelError(
            f"this model has {len(known)} languages, such as {', '.join(known[:3])}: give the two "
            f"that it translates between by default with --source-language and --target-language"
        )
    for code in (source, target):
        if code not in known:
            near = get_close_matches(code, known, n=3, cutoff=0.3) or known[:3]
            raise ModelError(f"this model has no language {code}; did you mean {', '.join(near)}?")
    model.source_tokens = Tokens.from_json(with_prefix(model.source_tokens.to_json(), source))
    model.target_tokens = Tokens.from_json(with_prefix(model.target_tokens.to_json(), target))
    values = model.recipe.model_dump()
    values["data"]["languages"] = {"source": source, "target": target}
    model.recipe = Recipe.model_validate(values)
