"""A vocabulary extended by new tokens of another corpus: no token that it has changes its id.

Characters, words, symbols and labels are added by frequency. BPE continues where it ended: further
pairs are merged in texts as the old vocabulary cuts them, after new characters have been added; so
every new token can occur. Of unigram vocabularies, pieces that are new are added with their scores.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any

from tokenizers import Tokenizer

from transduce import recipe
from transduce.data.tokens.learn import LONGEST_SUBWORD, SPECIALS, UNKNOWN
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import TokensError

UNKNOWN_NAME = SPECIALS[UNKNOWN]


def extended(tokens: Tokens, settings: recipe.Tokens, texts: Iterable[str]) -> Tokens:
    """Tokens with further ones learned from texts, up to `size` in all; rarer ones than
    `min_count` are left out.

    Level, normalization and case are those of the old vocabulary. Raises TokensError where it
    cannot be extended.
    """
    if tokens.level == "byte":
        return tokens
    parts = json.loads(tokens.to_json())
    model = parts["model"]
    if model["type"] == "Unigram":
        return _more_pieces(tokens, parts, settings, texts)
    if tokens.tags and tokens.level in ("symbol", "label"):
        raise TokensError(
            f"a vocabulary of {tokens.level}s with tags cannot be extended; use "
            f"train.start.tokens: keep"
        )
    for tag, number in tokens.tags.items():  # otherwise they would move behind the new tokens
        model["vocab"][f"<{tag}>"] = number
    texts = [text for text in texts if text.strip()]
    room = max(settings.size - len(tokens), 0)
    counts = _new_units(tokens, texts)
    order = sorted(counts, key=lambda unit: (-counts[unit], unit))
    new = [unit for unit in order if counts[unit] >= settings.min_count][:room]
    number = len(tokens)
    for unit in new:
        model["vocab"][unit] = number
        number += 1
    grown = _rebuilt(parts)
    if model["type"] == "WordLevel":
        return grown
    if model["type"] != "BPE" or model.get("continuing_subword_prefix"):
        raise TokensError(
            f"a vocabulary of kind {model['type']} cannot be extended; use train.start.tokens: keep"
        )
    merges = _more_merges(grown, texts, room - len(new), settings.min_count)
    for one, other in merges:
        model["merges"].append([one, other])
        model["vocab"][one + other] = number
        number += 1
    return _rebuilt(parts)


def _rebuilt(parts: dict[str, Any]) -> Tokens:
    return Tokens(Tokenizer.from_str(json.dumps(parts)))


def _new_units(tokens: Tokens, texts: list[str]) -> Counter[str]:
    """Characters of subword and character vocabularies, else words, that are not in the
    vocabulary: as the tokenizer normalises and cuts them.
    """
    known = set(tokens.names())
    counts: Counter[str] = Counter()
    for words in _words(tokens, texts):
        for word in words:
            counts.update([word] if tokens.level in ("word", "symbol", "label") else word)
    return Counter({unit: n for unit, n in counts.items() if unit not in known})


def _words(tokens: Tokens, texts: Iterable[str]) -> Iterable[list[str]]:
    """The words that the tokenizer cuts each text into, before its vocabulary is asked."""
    tokenizer = Tokenizer.from_str(tokens.to_json())
    for text in texts:
        text = tokens.normalized(text)
        if tokenizer.pre_tokenizer is None:
            yield [text]
        else:
            yield [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def _more_merges(
    tokens: Tokens, texts: list[str], room: int, min_count: int
) -> list[tuple[str, str]]:
    """Further merges of BPE: the most frequent pair of neighbours, again and again."""
    names = tokens.names()
    known = set(names)
    counts: Counter[str] = Counter(word for words in _words(tokens, texts) for word in words)
    tokenizer = Tokenizer.from_str(tokens.to_json())
    words: list[list[str]] = []
    often: list[int] = []
    for word, count in sorted(counts.items()):
        ids = [token.id for token in tokenizer.model.tokenize(word)]
        words.append([names[number] for number in ids])
        often.append(count)
    pairs: Counter[tuple[str, str]] = Counter()
    where: dict[tuple[str, str], set[int]] = {}
    for place in range(len(words)):
        _count(words[place], often[place], place, pairs, where)
    merges: list[tuple[str, str]] = []
    queue = [(-count, pair) for pair, count in pairs.items()]
    heapify(queue)
    while queue and len(merges) < room:
        count, best = heappop(queue)
        if pairs.get(best) != -count:
            continue  # it has changed, and is in the queue once more
        if -count < max(min_count, 2):
            break
        whole = "".join(best)
        if UNKNOWN_NAME in best or whole in known or len(whole) > LONGEST_SUBWORD:
            continue
        changed: set[tuple[str, str]] = set()
        for place in sorted(where[best]):
            changed |= _count(words[place], -often[place], place, pairs, where)
            words[place] = _joined(words[place], best)
            changed |= _count(words[place], often[place], place, pairs, where)
        for pair in changed & pairs.keys():
            heappush(queue, (-pairs[pair], pair))
        known.add(whole)
        merges.append(best)
    return merges


def _count(
    word: list[str],
    count: int,
    place: int,
    pairs: Counter[tuple[str, str]],
    where: dict[tuple[str, str], set[int]],
) -> set[tuple[str, str]]:
    """Add the pairs of one word, or with a negative count take them away; returns the pairs."""
    found = list(pairwise(word))
    for pair in found:
        pairs[pair] += count
        if count > 0:
            where.setdefault(pair, set()).add(place)
        elif pairs[pair] <= 0:
            del pairs[pair]
    return set(found)


def _joined(word: list[str], pair: tuple[str, str]) -> list[str]:
    found: list[str] = []
    place = 0
    while place < len(word):
        if tuple(word[place : place + 2]) == pair:
            found.append("".join(pair))
            place += 2
        else:
            found.append(word[place])
            place += 1
    return found


def _more_pieces(
    tokens: Tokens, parts: dict[str, Any], settings: recipe.Tokens, texts: Iterable[str]
) -> Tokens:
    if tokens.tags:
        raise TokensError(
            "a unigram vocabulary with tags cannot be extended; use train.start.tokens: keep"
        )
    own = json.loads(Tokens.train(settings, texts).to_json())["model"]
    if own["type"] != "Unigram":
        raise TokensError(
            "the vocabulary of the start model is a unigram one; set algorithm: unigram in "
            "data.tokens to extend it"
        )
    known = {piece for piece, _ in parts["model"]["vocab"]}
    room = max(settings.size - len(tokens), 0)
    parts["model"]["vocab"] += [one for one in own["vocab"] if one[0] not in known][:room]
    return _rebuilt(parts)


def old_pieces(old: Tokens, new: Tokens) -> Callable[[int], list[int]]:
    """A function that gives the tokens of an old vocabulary that a token of a new one is made of.

    Unknown ones are left out; a label or a tag has none.
    """
    names, tags = new.names(), set(new.tags.values())
    whole = "label" in (old.level, new.level)
    model = Tokenizer.from_str(old.to_json()).model

    def pieces(number: int) -> list[int]:
        if whole or number in tags:
            return []
        if old.level == new.level == "subword":  # as it stands: no space is put before it
            found = [piece.id for piece in model.tokenize(names[number])]
        else:
            found = old.encode(new.decode([number]))
        return [piece for piece in found if piece != UNKNOWN]

    return pieces
