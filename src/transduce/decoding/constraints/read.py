"""Read constraints: prefixes, required and banned phrases, from text to token ids per source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transduce.data.tokens.tokenizer import SPACE, UNKNOWN, Tokens
from transduce.decoding.constraints.hotwords import HotwordTree
from transduce.decoding.constraints.segmentations import Segmentations
from transduce.decoding_settings import Phrases as Phrases
from transduce.errors import ModelError, warn_once

MAX_TOKENS = 1000  # tokens of a prefix or a phrase
MAX_HOTWORD_TOKENS = 100
MAX_LEFT_OUT = 100  # hotwords that are told of in a process: those of a server's clients never end
_LEFT_OUT: set[str] = set()


@dataclass(frozen=True)
class AnyOf:
    """A required phrase with several wordings, one of which is enough."""

    wordings: tuple[str, ...]
    term: tuple[int, int] | None = None
    """Of a glossary: the characters of the source that it is the translation of, counted from the
    end of the source, as tags may come before it; both are negative, or the second 0."""


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


def included(phrases: Phrases, count: int, tokens: Tokens) -> list[list[list[list[int]]]]:
    """Required phrases: those that each output must contain, each with its wordings.

    Wordings of AnyOf that the vocabulary cannot write are left out, as long as one is left.
    """
    if phrases is None:
        return [[]] * count
    listed = phrases_of("include", phrases, count)
    texts = [[text for phrase in of_one for text in _wordings(phrase)] for of_one in listed]
    known = _encoded("include", texts, tokens)
    found: dict[str | AnyOf, list[list[int]]] = {}
    for phrase in dict.fromkeys(phrase for of_one in listed for phrase in of_one):
        wordings = [known[text] for text in _wordings(phrase)]
        written = [ids for ids in wordings if UNKNOWN not in ids]
        _check_known("include", _wordings(phrase)[0], written[0] if written else wordings[0])
        found[phrase] = list(map(list, dict.fromkeys(map(tuple, written))))
    return [[found[phrase] for phrase in dict.fromkeys(of_one)] for of_one in listed]


def excluded(phrases: Phrases, count: int, tokens: Tokens) -> list[list[list[int]]]:
    """Banned phrases: those that no output may contain; phrases with unknown tokens are dropped.

    With subwords a phrase is banned however it is cut into tokens.
    """
    if phrases is None:
        return [[]] * count
    listed = [[str(phrase) for phrase in of] for of in phrases_of("exclude", phrases, count)]
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


def hotwords_of(phrases: Phrases, count: int, tokens: Tokens) -> list[HotwordTree | None]:
    """The hotwords of each source; sources with the same ones share a tree.

    Phrases that the vocabulary cannot write are left out, with a warning.
    """
    if phrases is None:
        return [None] * count
    listed = [
        [text for phrase in of_one for text in _wordings(phrase)]
        for of_one in phrases_of("hotwords", phrases, count)
    ]
    spellings = _spellings(list(dict.fromkeys(p for of_one in listed for p in of_one)), tokens)
    trees: dict[tuple[str, ...], HotwordTree | None] = {}
    for of_one in map(tuple, listed):
        if of_one not in trees:
            ids = [one for phrase in of_one for one in spellings[phrase]]
            trees[of_one] = HotwordTree(ids, tokens.word_edges) if ids else None
    return [trees[tuple(of_one)] for of_one in listed]


def _spellings(phrases: list[str], tokens: Tokens) -> dict[str, list[list[int]]]:
    """The token sequences of each phrase: as it is given and with its first letter in upper case,
    as at the beginning of a sentence; where the vocabulary has no such letters, in lower or upper
    case. With subwords each after a space and without one."""
    found: dict[str, list[list[int]]] = {}
    for phrase in phrases:
        text = " ".join(phrase.split())
        for forms in ([text, text[:1].upper() + text[1:]], [text.lower(), text.upper()]):
            if found.get(phrase):
                break
            found[phrase] = [
                ids for form in dict.fromkeys(forms) for ids in _cut(form, tokens) if ids
            ]
        if not found[phrase] and len(_LEFT_OUT | {phrase[:40]}) <= MAX_LEFT_OUT:
            _LEFT_OUT.add(phrase[:40])
            warn_once(
                f"the hotword {phrase[:40]!r} has letters that the model's vocabulary does not "
                f"have; it is left out"
            )
        if max(map(len, found[phrase]), default=0) > MAX_HOTWORD_TOKENS:
            raise ModelError(
                f"the hotword {phrase[:40]!r}… has more than {MAX_HOTWORD_TOKENS} tokens; shorten "
                f"it"
            )
    return found


def _cut(text: str, tokens: Tokens) -> list[list[int]]:
    """A phrase as tokens, with subwords in two ways; none where it has unknown tokens."""
    cut = tokens.encode_batch([text], prefixed=False)
    if tokens.level == "subword":
        (first,) = tokens.pieces(cut[0][:1]) or [""]
        if first.startswith(SPACE):
            cut += tokens.encode_lines([(text, False)])
        else:
            cut += tokens.encode_batch([f" {text}"], prefixed=False)
    # A space alone is no part of the phrase: it may begin after any.
    bare = [ids[1:] if tokens.pieces(ids[:1]) == [SPACE] else ids for ids in cut]
    return [ids for ids in bare if ids and UNKNOWN not in ids]


def of_sources(settings: Mapping[str, Any], places: Sequence[int], count: int) -> dict[str, Any]:
    """Settings of a run over `count` sources, as those of a run over some of them alone: of what
    has an entry for each source, the entries of these. Raises ModelError."""
    found = dict(settings)
    for name in ("prefix", "include", "exclude", "hotwords", "seed"):
        value = found.get(name)
        if not isinstance(value, list | tuple):
            continue
        phrases = name not in ("prefix", "seed")
        if phrases and all(isinstance(entry, str | AnyOf) for entry in value):
            continue  # for all sources
        _check_count(name, value, count)
        found[name] = [value[place] for place in places]
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


def phrases_of(name: str, phrases: Phrases, count: int) -> list[list[str | AnyOf]]:
    """The phrases of each source, given for all or for each. Raises ModelError."""
    entries = [phrases] if isinstance(phrases, str | AnyOf) else list(phrases or ())
    if all(isinstance(entry, str | AnyOf) for entry in entries):
        listed: list[list[Any]] = [entries] * count
    else:
        listed = [
            [entry] if isinstance(entry, str | AnyOf) else list(entry or ()) for entry in entries
        ]
        _check_count(name, listed, count)
    for text in (text for of_one in listed for phrase in of_one for text in _wordings(phrase)):
        _check_text(name, text)
        if not text.strip():
            raise ModelError(f"{name} has an empty phrase; leave it out")
    return listed


def _wordings(phrase: str | AnyOf) -> Sequence[str]:
    return phrase.wordings if isinstance(phrase, AnyOf) else (phrase,)


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
