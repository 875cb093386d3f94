"""Read constraints: prefixes, required and banned phrases, from text to token ids per source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transduce.data.tokens.tokenizer import UNKNOWN, Tokens
from transduce.decoding.constraints.segmentations import Segmentations
from transduce.decoding_settings import Phrases as Phrases
from transduce.errors import ModelError

MAX_TOKENS = 1000  # tokens of a prefix or a phrase


def prefixes_of(prefix: str | Sequence[str] | None, count: int, tokens: Tokens) -> list[list[int]]:
    """Prefix constraints: the ids that each output begins with, one for all or one per source."""
    if not prefix:
        return [list(tokens.prefix)] * count
    texts = [prefix] * count if isinstance(prefix, str) else list(prefix)
    _check_count("prefix", texts, count)
    for text in texts:
        _check_text("prefix", text)
    known = _encoded("prefix", [texts], tokens)
    for text, ids in known.items():
        _check_known("prefix", text, ids)
    return [known[text] for text in texts]


def included(phrases: Phrases, count: int, tokens: Tokens) -> list[list[list[int]]]:
    """Required phrases: those that each output must contain."""
    if phrases is None:
        return [[]] * count
    listed = _phrases("include", phrases, count)
    known = _encoded("include", listed, tokens)
    for of_one in listed:
        for phrase in of_one:
            _check_known("include", phrase, known[phrase])
    return [[known[phrase] for phrase in dict.fromkeys(of_one)] for of_one in listed]


def excluded(phrases: Phrases, count: int, tokens: Tokens) -> list[list[list[int]]]:
    """Banned phrases: those that no output may contain; phrases with unknown tokens are dropped.

    With subwords a phrase is banned however it is cut into tokens.
    """
    if phrases is None:
        return [[]] * count
    listed = _phrases("exclude", phrases, count)
    known = {
        phrase: [ids]
        for phrase, ids in _encoded("exclude", listed, tokens).items()
        if UNKNOWN not in ids
    }
    if tokens.level == "subword":
        segmentations = Segmentations(tokens)
        known = {phrase: segmentations.of(ids) for phrase, (ids,) in known.items()}
    return [
        [ids for phrase in dict.fromkeys(of_one) for ids in known.get(phrase, ())]
        for of_one in listed
    ]


def of_one_source(settings: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Settings of a run over several sources, as those of a run over one of them alone."""
    found = dict(settings)
    if isinstance(prefix := found.get("prefix"), Sequence) and not isinstance(prefix, str):
        found["prefix"] = [prefix[place]]
    for name in ("include", "exclude"):
        phrases = found.get(name) or ()
        if not isinstance(phrases, str) and not all(isinstance(entry, str) for entry in phrases):
            found[name] = [phrases[place]]
    return found


def allowed(only: Sequence[str] | None, tokens: Tokens) -> list[int] | None:
    """Vocabulary constraint: every token of these texts; None: all tokens are allowed."""
    if only is None:
        return None
    for text in only:
        _check_text("only", text)
    found = {
        number for ids in tokens.encode_batch(list(only), prefixed=False) for number in ids
    } - {UNKNOWN}
    if not found:
        raise ModelError("only has no token of this model's vocabulary; give other texts")
    return sorted(found)


def _encoded(name: str, listed: list[list[str]], tokens: Tokens) -> dict[str, list[int]]:
    phrases = list(dict.fromkeys(phrase for of_one in listed for phrase in of_one))
    found = tokens.encode_batch(phrases, prefixed=name == "prefix")
    known = dict(zip(phrases, found, strict=True))
    for phrase, ids in known.items():
        if len(ids) > MAX_TOKENS:
            raise ModelError(
                f"{name} {phrase[:40]!r}… has {len(ids):,} tokens; the maximum is {MAX_TOKENS:,}"
            )
    return known


def _phrases(
    name: str, phrases: str | Sequence[str] | Sequence[Sequence[str]], count: int
) -> list[list[str]]:
    entries = [phrases] if isinstance(phrases, str) else list(phrases)
    if all(isinstance(entry, str) for entry in entries):
        listed = [[str(entry) for entry in entries]] * count
    else:
        listed = [[entry] if isinstance(entry, str) else list(entry or ()) for entry in entries]
        _check_count(name, listed, count)
    for of_one in listed:
        for phrase in of_one:
            _check_text(name, phrase)
            if not phrase.strip():
                raise ModelError(f"{name} has an empty phrase; leave it out")
    return listed


def _check_count(name: str, entries: Sequence[object], count: int) -> None:
    if len(entries) != count:
        raise ModelError(f"{name} has {len(entries)} entries, but there are {count} sources")


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise ModelError(f"{name} must be a string, not {type(text).__name__}: {text!r:.40}")


def _check_known(name: str, text: str, ids: list[int]) -> None:
    if UNKNOWN in ids:
        raise ModelError(
            f"{name} {text[:40]!r} has tokens that are not in this model's vocabulary; leave it out"
        )
